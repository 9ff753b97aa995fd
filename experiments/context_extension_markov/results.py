"""From records to numbers: the loss of each method by context and by position, and what context gains."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnjax.report.intervals import Estimate, of_mean, of_runs_and_examples
from attnjax.typing import Float
from experiments import recorded

TOLERANCE = 0.05
"""Nats above the best prediction at the trained length up to which a run has fitted."""
TRAINED, BEST = "none", "bigram"
"""RoPE as trained, and the best prediction."""
WINDOWED = (CONTROL, _) = ("streaming_llm", "lm_infinite")
"""They see no more than the trained length, and so are the control."""


@dataclasses.dataclass(frozen=True, eq=False)
class Losses:
    """Of one method: by context of each run and chain, and by bin of positions of each run. Counting is one run."""

    context: Mapping[int, Float[np.ndarray, "R W"]]
    position: Float[np.ndarray, "R X"]


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """The losses by method, those of counting, the runs, and the protocol with where it was followed."""

    about: Mapping[str, Any]
    methods: Mapping[str, Losses]
    counting: Mapping[str, Losses]
    runs: Sequence[Mapping[str, Any]]
    minutes: float

    @property
    def lengths(self) -> tuple[int, ...]:
        """L, 2 L ... s L."""
        return tuple(self.about["lengths"])

    @property
    def ordered(self) -> list[str]:
        """Methods from the lowest loss in the longest windows to the highest."""
        return sorted(self.methods, key=lambda name: self.loss(name, self.lengths[-1]))

    def loss(self, method: str, length: int) -> float:
        """The mean over runs and chains."""
        return float(self.methods[method].context[length].mean())

    def best(self, length: int) -> float:
        """That of counting pairs."""
        return float(self.counting[BEST].context[length].mean())

    def gain(self, method: str, length: int) -> Estimate:
        """Loss under a method less that as trained in windows of the trained length: below 0 where context pays."""
        return difference(self.methods[method].context[length], self.methods[TRAINED].context[self.lengths[0]])

    def beyond(self, method: str) -> Estimate:
        """Loss in the longest windows less that under StreamingLLM, which always sees as many symbols as were trained."""
        return difference(*(self.methods[name].context[self.lengths[-1]] for name in (method, CONTROL)))

    @property
    def possible(self) -> float:
        """What counting pairs gains in the longest windows."""
        return self.best(self.lengths[-1]) - self.best(self.lengths[0])

    @property
    def fitted(self) -> int:
        """How many runs are near the best prediction at the trained length."""
        at = self.methods[TRAINED].context[self.lengths[0]].mean(1)
        return int((at <= self.best(self.lengths[0]) + TOLERANCE).sum())

    def paying(self, length: int) -> list[str]:
        """The methods that see the whole window, and under which context pays: whose interval lies below 0."""
        return [name for name in self.seeing if self.gain(name, length).high < 0]

    @property
    def seeing(self) -> list[str]:
        """The methods, in their order, that see more than the trained length."""
        return [name for name in self.ordered if name not in (TRAINED, *WINDOWED)]


def difference(one: Float[np.ndarray, "R W"], other: Float[np.ndarray, "R W"]) -> Estimate:
    """The mean of the differences by run and chain, and its interval over both."""
    found = of_runs_and_examples(one - other)
    return of_mean((one - other).mean(1)) if found is None else found


def read(path: pathlib.Path) -> Results:
    """The numbers of a file of records. Raises ValueError where it is damaged, of another kind, or without a whole run."""
    return recorded.read(path, "Markov chains past the trained length", results)


def results(tables: list[dict[str, Any]]) -> Results:
    """The same of the records themselves, of the runs that have all methods."""
    about = recorded.about(tables)
    here = {(one["run"], one["method"]): one for one in tables if one.get("kind") == "method"}
    runs = [one for one in tables if one.get("kind") == "run"]
    runs = [run for run in runs if all((run["run"], method) in here for method in about["methods"])]
    if not runs:
        raise ValueError("there is no run with all its methods in these records; the command that began them goes on")
    (counting,) = [one for one in tables if one.get("kind") == "counting"]
    of = {method: [here[run["run"], method] for run in runs] for method in about["methods"]}
    return Results(
        about,
        {method: losses(rows, about["lengths"]) for method, rows in of.items()},
        {name: losses([counting[name]], about["lengths"]) for name in ("unigram", BEST)},
        runs,
        sum(row["seconds"] for rows in of.values() for row in rows) / 60,
    )


def losses(rows: list[dict[str, Any]], lengths: list[int]) -> Losses:
    """The arrays of one method."""
    context = {length: np.array([row["context"][str(length)] for row in rows], np.float64) for length in lengths}
    return Losses(context, np.array([row["position"] for row in rows], np.float64))
