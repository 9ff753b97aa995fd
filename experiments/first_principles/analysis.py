"""Tables and figure of README.md, from records.json."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.study import markdown

RECORDS = Path(__file__).with_name("records.json")
SHOWN = (0, 10, 20, 50, 100, 200)
EVERY = 10


def read() -> dict[str, Any]:
    """Returns the records."""
    return json.loads(RECORDS.read_text(encoding="utf-8"))


def tables() -> dict[str, str]:
    """Returns the tables of the README by name."""
    found = read()
    about, seconds = found["about"], pd.DataFrame(found["seconds"]).T
    seconds["LSTM / attention"] = (seconds["LSTM"] / seconds["attention"]).map("{:.2g}".format)
    for name in ("attention", "LSTM"):
        seconds[name] = (1000 * seconds[name]).map("{:.3g} ms".format)
    reach = pd.DataFrame(found["reach"])
    return {
        "scale": scale(found["scale"]),
        "seconds": markdown(seconds.rename_axis("tokens").reset_index()),
        "reach": markdown(reach.rename_axis("tokens").reset_index(), "{:.1g}".format),
        "about": f"{about['date']} on {about['cores']} cores of an {about['processor']} with jax {about['jax']}",
    }


def scale(found: dict[str, Any]) -> str:
    """Means over seeds at some steps; a loss is of the ten steps before, so that step 0 has none."""
    rows: list[dict[str, float]] = []
    for step in SHOWN:
        row: dict[str, float] = {"step": step}
        for name, label in (("entropy", "entropy"), ("largest", "largest weight"), ("loss", "loss")):
            place = step // EVERY - (name == "loss")
            for case in ("with", "without"):
                row[f"{label}, {case}"] = np.nan if place < 0 else float(np.mean([x[place] for x in found[case][name]]))
        rows.append(row)
    return markdown(pd.DataFrame(rows).astype({"step": int}))


def figure() -> Any:
    """Entropy while training with and without the factor, and what reaches the last token from the first."""
    from matplotlib.figure import Figure

    found, made = read(), Figure(figsize=(10, 3.6), layout="constrained")
    left, right = made.subplots(1, 2)
    for case, color in (("with", "#0072B2"), ("without", "#D55E00")):
        values = np.array(found["scale"][case]["entropy"])
        steps = EVERY * np.arange(values.shape[1])
        left.plot(steps, values.T, color=color, linewidth=0.7, alpha=0.6)
        left.plot(steps, values.mean(0), color=color, linewidth=2.2)
        left.annotate(f"{case} 1/√d", (steps[-1], values.mean(0)[-1]), (6, -3), textcoords="offset points", color=color)
    left.set(title="entropy of attention, share of its maximum", xlabel="step", ylim=(0, 1), xlim=(0, 255))
    looks = (("attention", "#0072B2"), ("LSTM, forget bias 1", "#009E73"), ("LSTM", "#D55E00"))
    for name, color in looks:
        reach = {int(T): value for T, value in found["reach"][name].items() if value > 0}
        right.plot([*reach], [*reach.values()], color=color, marker="o", linewidth=2)
        offset, side = ((-8, -3), "right") if name == "LSTM" else ((8, -3), "left")
        end = [*reach.items()][-1]
        right.annotate(name, end, offset, textcoords="offset points", color=color, ha=side)
    right.set(title="|d last output / d first token|", xlabel="tokens", xscale="log", yscale="log", xlim=(1.7, 2500))
    right.set_xticks([2, 8, 32, 128], ["2", "8", "32", "128"])
    right.set_yticks([1, 1e-8, 1e-16, 1e-24, 1e-32], ["1", "1e-8", "1e-16", "1e-24", "1e-32"])
    right.minorticks_off()
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    return made
