"""From runs to cells: which runs fit, how far each reaches, which encoding is best, and whether tasks order encodings alike.

    fit rate         share of runs that fit the trained lengths, with the interval of Clopper and Pearson (1934)
    length factor    of each run, see `attnjax.report.reach`; of a cell the median, with the interval of `report.intervals`

A cell in which fewer than half of the runs fit has no rank and is compared with none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from attnjax.records.values import DECIMALS
from attnjax.report.agreement import tau_b
from attnjax.report.intervals import INTERVAL, Estimate, of_runs
from attnjax.report.reach import RISE, length_factor
from attnjax.report.scores import FIT
from attnjax.report.significance import holm, sign_flip
from attnjax.report.style import order
from attnjax.typing import Float
from experiments.length_table.records import Kept, parsed
from experiments.recorded import Record

ALPHA = 0.05
KINDS = {
    "copy": "counting",
    "sort": "algorithmic",
    "bucket_sort": "algorithmic",
    "induction": "retrieval",
    "markov": "in context",
    "text": "language",
}
"""The tasks of the table in their order, and what kind each is."""
OPTIMA = {"induction": 0.0}
"""Best losses that are known without a baseline."""


@dataclass(frozen=True)
class Cell:
    """An encoding on a task: its runs by seed, which of them fit, and their length factors."""

    encoding: str
    runs: tuple[Kept, ...]
    fits: tuple[bool, ...]
    factors: Float[np.ndarray, " R"]

    @property
    def fitted(self) -> bool:
        """Whether half of the runs fit, so that what they do past the trained lengths says something."""
        return 2 * sum(self.fits) >= len(self.fits)

    @property
    def fit_rate(self) -> Estimate:
        """The share of runs that fit, and its exact interval."""
        count = len(self.fits)
        ends = stats.binomtest(sum(self.fits), count).proportion_ci(method="exact")
        return Estimate(sum(self.fits) / count, float(ends.low), float(ends.high), INTERVAL, count)

    @property
    def factor(self) -> Estimate:
        """The median length factor of the runs, and its interval."""
        return of_runs(self.factors)

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates of the runs: one, where the cell was tuned."""
        return tuple(sorted({one.learning_rate for one in self.runs}))


@dataclass(frozen=True)
class Column:
    """A task: its cells by encoding, the largest factor that its tests can show, ranks, and the comparison with the largest.

    `against[encoding]` is the p, after Holm's correction, of its difference to `largest`, the encoding with the largest median.
    """

    task: str
    cells: Mapping[str, Cell]
    limit: float
    ranks: Mapping[str, float]
    largest: str
    against: Mapping[str, float]

    @property
    def best(self) -> str:
        """The encoding with the largest median if its differences to all others can be told from 0, else ""."""
        return self.largest if self.against and max(self.against.values()) <= ALPHA else ""

    def level(self, encoding: str) -> bool:
        """Whether a cell that fits cannot be told from the one with the largest median, or is that one."""
        return encoding == self.largest or self.against.get(encoding, 0.0) > ALPHA


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau_b of the factors of two tasks, over the encodings that fit both; NaN where one of them is all ties."""

    tasks: tuple[str, str]
    encodings: int
    tau: float


@dataclass(frozen=True)
class Results:
    """The table: its encodings in order, its tasks, and how far tasks agree."""

    encodings: tuple[str, ...]
    columns: tuple[Column, ...]
    agreements: tuple[Agreement, ...]


def results(tables: Sequence[Record]) -> Results:
    """The numbers of a file of records, whichever runs it has."""
    runs = parsed(tables)
    if not runs:
        raise ValueError("it has no runs")
    columns = tuple(column(name, [one for one in runs if one.task == name]) for name in tasks_of(runs))
    encodings = sorted({one.encoding for one in runs}, key=lambda name: (order(name), name))
    return Results(tuple(encodings), columns, tuple(agreement(*pair) for pair in combinations(columns, 2)))


def tasks_of(runs: Sequence[Kept]) -> list[str]:
    """The tasks that have runs, those of the table first and in its order."""
    known = list(KINDS)
    return sorted(
        {one.task for one in runs}, key=lambda name: (known.index(name) if name in known else len(known), name)
    )


def column(task: str, runs: Sequence[Kept]) -> Column:
    """The cells of one task, ranked and compared."""
    names = sorted({one.encoding for one in runs}, key=lambda name: (order(name), name))
    cells = {name: cell(name, [one for one in runs if one.encoding == name]) for name in names}
    fitted = [name for name in names if cells[name].fitted]
    medians = [cells[name].factor.value for name in fitted]
    ranks = dict(zip(fitted, map(float, stats.rankdata(np.negative(medians))), strict=True)) if fitted else {}
    largest = max(fitted, key=lambda name: (cells[name].factor.value, cells[name].factors.mean()), default="")
    others = [name for name in fitted if name != largest]
    adjusted = holm([compared(cells[largest], cells[name]) for name in others])
    limit = max(one.lengths[-1] / one.longest for one in runs)
    return Column(task, cells, limit, ranks, largest, dict(zip(others, adjusted, strict=True)))


def cell(encoding: str, runs: Sequence[Kept]) -> Cell:
    """One cell. Raises ValueError for two runs of the same seeds: they are of different cells, and would be paired twice."""
    if len({one.seeds for one in runs}) < len(runs):
        raise ValueError(f"{encoding} on {runs[0].task} has several runs of one seed: give one cell of each encoding")
    ordered = tuple(sorted(runs, key=lambda one: one.seeds))
    return Cell(encoding, ordered, tuple(map(fits, ordered)), np.array([reached(one) for one in ordered]))


def fits(run: Kept) -> bool:
    """Whether a run fits the trained lengths, by the rule that the config says."""
    if not run.values:
        return False
    inside = [value for length, value in zip(run.lengths, run.values, strict=True) if length <= run.longest]
    if run.measure.higher:
        return round(float(np.mean(inside)), DECIMALS) >= FIT
    if run.task == "text":
        return run.bigram is not None and inside[-1] < run.bigram
    best = OPTIMA.get(run.task, run.bigram)
    return best is not None and inside[-1] <= best + RISE


def reached(run: Kept) -> float:
    """The length factor of a run, 0 for one that failed. Raises ValueError where no test has the longest trained length."""
    if run.longest not in run.lengths:
        raise ValueError(f"run {run.run} was not tested at {run.longest}, its longest trained length")
    if not run.values:
        return 0.0
    past = np.array(run.lengths) >= run.longest
    return length_factor(np.array(run.lengths)[past] / run.longest, np.array(run.values)[past], run.measure)


def compared(one: Cell, other: Cell) -> float:
    """The exact p of the paired differences of the factors of two cells.

    1 where fewer than two pairs share their seeds, and where the mean difference is below 0: then the first is not ahead.
    """
    places = {run.seeds: place for place, run in enumerate(other.runs)}
    pairs = [(i, places[run.seeds]) for i, run in enumerate(one.runs) if run.seeds in places]
    if len(pairs) < 2:
        return 1.0
    ahead = np.array([one.factors[i] - other.factors[j] for i, j in pairs])
    return sign_flip(ahead) if ahead.mean() >= 0 else 1.0


def agreement(one: Column, other: Column) -> Agreement:
    """How far two tasks order encodings alike."""
    both = [name for name in one.ranks if name in other.ranks]
    factors = [[column.cells[name].factor.value for name in both] for column in (one, other)]
    return Agreement((one.task, other.task), len(both), tau_b(*factors))
