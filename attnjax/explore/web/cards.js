// The tokens as cards in a row. They are moved by dragging their handle with a pointer or a finger, or by two buttons; their
// words can be edited.

const MOST_TOKENS = 8;
const MOST_LETTERS = 24;

// `list` is an element; `change(tokens)` is told of every new order and of every new word.
function tokenCards(list, status, change) {
  let tokens = [];
  const cards = new Map();

  function set(next) {
    tokens = next;
    for (const [id, card] of cards) if (!next.some((token) => token.id === id)) { card.remove(); cards.delete(id); }
    next.forEach((token) => { if (!cards.has(token.id)) cards.set(token.id, card(token)); });
    arrange(null);
    name();
  }

  // Elements in the order of the tokens. A card that is being dragged stays where it is, and the others pass it: an
  // element that is taken out of the document loses its pointer.
  function arrange(held) {
    const order = tokens.map((token) => cards.get(token.id));
    const at = order.indexOf(held);
    if (at < 0) { list.append(...order); return; }
    held.before(...order.slice(0, at));
    held.after(...order.slice(at + 1));
  }

  function name() {
    tokens.forEach((token, place) => {
      const { input, left, right, remove } = cards.get(token.id).parts;
      const word = token.text || "empty token";
      input.setAttribute("aria-label", `Token ${place + 1}`);
      left.setAttribute("aria-label", `Move ${word} to the left`);
      right.setAttribute("aria-label", `Move ${word} to the right`);
      remove.setAttribute("aria-label", `Remove ${word}`);
      left.disabled = place === 0;
      right.disabled = place === tokens.length - 1;
      remove.disabled = tokens.length === 1;
    });
  }

  function move(id, to, held = null) {
    const from = tokens.findIndex((token) => token.id === id);
    const place = Math.max(0, Math.min(tokens.length - 1, to));
    if (from === place) return;
    const next = [...tokens];
    next.splice(place, 0, ...next.splice(from, 1));
    tokens = next;
    arrange(held ?? cards.get(id));
    name();
    status.textContent = `${next[place].text || "The empty token"} is now token ${place + 1} of ${next.length}.`;
    change(tokens);
  }

  function drop(id) {
    const place = placeOf(id);
    set(tokens.filter((token) => token.id !== id));
    cards.get(tokens[Math.min(place, tokens.length - 1)].id).parts.input.focus();
    change(tokens);
  }

  const placeOf = (id) => tokens.findIndex((token) => token.id === id);

  function card(token) {
    const handle = make("span", { className: "handle", "aria-hidden": "true" }, "\u2807");
    const input = make("input", { type: "text", value: token.text, maxLength: MOST_LETTERS, spellcheck: false });
    input.setAttribute("autocomplete", "off");
    input.setAttribute("autocapitalize", "off");
    const left = button("\u2039", () => move(token.id, placeOf(token.id) - 1));
    const right = button("\u203a", () => move(token.id, placeOf(token.id) + 1));
    const remove = button("\u00d7", () => drop(token.id));
    const element = make("li", { className: "card" }, handle, input, left, right, remove);
    element.parts = { input, left, right, remove };
    input.addEventListener("input", () => {
      tokens = tokens.map((other) => (other.id === token.id ? { ...other, text: input.value } : other));
      name();
      change(tokens);
    });
    draggable(handle, element, (x, y) => {
      const over = tokens.findIndex((other) => inside(cards.get(other.id), x, y));
      if (over >= 0) move(token.id, over, element);
    });
    return element;
  }

  return { set };
}

function inside(element, x, y) {
  const box = element.getBoundingClientRect();
  return x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
}

// `over(x, y)` for every place that a pointer visits between going down on the handle and up again.
function draggable(handle, element, over) {
  let pointer = null;
  handle.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    pointer = event.pointerId;
    handle.setPointerCapture(pointer);
    element.classList.add("dragged");
  });
  handle.addEventListener("pointermove", (event) => {
    if (event.pointerId === pointer) over(event.clientX, event.clientY);
  });
  const end = (event) => {
    if (event.pointerId !== pointer) return;
    pointer = null;
    element.classList.remove("dragged");
  };
  handle.addEventListener("pointerup", end);
  handle.addEventListener("pointercancel", end);
}
