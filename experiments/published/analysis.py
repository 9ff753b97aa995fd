"""Published numbers past the trained lengths, and ours beside them, at the same multiples of the trained length.

A published mean is over every length of a range; ours is over every length from the first to the last tested one in it, linear
between tested ones. Losses of language models, whose units differ, are compared by their rise over that at the trained length.
"""

from typing import Any

import numpy as np
import pandas as pd

from attnjax.records import stored
from attnjax.records.table import table
from attnjax.report.style import order, style
from experiments.study import HERE, Frame, curves, label, load, markdown, median, ngrams, untrained_rows

FOLDER = HERE / "published"
SWEEPS = ("kazemnejad", "press", "huang", "huang_copy")
"""Folders with the runs that were made for the comparison."""
LOSSES = {"perplexity_nonoverlapping": "loss_nonoverlapping", "perplexity_sliding": "loss_sliding"}
VARIANTS = {"copy": "cmc", "reverse": "mc"}
"""The variant of a task where a config gives none."""


def published() -> Frame:
    """Returns every published number past the trained lengths; of losses the rise over that at the trained length, in nats."""
    found = pd.read_csv(FOLDER / "published.csv", keep_default_na=False)
    same = ["paper", "task", "encoding", "metric", "trained"]
    start = found[found.low == found.trained].drop_duplicates(same).set_index(same).value
    start = found[same].apply(tuple, axis=1).map(start)
    loss = found.metric.isin(list(LOSSES))
    rise = pd.Series(np.log(found.value / start), found.index)
    return found.assign(value=found.value.where(~loss, rise))[found.low > found.trained]


def runs(sweep: str) -> Frame:
    """Returns the scores of a sweep with the options of tasks as published.csv has them."""
    frame = load(f"published/{sweep}")
    given = frame.get("task.options.variant", pd.Series("", frame.index)).fillna("")
    variant = given.where(given != "", frame.task.map(VARIANTS).fillna(""))
    policy = frame.get("positions.policy", pd.Series("arange", frame.index))
    return frame.assign(options=[f"variant={name}" * bool(name) for name in variant], policy=policy)


def over(scores: Frame, low: float, high: float) -> Frame:
    """Returns the mean of each run over all whole lengths from the first to the last tested one in a range; NaN for none.

    Example:
      >>> over(pd.DataFrame([[1.0, 0.0]], columns=[10, 14]), 9, 15).tolist()
      [0.5]
    """
    tested = [n for n in scores.columns if low <= n <= high]
    if not tested:
        return pd.Series(np.nan, scores.index)
    every = np.arange(tested[0], tested[-1] + 1)
    return scores[tested].apply(lambda row: np.interp(every, tested, row).mean(), axis=1)


def without_error(sweep: str) -> set[str]:
    """Returns the runs that answered every example of their last validation, as Huang et al. count."""
    frame: Frame = table(stored.read(FOLDER / sweep))
    frame = frame[(frame.split == "validation") & (frame.metric == "exact_match")]
    last: Frame = frame[frame.step == frame.groupby("run").step.transform("max")]
    return {str(run) for run, worst in last.groupby("run").value.min().items() if worst >= 1.0}


def beside(cell: Any, frame: Frame) -> dict[str, Any]:
    """Returns our scores of one published number, by seed, and which runs fit; nothing where we have none."""
    metric = LOSSES.get(cell.metric, cell.metric)
    same = (frame.task == cell.task) & (frame.options == cell.options) & (frame.encoding == cell.encoding)
    scores = curves(frame[same], "run", "longest", metric=metric)
    if scores.empty:
        return {}
    ours, near = scores.index.get_level_values("longest")[0], 0.05 if cell.metric in LOSSES else 0.0
    values = over(scores, *(ours * end / cell.trained for end in (cell.low * (1 - near), cell.high * (1 + near))))
    if values.isna().all():
        return {}
    if cell.metric in LOSSES:
        return {"values": values - scores[ours], "fitted": len(values), "fits": True}
    fits = scores.loc[:, scores.columns <= ours].mean(axis=1).round(12) >= 0.99
    return {"values": values, "fitted": int(fits.sum()), "fits": fits.mean() >= 0.5}


def pairs() -> Frame:
    """Returns a row per published number that one of the sweeps has a result beside: each once, in the order of `SWEEPS`."""
    cells, rows = published(), []
    for sweep in SWEEPS:
        frame = runs(sweep)
        found = [(cell, beside(cell, frame)) for cell in cells.itertuples()]
        rows += [{**cell._asdict(), "sweep": sweep, **ours} for cell, ours in found if ours]
    found = pd.DataFrame(rows).drop_duplicates("Index")
    return found.assign(ours=[values.median() for values in found["values"]])


def orders(pairs: Frame) -> str:
    """Returns how many pairs of encodings that fit stand in the published order, by task."""
    told = []
    for task, cells in pairs[pairs.fits].groupby("task", sort=False):
        signs = []
        for _, group in cells.groupby(["paper", "options", "metric", "low"]):
            theirs, ours = (group[name].round(12).to_numpy() for name in ("value", "ours"))
            i, j = np.triu_indices(len(group), 1)
            signs += list(np.sign(theirs[i] - theirs[j]) * np.sign(ours[i] - ours[j]))
        if signs:
            tied = f" ({signs.count(0)} tied)" if 0 in signs else ""
            told.append(f"{signs.count(1)} of {len(signs)} on {task.replace('_', ' ')}{tied}")
    return ", ".join(told)


