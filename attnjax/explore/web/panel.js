// One trained run: the scores of its heads; which text, layer and head; the map of that head, small maps of all, and the text
// shaded by what the chosen token attends to.

function counted(count) {
  return Array.from({ length: count }, (_, i) => [String(i), String(i)]);
}

// `chosen(state)` and `pointed(i, j)` tell of what the reader did here, so that a second panel can follow; `runs` are all on
// the page.
function runPanel(run, runs, first, chosen, pointed) {
  const state = { text: 0, layer: first.layer, head: first.head, score: run.grids[0]?.name };
  let cell = [run.texts[0].tokens.length - 1, 0];
  let weight = () => 0;

  const map = attentionMap(`Attention weights of ${run.name}. The arrow keys move to other tokens.`, (i, j, byReader) => {
    show(i, j);
    if (byReader) pointed(i, j);
  });
  const output = make("output", { className: "readout" });
  const strip = make("p", { className: run.spaced ? "strip words" : "strip" });
  const heads = make("div", { className: "heads", role: "group", "aria-label": `All heads of ${run.name}` });
  const choose = (changes) => { set(changes); chosen(state); };
  const text = choice("Text", run.texts.map((one, i) => [String(i), one.title]), "0", (value) => choose({ text: Number(value) }));
  const layer = choice("Layer", counted(run.layers), String(first.layer), (value) => choose({ layer: Number(value) }));
  const head = choice("Head", counted(run.heads), String(first.head), (value) => choose({ head: Number(value) }));

  const grid = run.grids.length
    ? scoreGrid(run, runs, (l, n) => choose({ layer: l, head: n }), (value) => choose({ score: value })) : null;
  const scores = grid ? grid.element : make("p", { className: "soft" }, run.scored);

  // What this run does not have stays as it is.
  function set(changes) {
    const possible = { text: (value) => value < run.texts.length, layer: (value) => value < run.layers,
      head: (value) => value < run.heads, score: (value) => run.grids.some((one) => one.name === value) };
    for (const [name, value] of Object.entries(changes)) {
      if (possible[name](value)) state[name] = value;
    }
    draw();
  }

  function draw() {
    const shown = run.texts[state.text];
    const size = shown.tokens.length;
    for (const [one, value] of [[text, state.text], [layer, state.layer], [head, state.head]]) {
      one.input.value = value;
    }
    grid?.draw(state.score, state.layer, state.head);
    weight = headWeights(run, shown, state.layer, state.head);
    map.draw(size, weight);
    strip.replaceChildren(...shown.tokens.map((token, j) => {
      const span = make("span", {}, token);
      span.addEventListener("pointerenter", () => map.go(cell[0], j));
      span.addEventListener("click", () => map.go(j, j));
      return span;
    }));
    thumbnails(shown, size);
    map.go(...cell, false);
  }

  function thumbnails(shown, size) {
    const drawn = counted(run.layers).flatMap((_, l) => counted(run.heads).map((__, n) => {
      const canvas = make("canvas");
      const here = l === state.layer && n === state.head;
      const one = button("", () => { choose({ layer: l, head: n }); heads.children[l * run.heads + n].focus(); }, {
        "aria-label": `Layer ${l}, head ${n}`, "aria-pressed": here, title: `Layer ${l}, head ${n}`,
      });
      one.append(canvas);
      return [one, canvas, headWeights(run, shown, l, n)];
    }));
    heads.style.setProperty("--heads", run.heads);
    heads.replaceChildren(...drawn.map(([one]) => one));
    drawn.forEach(([, canvas, values]) => paint(canvas, size, values));
  }

  function show(i, j) {
    cell = [i, j];
    const shown = run.texts[state.text];
    const hidden = run.causal && j > i ? ", which it cannot see" : "";
    const [query, key] = [i, j].map((place) => `\u201c${shown.tokens[place]}\u201d at ${place}`);
    output.textContent = `${query} attends to ${key}${hidden}: ${weight(i, j).toFixed(4)}`;
    [...strip.children].forEach((span, place) => {
      span.classList.toggle("query", place === i);
      span.style.setProperty("--share", `${(100 * Math.sqrt(weight(i, place))).toFixed(1)}%`);
    });
  }

  const about = make("dl", {}, ...run.about.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  const config = make("details", {}, make("summary", {}, "Config"), make("pre", {}, run.config));
  const title = make("h3", { className: "titled" }, run.name);
  const element = make("section", { className: "panel", "aria-label": run.name }, title, about, config,
    make("h4", {}, "Scores of all heads"), scores,
    make("div", { className: "controls" }, text, layer, head), map.element, output,
    make("h4", {}, "What the chosen token attends to"), strip, make("h4", {}, "All heads, a row for each layer"), heads);
  return { element, set, draw, go: (i, j) => map.go(i, j, false) };
}
