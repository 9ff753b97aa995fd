// The notebook: every control changes the state, and every change of the state draws the tables anew.

const PRESETS = [
  ["identity", "identity", "W_K is the identity. Head 1 compares channels 0 and 1, so cat and sat find themselves; head 2 "
    + "compares channels 2 and 3, so The and down do."],
  ["swap", "swap K blocks", "The queries of head 1 meet channels 2 and 3, and those of head 2 channels 0 and 1: cat looks at "
    + "The and sat at down, and the other way round."],
  ["flip", "head 2 flipped", "The keys of head 2 change their sign: what attracted now repels. Head 1 does not change."],
  ["random", "random", "Random numbers in [\u22121, 1]. Every head has a pattern, though nobody trained it."],
];
const ENCODINGS = [
  ["none", "none", "Without an encoding, attention does not know where a token is: move the tokens, and rows and columns move "
    + "with them. A causal mask changes that."],
  ["sinusoidal", "sinusoidal", "Sines and cosines of the position are added to X, and so reach queries, keys and values."],
  ["rope", "RoPE", "Queries and keys are turned by their position times \u03b8, so that a score depends on the distance alone."],
  ["alibi", "ALiBi", "Each head subtracts its slope times the distance from the scores: near tokens win. Without a causal mask "
    + "the distance has no sign."],
];

function textOf(options, key) {
  return options.find((option) => option[0] === key)[2];
}

function notebook(root) {
  let state = freshState();
  const status = make("p", { className: "hidden", role: "status" });
  const list = make("ul", { className: "cards", "aria-label": "Tokens" });
  const [words, order] = [make("p"), make("p", { className: "finding" })];
  const tables = make("div", { className: "tables" });
  let shows = "weights";

  const update = (changes) => {
    state = { ...state, ...changes };
    draw();
  };

  const cards = tokenCards(list, status, (tokens) => update({ tokens }));

  const adding = button("Add a token", () => {
    const tokens = [...state.tokens, { id: state.next, text: "cat" }];
    cards.set(tokens);
    update({ tokens, next: state.next + 1 });
  });
  const restoring = button("The cat sat down", () => {
    const tokens = SENTENCE.map((text, i) => ({ id: state.next + i, text }));
    cards.set(tokens);
    update({ tokens, next: state.next + tokens.length });
  });
  const again = button("Draw again", () => update({ seed: state.seed + 1 }));
  const split = buttons("Channels", [[2, "two heads of 2"], [1, "one head of 4"]], 2, (heads) => update({ heads }));
  const presets = buttons("W_K", PRESETS, "identity", (preset) => update({ preset }));
  presets.lastChild.append(again);
  const heat = slider("Temperature \u03c4", {
    min: -1, max: 1, step: 0.005, value: 0, shown: () => `${temperature(state).toFixed(2)}${state.tau ? "" : " = \u221ad_k"}`,
  }, (value) => { state.tau = 10 ** value; update({}); });
  const plain = button("\u03c4 = \u221ad_k", () => update({ tau: null }));
  const encoding = choice("Encoding", ENCODINGS, "none", (value) => update({ encoding: value }));
  const angle = slider("\u03b8, radians per position", {
    min: 0, max: 3.14, step: 0.01, value: state.angle, shown: (value) => value.toFixed(2),
  }, (value) => update({ angle: value }));
  const base = slider("Base of the frequencies", {
    min: 0.1, max: 6, step: 0.1, value: 4, shown: (value) => (value < 2 ? (10 ** value).toPrecision(3) : Math.round(10 ** value).toLocaleString("en")),
  }, (value) => update({ base: 10 ** value }));
  const slopes = [0, 1].map((n) => slider(`Slope of head ${n + 1}`, {
    min: -8, max: 2, step: 0.25, value: -4, shown: (value) => (2 ** value).toPrecision(3),
  }, (value) => {
    const mine = [...state.slopes[state.heads]];
    mine[n] = 2 ** value;
    update({ slopes: { ...state.slopes, [state.heads]: mine } });
  }));
  const causal = tickbox("causal mask", false, (value) => update({ causal: value }));
  const showing = buttons("Show", [["weights", "weights"], ["scores", "scores"]], shows, (value) => { shows = value; draw(); });

  function draw() {
    if (state.encoding === "alibi") {
      slopes.forEach((one, n) => { if (n < state.heads) one.set(Math.log2(state.slopes[state.heads][n])); });
    }
    heat.set(Math.log10(temperature(state)));
    plain.disabled = state.tau === null;
    again.hidden = state.preset !== "random";
    angle.hidden = state.encoding !== "rope";
    base.hidden = !(state.encoding === "sinusoidal" || (state.encoding === "rope" && state.heads === 1));
    slopes.forEach((one, n) => { one.hidden = state.encoding !== "alibi" || n >= state.heads; });
    adding.disabled = state.tokens.length >= MOST_TOKENS;
    words.textContent = `${textOf(PRESETS, state.preset)} ${textOf(ENCODINGS, state.encoding)}`;
    order.textContent = finding(state);
    tables.replaceChildren(...notebookTables(state, shows));
  }

  root.append(list, make("div", { className: "controls" }, adding, restoring), status,
    make("div", { className: "controls" }, split, presets, heat, plain, encoding, angle, base, ...slopes, causal,
      showing), words, order, tables);
  cards.set(state.tokens);
  draw();
}

// What moving the tokens did to the weights, in a sentence.
function finding(state) {
  const { moved, original, largest } = orderDifference(state);
  if (!moved) return "Move a token: does attention notice?";
  const sentence = original.map((token) => token.text).join(" ");
  const same = largest < 1e-9;
  const start = `Against \u201c${sentence}\u201d, with rows and columns moved along, `;
  return start + (same ? "every weight is the same: attention does not see the order."
    : `weights differ by up to ${largest.toFixed(3)}: attention sees the order.`);
}

function notebookTables(state, shows) {
  const found = forward(state);
  const rows = state.tokens.map((token) => token.text);
  const channels = ["0", "1", "2", "3"];
  const boundary = state.heads === 2 ? [2] : [];
  const signed = (title, names, values) => numberTable(title, {
    rows: names, columns: channels, values, boundary, most: Math.max(1, ...values.flat().map(Math.abs)),
  });
  const added = state.encoding === "sinusoidal" ? "X, with positions added" : "X";
  const heads = found.heads.map((head, n) => numberTable(state.heads === 2 ? `Head ${n + 1}: ${shows}` : shows, {
    rows,
    columns: rows,
    values: head[shows],
    most: shows === "weights" ? 1 : Math.max(1, ...head.scores.flat().filter(Number.isFinite).map(Math.abs)),
    corner: "query \u2192 key",
    told: (i, j) => `${rows[i]} to ${rows[j]}: weight ${head.weights[i][j].toFixed(6)}, score ${decimal(head.scores[i][j], 6)}`,
  }));
  return [signed(added, rows, found.x), signed("W_K", channels, found.keys), signed("K = X W_K", rows, found.k), ...heads,
    signed("Output: the heads side by side", rows, found.out)];
}
