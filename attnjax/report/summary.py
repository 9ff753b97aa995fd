"""The numbers of a report as typed values: `summarise` computes them; tables, figures and the page only print them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnjax.records.values import finite
from attnjax.report.groups import Panel
from attnjax.report.metrics import Metric
from attnjax.report.records import Sweep
from attnjax.report.scores import Curve, Scored
from attnjax.report.statistics import Estimate


@dataclass(frozen=True)
class Row:
    """What a table says about one variant under one metric.

    `past` and `within` are the IQM beyond and inside the training range, None where nothing was measured; the rest is
    about `past`. `best` is the best single run and `fitted` the mean over only those runs that fitted their task:
    neither is a result, and both are what others print.
    """

    scored: Scored
    curve: Curve
    past: Estimate | None
    within: Estimate | None
    mean: float
    median: float
    best: float
    fitted: float


@dataclass(frozen=True)
class Counts:
    """How the runs of a variant ended. `fit`: how many of `ended` fitted their task; None where it has no exact
    answers.
    """

    planned: int
    done: int
    failed: int
    fit: int | None

    @property
    def ended(self) -> int:
        """The number of runs that are done or failed."""
        return self.done + self.failed

    @property
    def unfinished(self) -> int:
        """The number of planned runs that have not ended."""
        return self.planned - self.ended


@dataclass(frozen=True)
class Task:
    """One task: its metrics, a row per metric and variant, and what compares the variants.

    `improvement[i, j]` is the probability that a run of variant i beats one of variant j past training, under the first
    metric; `chance[metric]` is what guessing scores at the lengths of the metric's curves, absent where nobody recorded
    it.
    """

    panel: Panel
    metrics: tuple[Metric, ...]
    rows: Mapping[str, tuple[Row, ...]]
    counts: tuple[Counts, ...]
    chance: Mapping[str, Float[np.ndarray, " X"]]
    improvement: Mapping[tuple[int, int], Estimate]
    learning: tuple[Curve, ...]


@dataclass(frozen=True)
class Overall:
    """One name over several tasks: the stratified IQM past training, a stratum per task, and the ids of its runs."""

    label: str
    encoding: str
    number: int
    metric: Metric
    tasks: int
    runs: tuple[str, ...]
    past: Estimate
    mean: float


@dataclass(frozen=True)
class Summary:
    """A whole sweep in numbers, with sentences about what a reader must know before believing them."""

    sweep: Sweep
    tasks: tuple[Task, ...]
    overall: tuple[Overall, ...]
    notes: tuple[str, ...]


def guess(task: Task, row: Row) -> float:
    """The score of guessing past training, NaN if no manifest has it."""
    levels = task.chance.get(row.scored.metric.key)
    if levels is None:
        return np.nan
    chosen = [level for length, level in zip(row.scored.lengths, levels, strict=True) if length in row.scored.beyond]
    return float(np.mean(chosen)) if chosen else np.nan


def above(task: Task, row: Row) -> float:
    """The IQM of an accuracy on the scale where guessing is 0 and perfect is 1."""
    floor = guess(task, row)
    known = row.past is not None and row.scored.metric.higher and finite(floor) and floor < 1
    return (row.past.value - floor) / (1 - floor) if known and row.past else np.nan
