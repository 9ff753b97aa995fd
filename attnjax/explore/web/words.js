// The words of the notebook as vectors of four channels. The first two tell cat from sat, the last two The from down.
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
