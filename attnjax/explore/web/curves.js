// Loss against position for one or two runs: an SVG with the training length shaded, a cursor, and a table of values.

const PLOT = { width: 720, height: 320, left: 56, right: 704, top: 14, bottom: 272 };

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Means over `width` neighbours, never across the end of training, where a step may be the finding.
function smooth(loss, width) {
  const trained = loss.context.map((context) => context <= loss.trained);
  const half = Math.floor(width / 2);
  return loss.mean.map((value, i) => {
    let [sum, count] = [0, 0];
    for (let j = Math.max(0, i - half); j <= Math.min(loss.mean.length - 1, i + half); j += 1) {
      if (trained[j] === trained[i] && loss.mean[j] !== null) { sum += loss.mean[j]; count += 1; }
    }
    return value === null || !count ? null : sum / count;
  });
}

// About `count` round numbers between two ends.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

function path(points) {
  let drawn = "";
  let pen = "M";
  points.forEach((point, i) => {
    if (point) drawn += `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    // A line of no length is a dot where caps are round: a point without neighbours is seen too.
    if (point && pen === "M" && !points[i + 1]) drawn += "h0";
    pen = point ? "L" : "M";
  });
  return drawn;
}

function lossChart(runs) {
  const losses = runs.map((run) => run.loss);
  const longest = Math.max(...losses.flatMap((loss) => loss.context));
  const shortest = Math.min(...losses.flatMap((loss) => loss.context));
  const trained = losses.map((loss) => loss.trained);
  const causal = runs.every((run) => run.causal);
  const output = make("output");
  const cells = runs.map(() => make("td"));
  let width = longest >= 64 ? 9 : 1;
  let place = longest;
  let smoothed = [];

  const drawing = svg("svg", { viewBox: `0 0 ${PLOT.width} ${PLOT.height}`, role: "img", tabindex: 0,
    "aria-label": "Loss by position. The arrow keys move along the positions." });
  const cursor = svg("line", { class: "cursor", y1: PLOT.top, y2: PLOT.bottom });
  const x = (value) => PLOT.left + (value - shortest) / Math.max(1, longest - shortest) * (PLOT.right - PLOT.left);

  function draw() {
    smoothed = losses.map((loss) => smooth(loss, width));
    const values = smoothed.flat().filter((value) => value !== null);
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    const room = 0.06 * (high - low || 1);
    const y = (value) => PLOT.bottom - (value - low + room) / (high - low + 2 * room || 1) * (PLOT.bottom - PLOT.top);
    const grid = ticks(low - room, high + room, 5).flatMap((value) => [
      svg("line", { class: "grid", x1: PLOT.left, x2: PLOT.right, y1: y(value), y2: y(value) }),
      svg("text", { x: PLOT.left - 8, y: y(value) + 5, "text-anchor": "end" }, String(value)),
    ]);
    const marks = (longest > shortest ? ticks(shortest, longest, 8) : [longest]).filter(Number.isInteger).map((value) =>
      svg("text", { x: x(value), y: PLOT.bottom + 20, "text-anchor": "middle" }, String(value)));
    const shaded = trained.map((end) => svg("rect", { class: "trained", x: PLOT.left, y: PLOT.top,
      height: PLOT.bottom - PLOT.top, width: Math.max(0, x(Math.min(end, longest)) - PLOT.left) }));
    const curves = runs.map((run, n) => svg("path", { class: `line ${run.look}`, "stroke-dasharray": n ? "9 5" : "none",
      d: path(smoothed[n].map((value, i) => (value === null ? null : [x(losses[n].context[i]), y(value)]))) }));
    const middle = (PLOT.left + PLOT.right) / 2;
    const axis = svg("text", { x: middle, y: PLOT.height - 4, "text-anchor": "middle" },
      `${causal ? "tokens read" : "position"} (shaded: up to the longest in training, ${[...new Set(trained)].join(" and ")})`);
    drawing.replaceChildren(...shaded, ...grid, ...marks, axis, ...curves, cursor);
    go(place);
  }

  function go(next) {
    place = Math.max(shortest, Math.min(longest, Math.round(next)));
    cursor.setAttribute("x1", x(place));
    cursor.setAttribute("x2", x(place));
    output.textContent = String(place);
    losses.forEach((loss, n) => {
      const i = loss.context.indexOf(place);
      const known = i >= 0 && loss.mean[i] !== null;
      cells[n].textContent = known
        ? `${smoothed[n][i].toFixed(3)} (here alone ${loss.mean[i].toFixed(3)}${loss.error[i] === null ? "" : ` \u00b1 ${loss.error[i].toFixed(3)}`})` : "\u2013";
    });
  }

  const point = (event) => {
    const box = drawing.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * PLOT.width - PLOT.left) / (PLOT.right - PLOT.left);
    go(shortest + share * (longest - shortest));
  };
  drawing.addEventListener("pointermove", point);
  drawing.addEventListener("pointerdown", point);
  drawing.addEventListener("keydown", (event) => {
    const next = { ArrowLeft: place - 1, ArrowRight: place + 1, PageDown: place - 16, PageUp: place + 16, Home: shortest,
      End: longest }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    go(next);
  });

  const head = make("tr", {}, make("th", { scope: "col" }, "run"), make("th", { scope: "col" }, "loss at ", output));
  const rows = runs.map((run, n) => {
    const stroke = svg("line", { class: "line", x1: 1, x2: 39, y1: 6, y2: 6, "stroke-dasharray": n ? "9 5" : "none" });
    const swatch = svg("svg", { class: `swatch ${run.look}`, viewBox: "0 0 40 12", "aria-hidden": "true" }, stroke);
    return make("tr", {}, make("th", { scope: "row" }, swatch, ` ${run.name}`), cells[n]);
  });
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
  const smoothing = slider("Mean over neighbouring positions", { min: 1, max: 33, step: 2, value: width, shown: String },
    (value) => { width = value; draw(); });
  draw();
  return make("figure", { className: "chart" }, drawing,
    make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Losses at one position" }, table),
    make("div", { className: "controls" }, smoothing));
}
