"""Tables and figure of README.md from the records: `python -m experiments.study context_extension`."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnjax.report.intervals import Estimate, of_mean, of_runs_and_examples
from experiments.context_extension.methods import FREQUENCIES, LABELS, METHODS, WINDOWED
from experiments.study import markdown

HERE = Path(__file__).parent
TRAINED = {"text": 128, "markov": 64}
LONGEST = {"text": 1024, "markov": 512}
DRAWN = {
    "none": "#272727",
    "streaming_llm": "#074a8d",
    "rerope+log_n": "#c43e00",
    "leaky_rerope+log_n": "#b07800",
    "yarn": "#049f69",
    "drope": "#6a3fa0",
}
"""Methods with a line of their own; the others are pale."""
INK, PALE = "#24292f", "#d0d6dc"


def read(name: str) -> pd.DataFrame:
    """Returns the records "text" or "markov"."""
    return pd.read_csv(HERE / f"{name}.csv.xz", keep_default_na=False)


def by_run(records: pd.DataFrame, method: str, measure: str, length: int, stage: str = "zero-shot") -> np.ndarray:
    """Returns one number a run: the mean over places, which are depths, or chains."""
    keys = {"method": method, "measure": measure, "length": length, "stage": stage}
    return records[(records[list(keys)] == list(keys.values())).all(axis=1)].groupby("run")["value"].mean().to_numpy()


def chains(records: pd.DataFrame, method: str, length: int) -> np.ndarray:
    """Returns losses [runs, chains]."""
    own = records[(records["method"] == method) & (records["measure"] == "context") & (records["length"] == length)]
    return own.pivot_table(index="run", columns="place", values="value").to_numpy()


def interval(found: Estimate | None, digits: int, most: float = math.inf) -> str:
    """Returns a mean with its 95 % interval, cut off at `most`; nothing for none."""
    if found is None:
        return ""
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {min(found.high, most):.{digits}f}]"


def tables() -> dict[str, str]:
    """Returns the marked places of README.md."""
    text, markov = read("text"), read("markov")
    grams = {name: by_run(text, name, "context", 1024)[0] for name in ("trigram", "4-gram", "5-gram")}
    return {
        "methods": markdown(by_method(text, markov)),
        "ngrams": ", ".join(f"{name} {loss:.3f}" for name, loss in grams.items()),
        "answer": answer(text),
        "answer_markov": answer_markov(markov),
        "fitted": fitted(markov),
    }


def by_method(text: pd.DataFrame, markov: pd.DataFrame) -> pd.DataFrame:
    """Returns losses and facts found in text by each method, and what context gains on chains."""
    found = gains(markov)

    def cell(method: str, measure: str, stage: str) -> str:
        if stage == "tuned" and method not in FREQUENCIES:
            return ""
        mean = of_mean(by_run(text, method, measure, 1024, stage))
        return interval(mean, 3) if measure == "context" else interval(mean, 2, most=1.0)

    columns = {
        "loss": ("context", "zero-shot"),
        "found": ("found", "zero-shot"),
        "tuned: loss": ("context", "tuned"),
        "tuned: found": ("found", "tuned"),
    }
    rows = [[LABELS[m], *(cell(m, *key) for key in columns.values()), interval(found[m], 3)] for m in METHODS]
    return pd.DataFrame(rows, columns=["method", *columns, "chains: gain"])


def gains(records: pd.DataFrame) -> dict[str, Estimate | None]:
    """Returns for each method what the loss of the same symbols changes by, from windows of 64 as trained to 512."""
    as_trained = chains(records, "none", 64)
    return {method: of_runs_and_examples(chains(records, method, 512) - as_trained) for method in METHODS}


def answer_markov(records: pd.DataFrame) -> str:
    """Returns the numbers behind the answer on chains."""
    found = gains(records)
    listed = ", ".join(f"{LABELS[one]} {interval(found[one], 3)}" for one in ("none", *WINDOWED))
    others = [method for method in METHODS if method not in ("none", *WINDOWED)]
    paying = {m: gain.value for m in others if (gain := found[m]) and gain.high < 0}
    most = min(paying, key=paying.__getitem__)
    least = by_run(records, "bigram", "context", 512).mean() - by_run(records, "bigram", "context", 64).mean()
    return (
        f"{listed}; below 0 under {len(paying)} of {len(others)} methods that see all, most under "
        f"{LABELS[most]}, {interval(found[most], 3)}; the best prediction, counting pairs, gains {least:.3f}"
    )


def fitted(records: pd.DataFrame) -> str:
    """Returns how many runs on chains come within 0.05 nats of the best prediction at 64 symbols."""
    losses, best = by_run(records, "none", "context", 64), by_run(records, "bigram", "context", 64).mean()
    return f"{(losses <= best + 0.05).sum()} of {len(losses)}"


def answer(records: pd.DataFrame) -> str:
    """Returns the numbers behind the answer on text."""
    of = lambda method, measure, length=1024: by_run(records, method, measure, length)
    named = ("none", "streaming_llm", "rerope+log_n", "leaky_rerope+log_n", "drope")
    listed = [f"{LABELS[m]} {of(m, 'context').mean():.2f} and {of(m, 'found').mean():.2f}" for m in named]
    short = f"{of('none', 'context', 128).mean():.2f} and {of('none', 'found', 128).mean():.2f}"
    unseen = records[(records["method"] == "streaming_llm") & records["place"].between(0.25, 0.75)]
    outside = by_run(unseen, "streaming_llm", "found", 1024).mean()
    price = of_mean(of("rerope+log_n", "context") - of("none", "context", 128))
    return (
        f"Loss after 1,024 bytes, and share of the facts found: {', '.join(listed)}. StreamingLLM finds {outside:.2f} of "
        f"those that it does not see. After 128 bytes RoPE as trained has "
        f"{short}, and ReRoPE with log n has {interval(price, 3)} nats more at 1,024"
    )


def figure() -> Any:
    """Draws loss by position on text, facts found by length, and loss by position on Markov chains."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(12, 4.6), layout="constrained")
    axes = made.subplots(1, 3)
    panels = (("text", "position"), ("text", "found"), ("markov", "position"))
    titles = ("Python's source: loss", "Python's source: facts found", "Markov chains: loss")
    for axis, title, panel in zip(axes, titles, panels, strict=True):
        draw(axis, *panel)
        axis.set_title(title, loc="left", fontweight="bold")
    lines = [
        axes[0].plot([], [], color=colour, linewidth=2, label=LABELS[method])[0] for method, colour in DRAWN.items()
    ]
    pale = axes[0].plot([], [], color=PALE, label="other methods")
    dotted = axes[0].plot(
        [], [], color=INK, dashes=(1, 1.5), label="5-gram of the training text; best prediction of chains"
    )
    made.legend(handles=[*lines, *pale, *dotted], loc="outside upper center", ncols=4, frameon=False)
    return made


def draw(axis: Any, name: str, measure: str) -> None:
    """Draws a measure of all methods without training, shaded up to the trained length."""
    records, place = read(name), "length" if measure == "found" else "place"
    means = records[(records["measure"] == measure) & (records["stage"] == "zero-shot")].groupby(["method", place])[
        "value"
    ]
    lines = means.mean()
    half = np.diff(lines["none"].index[:2])[0] / 2 if measure == "position" else 0
    for method in METHODS:
        named = method in DRAWN
        style = {"linewidth": 2, "zorder": 3} if named else {"linewidth": 1, "zorder": 2}
        axis.plot(lines[method].index + half, lines[method], color=DRAWN.get(method, PALE), **style)
    if measure == "position":
        bar = lines["5-gram" if name == "text" else "bigram"]
        axis.plot(bar.index + half, bar, color=INK, dashes=(1, 1.5))
    axis.axvspan(0, TRAINED[name], color="#eef1f4", linewidth=0)
    axis.set(xlim=(0, LONGEST[name]), xlabel=f"{'bytes' if name == 'text' else 'symbols'} (shaded: trained length)")
    axis.set_ylabel("share found (higher is better)" if measure == "found" else "nats (lower is better)")
    axis.spines[["top", "right"]].set_visible(False)
