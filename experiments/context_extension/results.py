"""From records to numbers: what each method costs and finds at each length, without training and after it.

Units are runs where there are several, and otherwise the documents (or needles) of the one model. What is said of a method
is the mean over units with its 95 % t interval, or the range of fewer than 6.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnjax.report.intervals import Estimate, of_mean
from attnjax.tasks.ngrams import NAMES
from experiments import recorded
from experiments.context_extension.methods import FREQUENCIES, METHODS

STAGES = ("zero-shot", "tuned")
MEASURES = ("windows", "sliding", "found", "needle")
Values = Float[np.ndarray, " U"]


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """One method in one stage.

    Attributes:
      position: loss by run, document and bin of positions.
      windows, sliding: loss by length, then by run and document.
      found, needle: share of answers found and their loss by length, then by run, depth and needle.
      seconds: of each run.
    """

    method: str
    stage: str
    position: Float[np.ndarray, "R W X"]
    windows: Mapping[int, Float[np.ndarray, "R W"]]
    sliding: Mapping[int, Float[np.ndarray, "R W"]]
    found: Mapping[int, Float[np.ndarray, "R Y C"]]
    needle: Mapping[int, Float[np.ndarray, "R Y C"]]
    seconds: Float[np.ndarray, " R"]

    def units(self, measure: str, length: int) -> Values:
        """One number per unit; of a single model's needles, the mean over depths of each."""
        values = getattr(self, measure)[length]
        if values.ndim == 3:
            values = values.mean(1)
        return values.mean(1) if len(values) > 1 else values[0]

    def estimate(self, measure: str, length: int) -> Estimate:
        """The mean over units and its interval, of shares within 0 and 1."""
        found = of_mean(self.units(measure, length))
        return within(found, 1.0) if measure == "found" else found

    def curve(self) -> tuple[Float[np.ndarray, " X"], Float[np.ndarray, " X"], Float[np.ndarray, " X"]]:
        """Mean loss in each bin of positions, and the ends of its interval."""
        values = self.position.mean(1) if len(self.position) > 1 else self.position[0]
        found = [of_mean(of_runs) for of_runs in values.T]
        value, low, high = (np.array([getattr(one, name) for one in found]) for name in ("value", "low", "high"))
        return value, low, high

    def by_depth(self, measure: str, length: int) -> Float[np.ndarray, " Y"]:
        """The mean at each depth."""
        return getattr(self, measure)[length].mean((0, 2))


class Level(NamedTuple):
    """The mean loss over the documents of an n-gram model of the training bytes, the same beside all runs and methods."""

    position: Float[np.ndarray, " X"]
    windows: Mapping[int, float]
    sliding: Mapping[int, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """The cells by stage and method, what the records say of the experiment and of its models, and n-grams by name."""

    cells: Mapping[str, Mapping[str, Cell]]
    about: Mapping[str, Any]
    runs: list[Mapping[str, Any]]
    ngrams: Mapping[str, Level]

    @property
    def lengths(self) -> tuple[int, ...]:
        """L, 2 L ... s L."""
        return tuple(self.about["lengths"])

    @property
    def stages(self) -> tuple[str, ...]:
        """Those that were measured."""
        return tuple(stage for stage in STAGES if self.cells.get(stage))

    def difference(self, measure: str, length: int, stage: str, method: str, other: str) -> Estimate:
        """What a method has more than another in the same stage, unit by unit."""
        cells = self.cells[stage]
        return of_mean(cells[method].units(measure, length) - cells[other].units(measure, length))


def within(found: Estimate, most: float) -> Estimate:
    """The estimate of what lies between 0 and `most`, with its ends cut off there.

    Example:
      >>> within(Estimate(0.9, 0.77, 1.03), 1.0).high
      1.0
    """
    return dataclasses.replace(found, low=max(found.low, 0.0), high=min(found.high, most))


def read(path: pathlib.Path) -> Results:
    """The numbers of a file of records.

    Raises ValueError for a file without a finished run, with a damaged line, or with what is no such record.
    """
    return recorded.read(path, "context extension", _results)


def _results(tables: list[dict[str, Any]]) -> Results:
    about = recorded.about(tables)
    stages = STAGES if about["steps"] else STAGES[:1]
    here = {(one["run"], one["method"], one["stage"]): one for one in tables if one.get("kind") == "method"}
    tuned = [method for method in about["methods"] if method in FREQUENCIES]
    by_stage = {stage: about["methods"] if stage == STAGES[0] else tuned for stage in stages}
    wanted = [(method, stage) for stage, names in by_stage.items() for method in names]
    runs = [one for one in tables if one.get("kind") == "run" and all((one["run"], *key) in here for key in wanted)]
    if not runs:
        raise ValueError("there is no run with all its methods in these records; the command that began them goes on")
    names = [run["run"] for run in runs]
    ordered = lambda stage: [name for name, _ in METHODS if name in by_stage[stage]]
    cell = lambda method, stage: _cell(method, stage, [here[name, method, stage] for name in names])
    cells = {stage: {method: cell(method, stage) for method in ordered(stage)} for stage in stages}
    levels = {name: _level(one[name]) for one in tables if one.get("kind") == "ngrams" for name in NAMES}
    return Results(cells, about, list(runs), levels)


def _level(found: dict[str, Any]) -> Level:
    by_length = lambda table: {int(length): float(np.mean(values)) for length, values in table.items()}
    position = np.array(found["position"], np.float64).mean(0)
    return Level(position, by_length(found["windows"]), by_length(found["sliding"]))


def _cell(method: str, stage: str, found: list[dict[str, Any]]) -> Cell:
    lengths = [int(length) for length in found[0]["windows"]]
    table = lambda name: {n: recorded.numbers([one[name][str(n)] for one in found]) for n in lengths}
    position = recorded.numbers([one["position"] for one in found])
    seconds = np.array([one["seconds"] for one in found])
    return Cell(method, stage, position, seconds=seconds, **{name: table(name) for name in MEASURES})
