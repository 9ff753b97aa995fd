"""From records to scores: what each run reached at every length, and in three numbers: past training, within it, how far.

A run counts with its last evaluation. Validation examples are in no score: choices were made on them.

    state                         counts as
    done                          what it measured
    failed                        the worst score there is, at every length: nothing right, or an infinite loss
    running, preempted, pending,  unfinished: in no statistic
    absent, damaged, or nothing measured

    past            the mean over the test lengths beyond the training range
    within          the mean over the lengths inside it
    length factor   the largest tested L' / L such that the run holds at all tested lengths from the longest in training, L, on:
                    loss <= loss(L) + 0.05 nats, or exact match >= 0.9; 0 for a run that does not hold at L itself
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attnjax.records.typed import SPLITS, Run
from attnjax.records.values import DECIMALS, as_dict, finite
from attnjax.report.groups import Panel, Variant
from attnjax.report.metrics import Metric, has_answers, metric

FIT = 0.99
"""A run has fitted a task with exact answers if it answers this share of the examples within the training range."""
RISE, SHARE = 0.05, 0.9
"""Nats that a loss may rise over that at the longest training length; share of answers that must be right."""
EXACT, SLIDING = "exact_match", "loss_sliding"
OPTIMUM = (("markov", "bigram"),)
"""Tasks of which a baseline is the best prediction there is: the pairs that were counted in the window."""
NGRAMS = ("unigram", "bigram", "trigram")
"""Baselines of a text that manifests may have."""
SAME = 1e-4
"""Relative differences of baselines below which they are of the same windows, computed on another machine."""


@dataclass(frozen=True)
class Scores:
    """The scores of all runs of a task that ended, under one metric.

    curve: a row for each run, by its id, a column for each tested length; NaN where a record is lost.
    beyond: the test lengths past training.
    runs: columns past, within and factor, a row for each run.
    """

    metric: Metric
    curve: pd.DataFrame
    beyond: tuple[int, ...]
    runs: pd.DataFrame

    @property
    def lengths(self) -> list[int]:
        """The tested lengths, in order."""
        return [int(length) for length in self.curve.columns.tolist()]


def outcome(run: Run) -> str:
    """Return what a run counts as: "done", "failed" or "unfinished"."""
    if run.state == "failed":
        return "failed"
    return "done" if run.state in ("done", "unknown") and run.final else "unfinished"


def metric_keys(panel: Panel) -> set[str]:
    """Return the keys of all metrics that any run of a task recorded at its end."""
    return {result.metric for run in panel.runs for result in run.final}


def measured(panel: Panel, metric: Metric) -> pd.DataFrame:
    """Return what the runs of a task measured under a metric at their end: columns run, length, split, value.

    Validation is left out, a value that is not finite is the worst, and of several rows of a length the one that counts comes
    last: that of test examples, and the one that was written last.
    """
    rows = [
        (run.id, row.length, row.split, row.value if np.isfinite(row.value) else metric.worst)
        for run in panel.runs
        for row in sorted(run.final, key=lambda row: SPLITS.index(row.split))
        if row.metric == metric.key and row.split != "validation"
    ]
    return pd.DataFrame(rows, columns=["run", "length", "split", "value"])


def scores(panel: Panel, metric: Metric) -> Scores:
    """Return the scores of all runs of a task that ended, well or badly."""
    ended = {run.id: outcome(run) for run in panel.runs if outcome(run) != "unfinished"}
    rows, longest = measured(panel, metric), panel.trained[1]
    curve = rows.groupby(["run", "length"]).value.last().unstack().reindex(pd.Index(ended, name="run"))
    curve.loc[[run for run, end in ended.items() if end == "failed"]] = metric.worst
    lengths, tested = [int(length) for length in curve.columns.tolist()], set(rows.length[rows.split == "test"])
    beyond = tuple(length for length in lengths if length > longest and length in tested)
    # Tasks that predict the next token are fitted at any length within: longer windows begin with shorter ones.
    shortest = panel.trained[0] if has_answers(metric_keys(panel)) else 0
    inside = [length for length in lengths if shortest <= length <= longest]
    mean = lambda columns: curve[columns].mean(axis=1, skipna=False) if columns else pd.Series(np.nan, curve.index)
    numbers = pd.DataFrame(
        {"past": mean([*beyond]), "within": mean(inside), "factor": length_factor(curve, longest, metric)}, dtype=float
    )
    return Scores(metric, curve, beyond, numbers)


def length_factor(curve: pd.DataFrame, longest: int, metric: Metric) -> pd.Series:
    """Return the length factor of each run, a row of `curve`, whose columns are lengths in ascending order.

    NaN where the longest training length was not tested, or a record from there on is lost.

    Example:
      >>> curve = pd.DataFrame([[1.0, 0.95, 0.4, 0.97]], columns=[16, 32, 64, 128])
      >>> length_factor(curve, 16, metric("exact_match")).tolist()
      [2.0]
    """
    if longest not in curve or longest <= 0:
        return pd.Series(np.nan, curve.index)
    after = curve.loc[:, np.asarray(curve.columns) >= longest]
    held = after >= SHARE if metric.higher else np.isfinite(after) & after.le(after[longest] + RISE, axis=0)
    count = held.cumprod(axis=1).sum(axis=1).to_numpy(int)
    factors = pd.Series(np.array([0, *after.columns])[count] / longest, curve.index)
    return factors.where(after.notna().all(axis=1))


def metric_of(metrics: Collection[Metric]) -> Metric | None:
    """Return the metric that says how far a run reaches: exact match, else the first loss, None without both."""
    losses = [metric for metric in metrics if metric.key.startswith("loss")]
    return next((metric for metric in metrics if metric.key == EXACT), losses[0] if losses else None)


def fitted_runs(panel: Panel) -> set[str] | None:
    """Return the runs that fitted their task, None where it has neither exact answers nor a known best prediction."""
    if EXACT in metric_keys(panel):
        within = scores(panel, metric(EXACT)).runs.within
        return None if len(within) and within.isna().all() else set(within.index[within.round(DECIMALS) >= FIT])
    longest, item = panel.trained[1], metric(SLIDING)
    best = baselines(panel.runs, item, (longest,)).get(dict(OPTIMUM).get(panel.task, ""))
    curve = scores(panel, item).curve
    if best is None or longest not in curve:
        return None
    return set(curve.index[curve[longest] <= best[longest] + RISE])


def levels(panel: Panel, item: Metric, lengths: Sequence[int]) -> dict[str, dict[int, float]]:
    """Return what guessing and n-gram models score at these lengths, by their names in words.

    An n-gram model stands beside all variants only where all that know it were tested on the same windows.
    """
    found: dict[str, dict[int, float]] = {}
    for run in panel.runs:
        chance = as_dict(run.manifest.get("chance"))
        guesses: dict[int, Any] = {n: as_dict(chance.get(str(n))).get(item.guess or "") for n in lengths}
        if item.guess and lengths and all(map(finite, guesses.values())):
            found["guessing"] = guesses
            break
    each = [known for variant in panel.variants if (known := baselines(variant.runs, item, lengths))]
    alike = all(
        one.keys() == each[0].keys()
        and all(np.isclose(one[k][n], each[0][k][n], rtol=SAME) for k in one for n in lengths)
        for one in each
    )
    optimum = dict(OPTIMUM).get(panel.task)
    return found | {
        "best possible" if name == optimum else f"{name} model": level
        for name, level in (each[0].items() if each and alike else ())
    }


def baselines(runs: Sequence[Run], item: Metric, lengths: Sequence[int]) -> dict[str, dict[int, float]]:
    """Return what n-gram models score at these lengths, from the first manifest that says it for all of them."""
    for run in runs:
        known = as_dict(run.manifest.get("baselines"))
        found = {n: as_dict(as_dict(known.get(str(n))).get(item.key)) for n in lengths}
        names = [name for name in NGRAMS if found and all(finite(level.get(name)) for level in found.values())]
        if names:
            return {name: {n: level[name] for n, level in found.items()} for name in names}
    return {}


def windows_differ(panel: Panel, item: Metric, lengths: Sequence[int]) -> bool:
    """Return whether variants know n-gram models, and not the same, so that none stands beside all of them."""
    known = any(baselines(variant.runs, item, lengths) for variant in panel.variants)
    return known and not any(name != "guessing" for name in levels(panel, item, lengths))


def learning(variant: Variant) -> pd.DataFrame:
    """Return training losses: a row for each run, a column for each step, at most 200.

    A loss that is not finite is infinite. A run that ended because it had fitted its task keeps its last loss: left out, the
    curve would go on as that of the runs that learn slowly.
    """
    losses = {run.id: {step: x if np.isfinite(x) else np.inf for step, x in run.losses} for run in variant.runs}
    steps = sorted({step for found in losses.values() for step in found})
    for run in variant.runs:
        if run.fitted_at is not None and run.losses:
            losses[run.id] |= {step: losses[run.id][run.losses[-1][0]] for step in steps if step > run.losses[-1][0]}
    table = pd.DataFrame.from_dict(losses, orient="index").reindex(columns=steps)
    places = np.linspace(0, len(table.columns) - 1, min(len(table.columns), 200)).astype(int)
    return table.iloc[:, sorted(set(places.tolist()))]