def copying(pairs: Frame) -> dict[str, str]:
    """Returns the table of Kazemnejad et al., our narrow models that fit and wider ones, and RoPE on whole heads."""
    wide, whole = runs("kazemnejad_wide"), runs("kazemnejad_whole")
    rows, turned = [], []
    fitting = pairs[(pairs.sweep == "kazemnejad") & pairs.fits]
    for cell in fitting.sort_values(["options", "value"], ascending=[False, False]).itertuples():
        kind = f"{cell.task} {cell.options.removeprefix('variant=')}"
        ours = median(cell.values, 3) + ("" if cell.fitted == 6 else f" ({cell.fitted} of 6 fit)")
        told = [median(found["values"], 3) if (found := beside(cell, frame)) else "" for frame in (wide, whole)]
        rows.append((kind, label(cell.encoding), f"{cell.value:g}", ours, told[0]))
        turned += [f"{told[1]} on {kind}"] if told[1] else []
    table = pd.DataFrame(rows, columns=["task", "encoding", "published", "ours, heads of 16", "heads of 64"])
    return {"copying": markdown(table), "whole": " and ".join(turned)}


def formal(pairs: Frame) -> Frame:
    """Returns the table of Huang et al.: the median of all runs, and the mean of those that they would count."""
    rows = []
    for cell in pairs[pairs.paper.str.startswith("Huang") & (pairs.low > 100)].itertuples():
        kept = cell.values[cell.values.index.get_level_values("run").isin(without_error(cell.sweep))]
        positions = "none" if cell.encoding == "nope" else "learned, random start"
        counted = f"{kept.mean():.3f} ({len(kept)} of {len(cell.values)})"
        rows.append((cell.task, positions, f"{cell.value:g}", median(cell.values, 3), counted))
    names = ["task", "positions", "published", "ours, all runs", "ours, counted as theirs"]
    return pd.DataFrame(rows, columns=names)


MULTIPLES = (1512, 3072, 12512)
"""Published lengths, in tokens, that the page shows of text."""


def text(pairs: Frame) -> Frame:
    """Returns the table of Press et al.: published and our rise of the loss for each encoding."""
    found = pairs[(pairs.task == "text") & pairs.low.isin(MULTIPLES)]
    told = [f"{theirs:.2f}, {ours:.2f}" for theirs, ours in zip(found.value, found.ours, strict=True)]
    windows = found.metric.map({"perplexity_sliding": "sliding", "perplexity_nonoverlapping": "separate"})
    found = found.assign(told=told, windows=windows, tokens=found.low, encoding=found.encoding.map(label))
    return found.pivot(index=["windows", "tokens"], columns="encoding", values="told").reset_index()


def flat() -> str:
    """Returns the median losses of ALiBi and RoPE on text at the trained length, and that of 5-grams."""
    losses = curves(runs("press"), "encoding", metric="loss_sliding")[64].groupby("encoding").median()
    return f"ALiBi has {losses['alibi']:.3f}, RoPE {losses['rope']:.3f} and a 5-gram {ngrams('published/press')['5-gram']:.3f}"


def tables() -> dict[str, str]:
    """Returns the tables of the page."""
    found = pairs()
    return {
        "count": str(len(found)),
        "orders": orders(found),
        **copying(found),
        "formal": markdown(formal(found)),
        "text": markdown(text(found)),
        "alibi": flat(),
        "rows_copy": str(untrained_rows(2 * 20 + 1)),
        "rows_text": str(untrained_rows(64)),
    }


def figure() -> Any:
    """Returns ours against theirs: shares of right answers, and rises of losses; hollow and grey where ours did not fit."""
    from attnjax.report.drawing import FAINT, UNFITTED, new_figure

    found = pairs()
    made, axes = new_figure(11, 5.2, 1, 2)
    for axis, loss in zip(axes, (False, True), strict=True):
        cells = found[(found.task == "text") == loss]
        for cell in sorted(cells.itertuples(), key=lambda one: order(one.encoding)):
            look = style(cell.encoding)
            fill = {} if cell.fits else {"markerfacecolor": "none"}
            axis.plot([cell.value], [cell.ours], look.marker, color=look.color if cell.fits else UNFITTED, **fill)
        axis.set(title="rise of the loss, nats" if loss else "exact match", xlabel="published", ylabel="ours")
        if loss:
            axis.set_xscale("symlog", linthresh=0.1)
            axis.set_yscale("symlog", linthresh=0.1)
            ticks = [-0.1, 0, 0.1, 0.3, 1, 3]
            axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axis.set_yticks(ticks, [f"{x:g}" for x in ticks])
        ends = axis.get_xlim()
        axis.plot(ends, ends, color=FAINT, linewidth=0.8, zorder=0)
        for encoding in sorted(set(cells.encoding), key=order):
            axis.plot([], [], style(encoding).marker, color=style(encoding).color, label=style(encoding).label)
        axis.legend(loc="best")
    return made
