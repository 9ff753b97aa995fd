"""How far every encoding reaches on six tasks, which fit, and RoPE less sinusoidal positions on each.

The protocol is the docstring of configs/length_table.py: what fits, what holds, and when an encoding is called best.
"""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from attnjax.registry import ENCODINGS
from attnjax.report.intervals import of_runs
from attnjax.report.metrics import metric
from attnjax.report.scores import RISE, length_factor
from attnjax.report.significance import holm, sign_flip
from experiments.study import Frame, baselines, curves, label, load, markdown, mean, ngrams, untrained_rows

NAME = "length_table"
TASKS = {"copy": 16, "sort": 8, "bucket_sort": 16, "induction": 16, "markov": 32, "text": 32}
"""The tasks in their order, and the longest trained length of each."""
EXACT = ("copy", "sort", "bucket_sort")
"""Tasks whose metric is exact match; that of the others is the loss in nats."""


def metric_of(task: str) -> str:
    """Returns the metric of a task."""
    return "exact_match" if task in EXACT else "loss_sliding"


def scores(task: str, frame: Frame) -> Frame:
    """Returns the metric of a task: a row per (encoding, seed), a column per length."""
    found = curves(frame[frame.task == task], "encoding", metric=metric_of(task))
    return found.loc[[name for name in ENCODINGS if name in found.index.levels[0]]]


def fits(task: str, scores: Frame, levels: Frame) -> Frame:
    """Returns which runs fit the trained lengths: exact match of 0.99, a loss near the best possible, or below bigrams."""
    longest = TASKS[task]
    if task in EXACT:
        return scores.loc[:, scores.columns <= longest].mean(axis=1).round(12) >= 0.99
    if task == "induction":
        return scores[longest] <= RISE
    bigram = levels[(levels.task == task) & (levels.length == longest)].bigram.item()
    return scores[longest] < bigram if task == "text" else scores[longest] <= bigram + RISE


def column(task: str, frame: Frame, levels: Frame) -> Frame:
    """Returns a row per encoding: runs, fitted, the median length factor and its interval, its rank where half of the runs
    fit, and Holm's p of its differences by seed to the encoding with the largest median.
    """
    known = scores(task, frame)
    factors = length_factor(known, TASKS[task], metric(metric_of(task))).unstack()
    fit = fits(task, known, levels).unstack()
    found = pd.DataFrame([of_runs(row) for row in factors.to_numpy()], factors.index)
    found = found.rename(columns={"value": "factor"}).drop(columns="kind").assign(fitted=fit.sum(axis=1), task=task)
    found = found.loc[list(known.index.unique("encoding"))]
    fitted = found.index[2 * found.fitted >= found.runs]
    largest = max(fitted, key=lambda name: (found.factor[name], factors.loc[name].mean()))
    ahead = factors.loc[largest] - factors.loc[[name for name in fitted if name != largest]]
    p = holm([sign_flip(row) if row.mean() >= 0 else 1.0 for row in ahead.to_numpy()])
    rank = pd.Series(stats.rankdata(-found.factor[fitted]), fitted)
    return found.assign(rank=rank, p=pd.Series([*p, np.nan], [*ahead.index, largest]), largest=found.index == largest)


def summary() -> Frame:
    """Returns the columns of all tasks below each other, indexed by task and encoding."""
    frame, levels = load(NAME), baselines(NAME)
    found = pd.concat([column(task, frame, levels) for task in TASKS])
    return found.reset_index(names="encoding").set_index(["task", "encoding"])


def named(rows: Frame) -> str:
    """Returns the encodings of a column's rows, as people say them."""
    return ", ".join(map(label, rows.index)) or "none"


def reach(found: Frame) -> Frame:
    """Returns a row per task: the largest median factor, the encodings not told from it, and those that did not fit."""
    rows = []
    for task, longest in TASKS.items():
        column = found.loc[task]
        (name,) = column.index[column.largest]
        best, equal = column.loc[name], column[(column.p > 0.05) & column["rank"].notna()]
        ends = f" [{best.low:.2f}, {best.high:.2f}]" if best.low < best.high else ""
        told = named(equal)
        if 2 * len(equal) > len(column):
            lower = column[column.p <= 0.05]
            told = f"all that fit but {named(lower)}" if len(lower) else "all that fit"
        rows.append(
            (task, longest, f"{label(name)} {best.factor:.2f}{ends}", told, named(column[column["rank"].isna()]))
        )
    return pd.DataFrame(rows, columns=["task", "trained to", "largest factor", "not told from it", "not fitted"])


