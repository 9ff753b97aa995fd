// The state of the notebook and its numbers: words as vectors, key matrices, and what two heads make of them.

// Words are vectors of four channels. The first two tell cat from sat, the last two The from down.
// Any other word has the vector of its hash: the same word, the same vector, in every browser.

const SENTENCE = ["The", "cat", "sat", "down"];
const ROWS = new Map([
  ["The", [0, 0, 1, 0]],
  ["cat", [1, 0, 0, 0]],
  ["sat", [0, 1, 0, 0]],
  ["down", [0, 0, 0, 1]],
]);

// 32 bits of FNV-1a over the UTF-8 bytes.
function fnv1a(text) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash;
}

// Numbers in [0, 1) from a seed: a Weyl sequence, each of its words mixed by multiplications and shifts.
function randomNumbers(seed, count) {
  return Array.from({ length: count }, (_, i) => {
    let word = (seed + Math.imul(i + 1, 0x9e3779b9)) >>> 0;
    word = Math.imul(word ^ (word >>> 16), 0x85ebca6b) >>> 0;
    word = Math.imul(word ^ (word >>> 13), 0xc2b2ae35) >>> 0;
    return ((word ^ (word >>> 16)) >>> 0) / 2 ** 32;
  });
}

// Numbers in [-1, 1] with two decimals.
function randomRow(seed, count) {
  return randomNumbers(seed, count).map((value) => Math.round(200 * value - 100) / 100 + 0);
}

function wordRow(text) {
  return ROWS.get(text) ?? randomRow(fnv1a(text), 4);
}

// The matrices W_K: one block for each head, of two channels each.
function keyMatrix(preset, seed) {
  if (preset === "swap") return [[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]];
  if (preset === "flip") return [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 0], [0, 0, 0, -1]];
  if (preset === "random") return [0, 1, 2, 3].map((row) => randomRow(Math.imul(seed + 1, 7919) + row, 4));
  return [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]];
}

// From the state of the notebook to its numbers. W_Q, W_V and W_O are the identity, so that K = X W_K is all that a preset
// changes; the encoding acts where attnjax lets it act: on X, on queries and keys, or on the scores.

const WIDTH = 4;

function freshState() {
  return {
    tokens: SENTENCE.map((text, id) => ({ id, text })),
    next: SENTENCE.length,
    heads: 2,
    preset: "identity",
    seed: 0,
    tau: null,
    encoding: "none",
    angle: 0.5,
    base: 10000,
    slopes: { 1: alibiSlopes(1), 2: alibiSlopes(2) },
    causal: false,
  };
}

// The temperature that the slider was set to, or sqrt(d_k).
function temperature(state) {
  return state.tau ?? Math.sqrt(WIDTH / state.heads);
}

// Radians per position of each pair of a head: the first is the slider's, the others fall by the base.
function headFrequencies(state) {
  return geometric(WIDTH / state.heads / 2, state.base).map((frequency) => state.angle * frequency);
}

// The hooks of an encoding, as arguments of `multiHead`.
function hooks(state) {
  const found = { tau: temperature(state), causal: state.causal };
  if (state.encoding === "rope") {
    const frequencies = headFrequencies(state);
    found.map = (row, position) => rope(row, position, frequencies);
  }
  if (state.encoding === "alibi") {
    found.bias = (n, i, j) => alibiBias(state.slopes[state.heads][n], i - j, !state.causal);
  }
  return found;
}

// X, W_K, K, and scores, weights and output of every head, for tokens in the order given.
function forward(state, tokens = state.tokens) {
  const words = tokens.map((token) => wordRow(token.text));
  const table = tokens.map((_, position) => sinusoidal(position, WIDTH, state.base));
  const x = state.encoding === "sinusoidal" ? add(words, table) : words;
  const keys = keyMatrix(state.preset, state.seed);
  const k = matmul(x, keys);
  return { x, keys, k, ...multiHead(x, k, x, state.heads, hooks(state)) };
}

// The largest difference between the weights and those of the tokens in the order in which they were first written, with
// rows and columns moved along: 0 where attention does not know the order.
function orderDifference(state) {
  const original = [...state.tokens].sort((a, b) => a.id - b.id);
  const place = state.tokens.map((token) => original.indexOf(token));
  const [now, before] = [forward(state), forward(state, original)];
  const differences = now.heads.flatMap((head, n) => head.weights.flatMap((row, i) =>
    row.map((weight, j) => Math.abs(weight - before.heads[n].weights[place[i]][place[j]]))));
  return { moved: place.some((there, here) => there !== here), original, largest: Math.max(...differences) };
}
