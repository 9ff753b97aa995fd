"""From records to scores: what one run reached, at every length and as one number; and curves over runs.

A run counts with its last evaluation. The score of a run *past* training is the mean over the test lengths beyond the
training range, and *within* it over those inside. Validation examples are in no curve and no score: choices were made on
them, and of a text they are other passages.

    state                         counts as
    done                          what it measured
    failed                        the worst score there is, at every length: nothing right, or an infinite loss
    running, preempted, pending,  unfinished: shown, and in no statistic
    absent, damaged, or nothing measured
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnjax.report import intervals
from attnjax.report.groups import Panel, Variant
from attnjax.report.intervals import Estimate
from attnjax.report.metrics import Metric, has_answers
from attnjax.report.records import SPLITS, Result, Run

POINTS = 200
"""Most points of a learning curve."""
FIT = 0.99
"""A run has fitted its task if it answers this share of the examples within the training range exactly."""


@dataclass(frozen=True)
class Curve:
    """Median and interval, or range, of a variant at every x where it has a value; `count[x]` runs enter it."""

    variant: Variant
    x: Float[np.ndarray, " X"]
    value: Float[np.ndarray, " X"]
    low: Float[np.ndarray, " X"]
    high: Float[np.ndarray, " X"]
    count: Float[np.ndarray, " X"]

    @property
    def estimates(self) -> dict[float, Estimate]:
        """The estimate at each x."""
        columns = zip(self.x, self.value, self.low, self.high, self.count, strict=True)
        return {float(x): intervals.estimate(value, low, high, int(count)) for x, value, low, high, count in columns}


@dataclass(frozen=True)
class Scored:
    """The scores of a variant under one metric.

    `curve[r, x]` belongs to run `runs[r]` at `lengths[x]`; `past`, the mean over the lengths `beyond` training, and
    `within` are one number per run, NaN where a record is lost. Failed runs are among `runs`.
    """

    variant: Variant
    metric: Metric
    runs: tuple[Run, ...]
    lengths: tuple[int, ...]
    beyond: tuple[int, ...]
    curve: Float[np.ndarray, "R X"]
    past: Float[np.ndarray, " R"]
    within: Float[np.ndarray, " R"]


def outcome(run: Run) -> str:
    """What a run counts as: "done", "failed" or "unfinished"."""
    if run.state == "failed":
        return "failed"
    return "done" if run.state in ("done", "unknown") and run.final else "unfinished"


def metric_keys(panel: Panel) -> set[str]:
    """The keys of all metrics that any run of a task recorded at its end."""
    return {result.metric for run in members(panel) for result in run.final}


def members(panel: Panel) -> list[Run]:
    """All runs of a task."""
    return [run for variant in panel.variants for run in variant.runs]


def points(panel: Panel, metric: Metric) -> set[tuple[int, str]]:
    """Every (length, split) but validation at which any run of a task recorded this metric at its end."""
    rows = (row for run in members(panel) for row in run.final if row.metric == metric.key)
    return {(row.length, row.split) for row in rows if row.split != "validation"}


def values(results: Iterable[Result], metric: Metric) -> dict[tuple[int, str], float]:
    """{(length, split): value} of one metric but validation. The last record of a length counts; not finite is the worst."""
    return {
        (row.length, row.split): row.value if np.isfinite(row.value) else metric.worst
        for row in results
        if row.metric == metric.key and row.split != "validation"
    }


def scored(panel: Panel, variant: Variant, metric: Metric) -> Scored:
    """The scores of all runs of a variant that ended, well or badly."""
    where = points(panel, metric)
    lengths = tuple(sorted({length for length, _ in where}))
    beyond = tuple(sorted(length for length, split in where if split == "test" and length > panel.trained[1]))
    inside = [length for length in lengths if shortest(panel) <= length <= panel.trained[1]]
    runs = tuple(run for run in variant.runs if outcome(run) != "unfinished")
    curve = np.full((len(runs), len(lengths)), metric.worst)
    past = np.full(len(runs), metric.worst if beyond else np.nan)
    within = np.full(len(runs), metric.worst if inside else np.nan)
    for r, run in enumerate(runs):
        if outcome(run) == "done":
            measured = values(run.final, metric)
            curve[r] = [at(measured, length) for length in lengths]
            past[r] = average([measured.get((length, "test"), np.nan) for length in beyond])
            within[r] = average([at(measured, length) for length in inside])
    return Scored(variant, metric, runs, lengths, beyond, curve, past, within)


def shortest(panel: Panel) -> int:
    """The shortest length within training: of tasks that predict the next token any, since longer windows begin with it."""
    return panel.trained[0] if has_answers(metric_keys(panel)) else 0


def at(measured: dict[tuple[int, str], float], length: int) -> float:
    """The value at a length, of the test examples where there are some, else of the others; NaN where it is lost."""
    found = [measured[length, split] for split in reversed(SPLITS) if (length, split) in measured]
    return found[0] if found else np.nan


def average(numbers: list[float]) -> float:
    """The mean, NaN where one is lost or there is none."""
    return float(np.mean(numbers)) if numbers else np.nan


def curve(variant: Variant, x: Float[np.ndarray, " X"], scores: Float[np.ndarray, "R X"]) -> Curve:
    """Median and ends at every x; NaN is a run without a value there, and points without any run are left out."""
    present = np.sum(~np.isnan(scores), axis=0)
    ranked = np.sort(scores, axis=0)
    ends = np.full((3, len(x)), np.nan)
    for runs in sorted({int(n) for n in present} - {0}):
        here = present == runs
        ends[:, here] = intervals.median_and_ends(ranked[:runs, here])
    kept = present > 0
    value, low, high = ends[:, kept]
    return Curve(variant, x[kept], value, low, high, present[kept].astype(float))


def learning(variant: Variant) -> Curve:
    """Training loss against steps; failed runs count until they fail, and a loss that is not finite is infinite.

    A run that ended because it had fitted its task counts with its last loss from then on: left out, the curve would go on as
    that of the runs that learn slowly.
    """
    losses = [{step: loss if np.isfinite(loss) else np.inf for step, loss in run.losses} for run in variant.runs]
    steps = thinned(sorted({step for found in losses for step in found}))
    table = np.array([held(run, found, steps) for run, found in zip(variant.runs, losses, strict=True)])
    return curve(variant, np.array(steps, float), table.reshape(len(losses), len(steps)))


def held(run: Run, losses: dict[int, float], steps: list[int]) -> list[float]:
    """The losses of a run at these steps: NaN where it has none, the last one after the end of a run that had fitted."""
    last = max(losses, default=0)
    rest = losses[last] if run.fitted_at is not None and losses else np.nan
    return [losses.get(step, rest if step > last else np.nan) for step in steps]


def thinned(steps: list[int]) -> list[int]:
    """At most `POINTS` of the steps, equally far apart in the list, the first and the last among them."""
    places = np.linspace(0, len(steps) - 1, min(len(steps), POINTS)).astype(int)
    return [steps[place] for place in dict.fromkeys(places.tolist())]
