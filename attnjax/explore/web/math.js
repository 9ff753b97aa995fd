// Attention and positional encodings as pure functions of arrays of rows, in double precision, by the conventions of attnjax:
// scores are q . k / tau, a bias is added after the scale, a softmax runs over the keys that a query sees. Frequencies are
// theta^(-2k/width); the rotation has (R(m) q) . (R(n) k) = q . R(n - m) k; n = i - j is the distance of query i from key j.

function dot(a, b) {
  return a.reduce((sum, value, i) => sum + value * b[i], 0);
}

function transpose(x) {
  return x[0].map((_, column) => x.map((row) => row[column]));
}

// [T, D] [D, E] -> [T, E]
function matmul(a, b) {
  const columns = transpose(b);
  return a.map((row) => columns.map((column) => dot(row, column)));
}

function add(a, b) {
  return a.map((row, i) => row.map((value, j) => value + b[i][j]));
}

// exp(x) / sum exp(x); -Infinity hides an entry.
function softmax(row) {
  const top = Math.max(...row);
  const powers = row.map((value) => Math.exp(value - top));
  const total = powers.reduce((sum, value) => sum + value, 0);
  return powers.map((value) => value / total);
}

// [T, N * H] -> N times [T, H]: head n has the channels n H .. n H + H - 1.
function splitHeads(x, heads) {
  const width = x[0].length / heads;
  return Array.from({ length: heads }, (_, n) => x.map((row) => row.slice(n * width, (n + 1) * width)));
}

// N times [T, H] -> [T, N * H]
function concatHeads(parts) {
  return parts[0].map((_, t) => parts.flatMap((part) => part[t]));
}

// Scores q_i . k_j / tau + bias(i, j), or -Infinity where j > i under a causal mask; weights [T, S]; weights v [T, H].
function attend(q, k, v, { tau = Math.sqrt(q[0].length), bias, causal }) {
  const scores = q.map((a, i) => k.map((b, j) => (causal && j > i ? -Infinity : dot(a, b) / tau + bias(i, j))));
  const weights = scores.map(softmax);
  return { scores, weights, out: matmul(weights, v) };
}

// Split, attend in every head, join. `map(row, position)` turns queries and keys, `bias(n, i, j)` is that of head n.
function multiHead(q, k, v, heads, { tau, map = (row) => row, bias = () => 0, causal = false }) {
  const [qs, ks, vs] = [q, k, v].map((x) => splitHeads(x, heads));
  const parts = qs.map((_, n) => {
    const options = { tau, bias: (i, j) => bias(n, i, j), causal };
    return attend(qs[n].map(map), ks[n].map(map), vs[n], options);
  });
  return { heads: parts, out: concatHeads(parts.map((part) => part.out)) };
}

// Radians per position of `pairs` pairs.
function geometric(pairs, theta) {
  return Array.from({ length: pairs }, (_, k) => theta ** (-k / pairs));
}

// A row whose channels (2k, 2k + 1) are turned by position * frequency k; channels behind the last pair pass through.
function rope(row, position, frequencies) {
  const turned = [...row];
  frequencies.forEach((frequency, k) => {
    const [a, b] = [2 * k, 2 * k + 1];
    const [cos, sin] = [Math.cos(position * frequency), Math.sin(position * frequency)];
    turned[a] = row[a] * cos - row[b] * sin;
    turned[b] = row[a] * sin + row[b] * cos;
  });
  return turned;
}

// sin and cos of position * theta^(-2k/width) in turn.
function sinusoidal(position, width, theta) {
  return geometric(width / 2, theta).flatMap((frequency) => [Math.sin(position * frequency), Math.cos(position * frequency)]);
}

// 2^(-8h/N) for h = 1 .. N, of a power of two.
function alibiSlopes(heads) {
  return Array.from({ length: heads }, (_, h) => 2 ** (-8 * (h + 1) / heads));
}

// -m n, or -m |n| where symmetric.
function alibiBias(slope, n, symmetric) {
  return -slope * (symmetric ? Math.abs(n) : n);
}
