const made = JSON.parse(document.getElementById("data").textContent);

const functions = {
  attend: ({ q, k, v, heads, tau, causal, theta, slopes, symmetric }) => {
    const frequencies = theta === undefined ? [] : geometric(q[0].length / heads / 2, theta);
    const map = theta === undefined ? undefined : (row, position) => rope(row, position, frequencies);
    const bias = slopes === undefined ? undefined : (n, i, j) => alibiBias(slopes[n], i - j, symmetric);
    const found = multiHead(q, k, v, heads, { tau, causal, map, bias });
    return { weights: found.heads.map((head) => head.weights), out: found.out };
  },
  rope: ({ x, positions, theta, pairs }) => x.map((row, t) => rope(row, positions[t], geometric(pairs, theta))),
  sinusoidal: ({ positions, pairs, theta }) => positions.map((p) => sinusoidal(p, 2 * pairs, theta)),
  slopes: ({ heads }) => alibiSlopes(heads),
  notebook: ({ order, ...changes }) => {
    const state = { ...freshState(), ...changes };
    state.tokens = order.map((id) => state.tokens[id]);
    const found = forward(state);
    return { x: found.x, keys: found.keys, weights: found.heads.map((head) => head.weights), out: found.out };
  },
};

const results = made.map(([name, given]) => functions[name](given));
document.getElementById("told").textContent = JSON.stringify(results);
