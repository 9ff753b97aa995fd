"""Tables and figure of README.md from records.jsonl: `python -m experiments.study smollm2`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from experiments.context_extension.methods import LABELS
from experiments.study import markdown

RECORDS = Path(__file__).with_name("records.jsonl")
TRAINED, BIN = 8192, 1024
BASELINE = "streaming_llm"
"""The figure shows losses less those of this method, so that easy and hard passages of the text do not show."""
DRAWN = {"leaky_rerope+log_n": "#c43e00", "self_extend": "#049f69", "yarn": "#074a8d", "none": "#272727"}


def read() -> tuple[dict[str, np.ndarray], pd.DataFrame, dict[str, Any]]:
    """Returns losses [bins] by method, the needles, a row each, and the agreement with transformers."""
    records = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    of = lambda kind: [one for one in records if one["kind"] == kind]
    losses = {one["method"]: np.array(one["losses"]) for one in of("losses")}
    needles = pd.DataFrame(of("needles")).explode(["losses", "identified", "greedy"])
    needles["depth"] = needles.groupby(["length", "method", "prompt"]).cumcount()
    return losses, needles.astype({"losses": float, "identified": int, "greedy": int}), of("agreement")[0]


def tables() -> dict[str, str]:
    """Returns the marked places of README.md."""
    losses, needles, agreement = read()
    half, n = TRAINED // BIN // 2, TRAINED // BIN
    rows = [[LABELS[m], x[:n].mean(), x[half:n].mean(), x[n:].mean()] for m, x in losses.items()]
    columns = ["method", "0 to 8,192", "4,096 to 8,192", "8,192 to 16,384"]
    by_method = pd.DataFrame(rows, columns=columns).sort_values(columns[-1])
    groups = needles.groupby(["length", "method"])
    by_depth = groups.apply(lambda g: g.groupby("depth")["losses"].mean())
    by_depth.columns = [f"{depth} %" for depth in (10, 30, 50, 70, 90)]
    prompts = needles.groupby(["length", "method", "prompt"])["losses"].mean().groupby(["length", "method"])
    by_depth["all depths (3 prompts)"] = [f"{p.mean():.2f} ({p.min():.2f} to {p.max():.2f})" for _, p in prompts]
    for name in ("identified", "greedy"):
        by_depth[name] = [f"{found} of 15" for found in groups[name].sum()]
    by_depth["mean"] = groups["losses"].mean()
    found = by_depth.reset_index().sort_values(["length", "mean"]).drop(columns="mean")
    found["method"] = found["method"].map(LABELS)
    found["length"] = [f"{length:,}" for length in found["length"]]
    least = next(k for k in range(16) if stats.binom.sf(k - 1, 15, 0.2) <= 0.05)
    agreed = f"{agreement['nats']:.0e} nats in {agreement['tokens']} tokens (transformers {agreement['transformers']})"
    right = groups["identified"].sum()
    told = [right[2 * TRAINED, name] for name in ("dual_chunk", "self_extend", "leaky_rerope")]
    trained = right[TRAINED, "none"]
    return {
        "told": f"{told[0]}, {told[1]} and {told[2]} of 15 cases ({trained} as trained, 3 by guessing)",
        "losses": markdown(by_method),
        "needles": markdown(found, "{:.2f}".format),
        "agreement": agreed,
        "guessing": f"Fewer than {least} of 15",
    }


def figure() -> Any:
    """Draws losses by position, less those of `BASELINE`."""
    from matplotlib.figure import Figure

    losses, *_ = read()
    made = Figure(figsize=(8, 4.2), layout="constrained")
    axis = made.subplots()
    middle = (np.arange(2 * TRAINED // BIN) + 0.5) * BIN
    axis.axvspan(0, TRAINED, color="#eef1f4", linewidth=0)
    axis.axhline(0, color="#24292f", linewidth=0.8)
    for method, values in losses.items():
        colour, difference = DRAWN.get(method), values - losses[BASELINE]
        axis.plot(
            middle, difference, color=colour or "#c5cbd2", linewidth=2 if colour else 1, zorder=3 if colour else 2
        )
    places = {
        "none": (11100, 0.24),
        "yarn": (13000, 0.07),
        "leaky_rerope+log_n": (12400, -0.13),
        "self_extend": (12400, -0.17),
    }
    for method, place in places.items():
        axis.text(*place, LABELS[method], color=DRAWN[method])
    axis.set(xlim=(0, 2 * TRAINED), ylim=(-0.2, 0.3), xticks=range(0, 2 * TRAINED + 1, TRAINED // 2))
    axis.set(xlabel="position, tokens (shaded: trained length)", ylabel="nats per token, less StreamingLLM")
    axis.annotate("better", (300, -0.18), (300, -0.06), arrowprops={"arrowstyle": "->"})
    axis.spines[["top", "right"]].set_visible(False)
    return made
