"""From records to numbers: what pruning costs under each encoding, over the seeds of its runs, against random orders.

A run is one number everywhere: its mean over documents and, for random orders, over orders. What is said of an encoding is
the mean over its runs with its 95 % t interval, or the range of fewer than 6 runs.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from attnjax.report import style
from attnjax.tasks.ngrams import NAMES
from experiments import recorded

ORDERS = ("importance", "recomputed", "random")
Curves = Mapping[tuple[str, str, int | None], Mapping[str, Any]]
"""Records of curves by run, kind of order and its seed."""
SHARES = (0.01, 0.05)
"""What a loss may rise by, as a share of that of the whole model, in the columns that count heads."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """One encoding at one length: losses and accuracies [runs, orders, points] by kind of order, with `kept` heads.

    `correlation`: of each run, Spearman's between importance and what the loss rises by without the head alone.
    """

    encoding: str
    length: int
    kept: Float[np.ndarray, " points"]
    loss: Mapping[str, Float[np.ndarray, "runs orders points"]]
    accuracy: Mapping[str, Float[np.ndarray, "runs orders points"]]
    correlation: Float[np.ndarray, " runs"]

    @property
    def half(self) -> int:
        """The point at which half of the heads are left, or the nearest with fewer."""
        return int(np.argmax(self.kept <= self.kept[0] / 2))

    def rise(self, kind: str) -> Float[np.ndarray, " runs"]:
        """What half of the heads cost each run, in nats per byte, the mean over orders of this kind."""
        loss = self.loss[kind]
        return (loss[:, :, self.half] - loss[:, :, 0]).mean(1)

    def bare(self) -> Float[np.ndarray, " runs"]:
        """What all heads cost each run, in nats per byte: the rise of the loss with none of them left."""
        loss = self.loss["importance"][:, 0]
        return loss[:, -1] - loss[:, 0]

    def share(self, kind: str) -> Float[np.ndarray, " runs"]:
        """What half of the heads cost each run, as a share of what all of them cost it: `rise(kind) / bare()`.

        NaN where both are infinite.
        """
        with np.errstate(invalid="ignore"):
            return self.rise(kind) / self.bare()

    def removable(self, share: float) -> Float[np.ndarray, " runs"]:
        """How many heads can go by importance before the loss first rises by more than this share of it."""
        loss = self.loss["importance"][:, 0]
        above = (loss > loss[:, :1] * (1 + share)) | np.isinf(loss)
        last = np.maximum(np.where(above.any(1), np.argmax(above, axis=1), len(self.kept)) - 1, 0)
        return self.kept[0] - self.kept[last]


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """The cells of each length, by encoding in the order of the package, and what the records say of the experiment.

    `absent`: encodings that cannot be measured at a length, and why. `ngrams`: the losses of n-gram models of the training
    bytes by length and name.
    """

    lengths: tuple[int, int]
    cells: Mapping[int, list[Cell]]
    absent: Mapping[str, str]
    about: Mapping[str, Any]
    runs: list[Mapping[str, Any]]
    ngrams: Mapping[int, Mapping[str, float]]

    @property
    def heads(self) -> int:
        """Of the whole model."""
        return self.runs[0]["layers"] * self.runs[0]["heads"]


def read(path: pathlib.Path) -> Results:
    """The numbers of a file of records.

    Raises ValueError for a file without a finished run, with a damaged line, or with runs that cannot be compared.
    """
    return recorded.read(path, "head pruning", _results)


def _results(tables: list[dict[str, Any]]) -> Results:
    runs = {table["run"]: table for table in tables if table.get("kind") == "run"}
    if not runs:
        raise ValueError("there is no run in these records; measure some first, see --runs")
    shapes = {(run["layers"], run["heads"], run["trained"]) for run in runs.values()}
    if len(shapes) > 1:
        raise ValueError(f"runs of one experiment have one size and one trained length, got {sorted(shapes)}")
    ((_, _, trained),) = shapes
    seeds = collections.Counter((run["encoding"], run["seed"], run.get("data_seed")) for run in runs.values())
    if twice := sorted({encoding for (encoding, *_), count in seeds.items() if count > 1}):
        raise ValueError(
            f"several runs of one encoding have the same seeds ({', '.join(twice)}): they are of different cells"
        )
    about = recorded.about(tables)
    names = sorted({run["encoding"] for run in runs.values()}, key=lambda name: (style.order(name), name))
    mine = [table for table in tables if table.get("run") in runs]
    lengths = (trained, 2 * trained)
    absent = {table["encoding"]: table["reason"] for table in mine if table["kind"] == "absent"}
    there = {length: [name for name in names if length == trained or name not in absent] for length in lengths}
    cells = {length: [_cell(mine, name, length) for name in there[length]] for length in lengths}
    levels = {one["length"]: {name: one[name] for name in NAMES} for one in tables if one.get("kind") == "ngrams"}
    return Results(lengths, cells, absent, about, list(runs.values()), levels)


def _cell(tables: list[dict[str, Any]], encoding: str, length: int) -> Cell:
    here = [table for table in tables if table["encoding"] == encoding and table.get("length") == length]
    curves = {(table["run"], table["order"], table["order_seed"]): table for table in here if table["kind"] == "curve"}
    heads = {table["run"]: table for table in here if table["kind"] == "heads"}
    runs = sorted(heads, key=lambda run: (heads[run]["seed"], run))
    kept = {tuple(table["kept"]) for table in curves.values()}
    if len(kept) != 1:
        raise ValueError(f"the curves of {encoding} at length {length} have different numbers of heads")

    table = lambda number: {
        kind: recorded.numbers([_rows(curves, run, kind, number) for run in runs]) for kind in ORDERS
    }
    scores = lambda run: (recorded.numbers(heads[run][name]) for name in ("normalized", "ablation"))
    correlation = [_rank_correlation(*scores(run)) for run in runs]
    return Cell(encoding, length, np.array(kept.pop(), float), table("loss"), table("accuracy"), np.array(correlation))


def _rank_correlation(x: Float[np.ndarray, "L N"], y: Float[np.ndarray, "L N"]) -> float:
    """Return Spearman's rho of two scores of the same heads."""
    return float(stats.spearmanr(np.ravel(x), np.ravel(y)).statistic)


def _rows(curves: Curves, run: str, kind: str, number: str) -> list[list[float]]:
    """The curves of one run and kind of order, by seed."""
    found = {seed or 0: curve[number] for (of, order, seed), curve in curves.items() if (of, order) == (run, kind)}
    return [found[seed] for seed in sorted(found)]
