// Elements and controls. Text from anywhere becomes a text node or a property, never markup; the content security policy
// would refuse an inline handler or style, so listeners and styles are set through the object model.

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "role") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A choice among [value, label] pairs.
function choice(label, options, value, change) {
  const select = make("select", {}, ...options.map(([key, text]) => make("option", { value: key }, text)));
  select.value = value;
  select.addEventListener("change", () => change(select.value));
  return control(label, select);
}

function control(label, input, ...more) {
  const element = make("label", { className: "control" }, make("span", {}, label), input, ...more);
  element.input = input;
  return element;
}

// A slider that shows its value in words; `shown(value)` makes them.
function slider(label, { min, max, step, value, shown }, change) {
  const input = make("input", { type: "range", min, max, step });
  const output = make("output");
  const element = control(label, input, output);
  element.set = (next) => {
    input.value = next;
    output.textContent = shown(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    element.set(input.value);
    change(Number(input.value));
  });
  element.set(value);
  return element;
}

function tickbox(label, checked, change) {
  const input = make("input", { type: "checkbox", checked });
  input.addEventListener("change", () => change(input.checked));
  const element = make("label", { className: "control tick" }, input, make("span", {}, label));
  element.input = input;
  return element;
}

function button(label, act, properties = {}) {
  const element = make("button", { type: "button", ...properties }, label);
  element.addEventListener("click", act);
  return element;
}

// One of several buttons is pressed.
function buttons(label, options, value, change) {
  const made = options.map(([key, text]) => button(text, () => { press(key); change(key); }));
  const press = (key) => made.forEach((one, i) => one.setAttribute("aria-pressed", options[i][0] === key));
  press(value);
  const element = make("div", { className: "control buttons", role: "group", "aria-label": label },
    make("span", {}, label), make("div", { className: "row" }, ...made));
  return element;
}

// A decimal with a real minus sign, and no sign on zero.
function decimal(value, digits) {
  if (!Number.isFinite(value)) return value < 0 ? "\u2212\u221e" : "\u2013";
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "\u2212");
}

// A table of numbers [rows, columns] whose cells are shaded: a value of `most` has the full shade. `boundary`: columns before each line.
function numberTable(title, { rows, columns, values, most = 1, boundary = [], corner = "", told }) {
  const head = make("tr", {}, make("th", { scope: "col" }, corner), ...columns.map((name, j) =>
    marked(make("th", { scope: "col" }, name), boundary, j)));
  const body = values.map((row, i) => make("tr", {}, make("th", { scope: "row" }, rows[i]), ...row.map((value, j) => {
    const cell = shaded(make("td", {}, decimal(value, 2)), value / most);
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
