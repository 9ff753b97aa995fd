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
