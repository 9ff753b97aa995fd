// The scores of all heads of a run as a grid of buttons, a row for each layer; a menu chooses the score.

// The value with the full shade: 1 for a share, otherwise the largest that any of the runs has.
function fullShade(runs, name) {
  const grids = runs.flatMap((run) => run.grids.filter((one) => one.name === name));
  if (grids.every((one) => one.share)) return 1;
  return Math.max(...grids.flatMap((one) => one.values.flat())) || 1;
}

function scoreTitle(name) {
  return name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
}

// `opened(layer, head)` and `named(score)` tell what the reader chose; `runs` are all on the page, so that shades compare.
function scoreGrid(run, runs, opened, named) {
  const about = make("p", { className: "soft" });
  const table = make("table", { className: "numbers scores" });
  const scroll = make("div", { className: "scroll" }, table);
  const menu = choice("Score", run.grids.map((one) => [one.name, scoreTitle(one.name)]), "", named);

  function draw(name, layer, head) {
    const grid = run.grids.find((one) => one.name === name);
    const most = fullShade(runs, name);
    const focused = table.contains(document.activeElement);
    menu.input.value = name;
    about.textContent = `${grid.about} ${run.scored}`;
    const buttonOf = grid.values.map((row, l) => row.map((value, n) => {
      const here = l === layer && n === head;
      const starred = grid.marked[l][n];
      const label = `Layer ${l}, head ${n}: ${decimal(value ?? NaN, 3)}${starred ? ", stands out" : ""}`;
      const one = button(decimal(value ?? NaN, 3), () => opened(l, n), { "aria-pressed": here, "aria-label": label, title: label });
      one.append(make("span", { className: "star" }, starred ? "\u2605" : ""));
      return one;
    }));
    const columns = make("tr", {}, make("th", { scope: "col" }, "layer"), ...buttonOf[0].map((_, n) =>
      make("th", { scope: "col" }, `head ${n}`)));
    const rows = buttonOf.map((row, l) => make("tr", {}, make("th", { scope: "row" }, String(l)), ...row.map((one, n) =>
      shaded(make("td", {}, one), grid.values[l][n] / most))));
    table.setAttribute("aria-label", `${scoreTitle(name)}, every head of ${run.name}`);
    table.replaceChildren(make("thead", {}, columns), make("tbody", {}, ...rows));
    if (focused) buttonOf[layer][head].focus();
  }

  return { element: make("div", {}, make("div", { className: "controls" }, menu), scroll, about), draw };
}
