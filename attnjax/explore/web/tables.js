// Tables of numbers whose cells are shaded by their value, with a line at the head boundary.

// `values` are [rows, columns]; a value of `most` has the full shade. `boundary`: columns before each line.
function numberTable(title, { rows, columns, values, most = 1, digits = 2, boundary = [], corner = "", told }) {
  const head = make("tr", {}, make("th", { scope: "col" }, corner), ...columns.map((name, j) =>
    marked(make("th", { scope: "col" }, name), boundary, j)));
  const body = values.map((row, i) => make("tr", {}, make("th", { scope: "row" }, rows[i]), ...row.map((value, j) => {
    const cell = shaded(make("td", {}, decimal(value, digits)), value / most);
    if (told) cell.title = told(i, j);
    return marked(cell, boundary, j);
  })));
  const table = make("table", { className: "numbers" }, make("thead", {}, head), make("tbody", {}, ...body));
  const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": title }, table);
  return make("figure", { className: "matrix" }, make("figcaption", {}, title), scroll);
}

function marked(cell, boundary, column) {
  cell.classList.toggle("cut", boundary.includes(column + 1));
  return cell;
}

// A cell as strong as a share in -1 .. 1; negative ones have another colour.
function shaded(cell, share) {
  const strength = Number.isFinite(share) ? Math.min(1, Math.abs(share)) : 0;
  cell.classList.add(share < 0 ? "cold" : "warm");
  cell.style.setProperty("--share", `${(100 * strength).toFixed(1)}%`);
  return cell;
}
