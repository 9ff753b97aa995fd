"use strict";
// Moves the place at which a chart's table shows values: pointer, touch, and the arrow, Home, End and Escape keys.
// Texts are set as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);

for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const chart = data[figure.dataset.chart];
  if (chart && chart.names.length) connect(figure, chart);
}

function connect(figure, chart) {
  const drawing = figure.querySelector("svg[role=img]");
  const cursor = drawing.querySelector(".cursor");
  const output = figure.querySelector("output");
  const rows = [...figure.querySelectorAll("tbody tr")];
  const curves = [...drawing.querySelectorAll(".curve")];
  const last = chart.names.length - 1;
  let place = last;

  function show(next) {
    place = Math.max(0, Math.min(last, next));
    cursor.setAttribute("x1", chart.pixels[place]);
    cursor.setAttribute("x2", chart.pixels[place]);
    output.textContent = chart.names[place];
    rows.forEach((row, i) => { row.lastElementChild.textContent = chart.values[i][place]; });
  }

  function hide() {
    show(last);
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
  }

  function nearest(event) {
    const box = drawing.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * drawing.viewBox.baseVal.width;
    const distance = chart.pixels.map((pixel) => Math.abs(pixel - x));
    return distance.indexOf(Math.min(...distance));
  }

  drawing.addEventListener("pointermove", (event) => show(nearest(event)));
  drawing.addEventListener("pointerdown", (event) => show(nearest(event)));
  drawing.addEventListener("keydown", (event) => {
    const next = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") hide();
    else if (next !== undefined) { event.preventDefault(); show(next); }
  });

  rows.forEach((row, i) => {
    row.addEventListener("pointerenter", () => pick(i));
    row.addEventListener("pointerleave", () => pick(-1));
  });

  function pick(which) {
    figure.classList.toggle("picking", which >= 0);
    curves.forEach((curve, i) => curve.classList.toggle("picked", i === which));
  }
}
