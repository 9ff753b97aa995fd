// Attention as pure functions of arrays of rows, in double precision, by the conventions of attnjax:
// scores are q . k / tau, a bias is added after the scale, a softmax runs over the keys that a query sees, and the row of
// a query that sees nothing is 0.

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

// exp(x) / sum exp(x); -Infinity hides an entry, and a row that is hidden as a whole gives zeros.
function softmax(row) {
  const top = Math.max(...row);
  if (top === -Infinity) return row.map(() => 0);
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

// q_i . k_j / tau + bias(i, j), and -Infinity where j > i under a causal mask: [T, S].
function attentionScores(q, k, tau, bias, causal) {
  return q.map((a, i) => k.map((b, j) => (causal && j > i ? -Infinity : dot(a, b) / tau + bias(i, j))));
}

// Scores, weights [T, S] and weights v [T, H] of one head; tau is sqrt(H) unless given.
function attend(q, k, v, { tau = Math.sqrt(q[0].length), bias = () => 0, causal = false } = {}) {
  const scores = attentionScores(q, k, tau, bias, causal);
  const weights = scores.map(softmax);
  return { scores, weights, out: matmul(weights, v) };
}

// Split, attend in every head, join. `map(row, position)` turns queries and keys, `bias(n, i, j)` is that of head n.
function multiHead(q, k, v, heads, { tau, map = (row) => row, bias = () => 0, causal = false } = {}) {
  const [qs, ks, vs] = [q, k, v].map((x) => splitHeads(x, heads));
  const parts = qs.map((_, n) => {
    const options = { tau, bias: (i, j) => bias(n, i, j), causal };
    return attend(qs[n].map(map), ks[n].map(map), vs[n], options);
  });
  return { heads: parts, out: concatHeads(parts.map((part) => part.out)) };
}
