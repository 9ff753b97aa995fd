"""The numbers of a report as typed values: `summarise` computes them; tables, figures and the page only print them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnjax.records.values import finite
from attnjax.report.comparisons import Difference, Improvement
from attnjax.report.examples import by_position
from attnjax.report.groups import Panel
from attnjax.report.intervals import Estimate
from attnjax.report.metrics import Metric
from attnjax.report.reach import Reach
from attnjax.report.records import Sweep
from attnjax.report.scores import Curve, Scored

NGRAMS = ("unigram", "bigram", "trigram")
"""Baselines of a text that manifests may have."""


@dataclass(frozen=True)
class Row:
    """What a table says about one variant under one metric.

    `past` and `within` are the medians beyond and inside the training range, None where nothing was measured; the rest is
    about `past`. `over_examples` is the mean over runs and examples or documents, with an interval over both, None where the
    runs stored no scores of examples or are fewer than 6. `best` is the best single run and `fitted` the mean over only those
    runs that fitted their task: neither is a result, and both are what others print.
    """

    scored: Scored
    curve: Curve
    past: Estimate | None
    within: Estimate | None
    over_examples: Estimate | None
    mean: float
    iqm: float
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

    @property
    def unfitted(self) -> bool:
        """Whether the variant did not learn its task: fewer than half of its runs that ended fitted it.

        What it does past the training lengths then says nothing: it is greyed, not ranked and not compared.
        """
        return self.fit is not None and 2 * self.fit < self.ended


@dataclass(frozen=True)
class Task:
    """One task: its metrics, a row per metric and variant, and what compares the variants.

    `reach` is empty where no metric says how far a run reaches. `improvement[i, j]` is the probability that a run of
    variant i beats one of variant j past training, and `differences` are those of pairs of runs, both under the first metric
    and of variants that fitted. `chance[metric]` is what guessing scores at the lengths of the metric's curves, and
    `baselines[metric][name]` what an n-gram model does; both are absent where nobody recorded them.
    """

    panel: Panel
    metrics: tuple[Metric, ...]
    rows: Mapping[str, tuple[Row, ...]]
    counts: tuple[Counts, ...]
    reach: tuple[Reach, ...]
    chance: Mapping[str, Float[np.ndarray, " X"]]
    baselines: Mapping[str, Mapping[str, Float[np.ndarray, " X"]]]
    improvement: Mapping[tuple[int, int], Improvement]
    differences: tuple[Difference, ...]
    learning: tuple[Curve, ...]

    @property
    def unfitted(self) -> frozenset[int]:
        """The variants that did not learn the task."""
        return frozenset(place for place, count in enumerate(self.counts) if count.unfitted)

    def label(self, place: int) -> str:
        """The name of a variant, with the words "not fitted" where they apply."""
        name = self.panel.variants[place].label
        return f"{name} (not fitted)" if self.counts[place].unfitted else name


@dataclass(frozen=True)
class Overall:
    """One name over several tasks: the stratified IQM past training, a stratum per task, and the ids of its runs.

    `unfitted`: on how many of the tasks it was not fitted.
    """

    label: str
    encoding: str
    number: int
    metric: Metric
    tasks: int
    unfitted: int
    runs: tuple[str, ...]
    past: Estimate
    mean: float


POSITION_METRICS = (("loss", "loss, nats per byte"), ("accuracy", "accuracy per byte"))


@dataclass(frozen=True)
class Positions:
    """A metric at each position of windows of one length: the place of each variant that stored it, and its curve."""

    length: int
    curves: tuple[tuple[int, Curve], ...]


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
    """The median of an accuracy on the scale where guessing is 0 and perfect is 1."""
    floor = guess(task, row)
    known = row.past is not None and row.scored.metric.higher and finite(floor) and floor < 1
    return (row.past.value - floor) / (1 - floor) if known and row.past else np.nan


def levels_of(task: Task, metric: Metric) -> dict[str, Float[np.ndarray, " X"]]:
    """The levels that a figure of a metric shows beside the curves, by name: chance, and n-gram models."""
    chance = task.chance.get(metric.key)
    return ({} if chance is None else {"chance": chance}) | dict(task.baselines.get(metric.key, {}))


def is_cut(metric: Metric) -> bool:
    """Whether the value at the trained length is that of longer windows cut to it: these must end at the same bytes."""
    return metric.key == "loss_sliding"


def positions_of(task: Task) -> dict[str, Positions]:
    """Loss and accuracy by position in the longest windows of a text, by name; empty where no run stored them."""
    first = task.metrics[0].key if task.metrics else ""
    rows, found = task.rows.get(first, ()), {}
    if not rows or not any(metric.key.startswith("loss_") for metric in task.metrics):
        return {}
    length = rows[0].scored.lengths[-1] if rows[0].scored.lengths else 0
    for name, _ in POSITION_METRICS:
        curves = [
            (place, by_position(row.scored, length, name, task.panel.trained[1])) for place, row in enumerate(rows)
        ]
        known = tuple((place, curve) for place, curve in curves if curve is not None)
        found |= {name: Positions(length, known)} if known else {}
    return found
