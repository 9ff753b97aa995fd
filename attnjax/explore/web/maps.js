// Attention maps of a trained run: unpacked from 16-bit numbers, and drawn as pixels that a stylesheet enlarges.

const STEPS = 65535;

// The weights of all heads, [L * N * entries] whole numbers of 1/65535, little-endian in base64.
function unpack(text) {
  const letters = atob(text);
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Uint16Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true));
}

// `weight(i, j)` of one head. Causal maps are stored without the entries above the diagonal, which are 0.
function headWeights(run, text, layer, head) {
  text.unpacked ??= unpack(text.weights);
  const size = text.tokens.length;
  const entries = run.causal ? size * (size + 1) / 2 : size * size;
  const start = (layer * run.heads + head) * entries;
  const row = (i) => (run.causal ? i * (i + 1) / 2 : i * size);
  return (i, j) => (run.causal && j > i ? 0 : text.unpacked[start + row(i) + j] / STEPS);
}

// A pixel for each weight, shaded by its root, so that small weights can be seen.
function paint(canvas, size, weight) {
  canvas.width = size;
  canvas.height = size;
  const [paper, heat] = ["--paper", "--map"].map((name) => rgb(getComputedStyle(canvas).getPropertyValue(name)));
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  for (let i = 0; i < size; i += 1) {
    for (let j = 0; j < size; j += 1) {
      const share = Math.sqrt(weight(i, j));
      const at = 4 * (i * size + j);
      for (let c = 0; c < 3; c += 1) image.data[at + c] = paper[c] + share * (heat[c] - paper[c]);
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

// "#rrggbb" as three numbers.
function rgb(color) {
  const digits = color.trim().slice(1);
  return [0, 2, 4].map((place) => parseInt(digits.slice(place, place + 2), 16));
}

// A map with a cell that the pointer, a finger or the arrow keys move; `moved(i, j, byReader)` is told of it.
function attentionMap(label, moved) {
  const canvas = make("canvas", { className: "map", tabIndex: 0, role: "img", "aria-label": label });
  const cursor = make("div", { className: "cell" });
  const frame = make("div", { className: "frame" }, canvas, cursor);
  let [size, i, j] = [1, 0, 0];

  // `byReader`: the reader moved it, and not the other panel.
  function go(row, column, byReader = true) {
    i = Math.max(0, Math.min(size - 1, row));
    j = Math.max(0, Math.min(size - 1, column));
    const place = { left: j, top: i, width: 1, height: 1 };
    for (const [name, value] of Object.entries(place)) cursor.style[name] = `${100 * value / size}%`;
    moved(i, j, byReader);
  }

  function point(event) {
    const box = canvas.getBoundingClientRect();
    go(Math.floor((event.clientY - box.top) / box.height * size), Math.floor((event.clientX - box.left) / box.width * size));
  }

  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 8 : 1;
    const next = { ArrowLeft: [i, j - step], ArrowRight: [i, j + step], ArrowUp: [i - step, j], ArrowDown: [i + step, j],
      Home: [i, 0], End: [i, i] }[event.key];
    if (!next) return;
    event.preventDefault();
    go(...next);
  });

  return {
    element: frame,
    go,
    draw(tokens, weight) {
      size = tokens;
      paint(canvas, size, weight);
    },
  };
}