def contrasts(frame: Frame) -> Frame:
    """Returns RoPE less sinusoidal positions on each task: the mean over the lengths past training, paired by seed."""
    rows = []
    for task, longest in TASKS.items():
        found = scores(task, frame)
        past = found.loc[:, found.columns > longest].mean(axis=1)
        values = (past["rope"] - past["sinusoidal"]).to_numpy()
        better = int((values > 0).sum() if task in EXACT else (values < 0).sum())
        unit = "exact match" if task in EXACT else "nats"
        rows.append((task, unit, mean(values, 3), f"{better} of {len(values)}", sign_flip(values)))
    found = pd.DataFrame(rows, columns=["task", "unit", "RoPE less sinusoidal", "RoPE better in", "p (Holm)"])
    return found.assign(**{"p (Holm)": holm(list(found["p (Holm)"]))})


def untrained() -> str:
    """Returns the fewest and the most rows of T5's table that the training of a task leaves out."""
    tokens = {
        task: 2 * n + 1 if task in EXACT else 2 * n - 1 if task == "induction" else n for task, n in TASKS.items()
    }
    rows = [untrained_rows(n) for n in tokens.values()]
    return f"{min(rows)} to {max(rows)} of 32 rows"


def of_text(frame: Frame) -> str:
    """Returns the lowest median loss of text at the trained length, and that of 4-grams."""
    losses = scores("text", frame)[TASKS["text"]].groupby("encoding").median()
    return f"the best has {losses.min():.3f} at 32 bytes, a 4-gram model {ngrams(NAME)['4-gram']:.3f}"


def agreement(found: Frame) -> str:
    """Returns the smallest and the largest Kendall's tau_b of two tasks' median factors, over the encodings that fit both."""
    ranked = found.factor.where(found["rank"].notna()).unstack("task")
    pairs = [ranked[[one, other]].dropna() for one, other in combinations(TASKS, 2)]
    taus = [stats.kendalltau(both.iloc[:, 0], both.iloc[:, 1]).statistic for both in pairs]
    return f"{min(taus):.2f} to {max(taus):.2f}"


def tables() -> dict[str, str]:
    """Returns the marked places of the page."""
    found, frame = summary(), load(NAME)
    return {
        "reach": markdown(reach(found)),
        "contrasts": markdown(contrasts(frame)),
        "agreement": agreement(found),
        "encodings": str(found.index.unique("encoding").size),
        "text": of_text(frame),
        "untrained": untrained(),
    }


def figure() -> Any:
    """Returns a heat map: a row per encoding, a column per task; cells that did not fit are grey, with how many runs did."""
    from attnjax.report.drawing import FAINT, new_figure

    found = summary()
    names = list(dict.fromkeys(found.index.get_level_values("encoding")))
    factors = found.factor.where(found["rank"].notna()).unstack("task").loc[names, list(TASKS)]
    made, (axis,) = new_figure(8.4, 8.8)
    axis.set_facecolor("#e3e7eb")
    colors = np.log2(factors.clip(lower=0.5))
    image = axis.imshow(colors, aspect="auto", cmap="cividis", vmin=-1, vmax=3)
    for (y, encoding), (x, task) in ((a, b) for a in enumerate(names) for b in enumerate(TASKS)):
        value, row = factors.loc[encoding, task], found.loc[task, encoding]
        text = f"{row.fitted:.0f}/{row.runs:.0f}" if np.isnan(value) else f"{value:.3g}"
        color = FAINT if np.isnan(value) else "white" if value < 2.5 else "black"
        axis.text(x, y, text, ha="center", va="center", color=color, fontsize=9)
    axis.set_xticks(range(len(TASKS)), TASKS)
    axis.set_yticks(range(len(names)), [label(name) for name in names])
    axis.xaxis.tick_top()
    axis.grid(visible=False)
    axis.set_xlabel("median length factor; grey: fewer than half of the runs fit (how many did)")
    bar = made.colorbar(image, ax=axis, pad=0.02, label="length factor")
    bar.set_ticks([-1, 0, 1, 2, 3], labels=["0", "1", "2", "4", "8"])
    return made
