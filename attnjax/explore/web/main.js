// The page comes to life: the notebook always, and the runs that were explored.

const explored = JSON.parse(document.getElementById("data").textContent);

notebook(document.getElementById("notebook"));
if (explored.runs.length) runs(document.getElementById("runs"), explored);

function runs(root, { runs: found, first }) {
  let together = true;
  const others = (mine) => (together ? panels.filter((_, n) => n !== mine) : []);
  const panels = found.map((run, n) => runPanel(run, found, first,
    (state) => others(n).forEach((panel) => panel.set(state)),
    (i, j) => others(n).forEach((panel) => panel.go(i, j))));
  if (found.length > 1) {
    root.append(tickbox("both runs show the same score, text, layer, head and token", true, (value) => { together = value; }));
  }
  root.append(make("div", { className: "panels" }, ...panels.map((panel) => panel.element)));
  const paintAll = () => panels.forEach((panel) => panel.draw());
  paintAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);
}
