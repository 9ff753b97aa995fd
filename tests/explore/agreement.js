const made = JSON.parse(document.getElementById("data").textContent);

const functions = {
  softmax: ({ rows }) => rows.map(softmax),
  attend: ({ q, k, v, heads, tau, causal, theta, layout, slopes, symmetric }) => {
    const frequencies = theta === undefined ? [] : geometric(q[0].length / heads / 2, theta);
    const map = theta === undefined ? undefined : (row, position) => rope(row, position, frequencies, layout);
    const bias = slopes === undefined ? undefined : (n, i, j) => alibiBias(slopes[n], i - j, symmetric);
    const found = multiHead(q, k, v, heads, { tau, causal, map, bias });
    return { weights: found.heads.map((head) => head.weights), out: found.out };
  },
  rope: ({ x, positions, theta, layout, pairs }) =>
    x.map((row, t) => rope(row, positions[t], geometric(pairs, theta), layout)),
  sinusoidal: ({ positions, width, theta, order }) => positions.map((p) => sinusoidal(p, width, theta, order)),
  slopes: ({ heads }) => alibiSlopes(heads),
  hash: ({ words }) => words.map(fnv1a),
  rows: ({ words }) => words.map(wordRow),
  notebook: ({ order, ...changes }) => {
    const state = { ...freshState(), ...changes };
    state.tokens = order.map((id) => state.tokens[id]);
    const found = forward(state);
    return { x: found.x, keys: found.keys, weights: found.heads.map((head) => head.weights), out: found.out,
      largest: orderDifference(state).largest };
  },
};

const results = made.map(([name, given]) => functions[name](given));
document.getElementById("told").textContent = JSON.stringify(results);
