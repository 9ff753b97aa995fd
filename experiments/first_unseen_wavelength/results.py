"""From records to the verdict: length factors of two families of bases, and the differences that the protocol names.

The protocol, with every threshold, is the docstring of configs/first_unseen_wavelength.py, written before the runs.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnjax.report.intervals import Estimate, of_mean
from attnjax.report.reach import RISE
from attnjax.report.significance import holm, sign_flip_above
from attnjax.typing import Float
from experiments import recorded
from experiments.unseen_phase.outcomes import excess_of, factor_of
from experiments.unseen_phase.phases import wavelengths
from experiments.unseen_phase.results import HEAD

ALPHA = 0.05
FEWEST_PAIRS = 7
Cell = tuple[int, float]
"""The pair that has the onset, and the onset over the trained length."""
CONTRASTS: Mapping[str, tuple[Cell, Cell]] = {
    "crossing": ((3, 2.8), (2, 1.4)),
    "pair 3": ((3, 2.8), (3, 1.4)),
    "pair 2": ((2, 2.8), (2, 1.4)),
    "dip": ((2, 1.05), (2, 1.4)),
}
"""What is less what; all are predicted to be above 0."""
NEEDED = ("crossing", "pair 3", "pair 2")
EQUAL = (1.4, 2.0, 2.8)
"""The onsets that both families have."""


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """Bases and length factors [seeds] by cell, NaN for a run that did not fit; differences by contrast, and Holm's p.

    `families` is pair 2 less pair 3 at equal onset, a number for each seed of which all six runs fitted.
    """

    trained: int
    seeds: tuple[int, ...]
    bases: Mapping[Cell, float]
    factors: Mapping[Cell, Float[np.ndarray, " S"]]
    differences: Mapping[str, Float[np.ndarray, " P"]]
    p: Mapping[str, float]
    families: Float[np.ndarray, " P"]
    about: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """Whether the length factor follows the onset: "onset" or "not shown"."""
        return "onset" if all(self.shown(name) for name in NEEDED) else "not shown"

    def shown(self, name: str) -> bool:
        """Whether a contrast is above 0 by the protocol."""
        return len(self.differences[name]) >= FEWEST_PAIRS and self.p[name] < ALPHA


def read(path: pathlib.Path) -> Results:
    """The results of a file of records. Raises ValueError, naming the file, where it is damaged or holds other records."""
    return recorded.read(path, "first unseen wavelengths", results)


def results(tables: list[dict[str, Any]]) -> Results:
    """The same of the records themselves. Raises ValueError where a cell lacks a seed, or there is no run."""
    runs = [table for table in tables if table.get("kind") == "run"]
    trained = sorted({run["trained"] for run in runs})
    if len(trained) != 1:
        raise ValueError(f"runs of one trained length are compared, got {trained}")
    seeds = tuple(sorted({run["seed"] for run in runs}))
    found: dict[Cell, dict[int, float]] = {}
    bases: dict[Cell, float] = {}
    for run in runs:
        cell = cell_of(run["theta"], trained[0])
        bases[cell] = run["theta"]
        fits = excess_of(run, trained[0]) <= RISE
        found.setdefault(cell, {})[run["seed"]] = factor_of(run, trained[0]) if fits else np.nan
    wanted = {cell for pair in CONTRASTS.values() for cell in pair} | {(pair, r) for pair in (2, 3) for r in EQUAL}
    for cell in sorted(wanted):
        if len(found.get(cell, ())) < len(seeds):
            raise ValueError(f"pair {cell[0]} at {cell[1]:g} L has {len(found.get(cell, ()))} of {len(seeds)} runs")
    factors = {cell: np.array([found[cell][seed] for seed in seeds]) for cell in sorted(found)}
    paired = {name: finite(factors[one] - factors[other]) for name, (one, other) in CONTRASTS.items()}
    p = holm([sign_flip_above(values) if len(values) else 1.0 for values in paired.values()])
    families = np.mean([factors[2, r] - factors[3, r] for r in EQUAL], axis=0)
    told = recorded.about(tables)
    return Results(trained[0], seeds, bases, factors, paired, dict(zip(paired, p, strict=True)), finite(families), told)


def cell_of(theta: float, trained: int) -> Cell:
    """The pair that has the shortest wavelength above the trained length, and that wavelength over it, to three digits.

    Raises ValueError where no wavelength is above it.

    Example:
        >>> cell_of(41353.476, 64), cell_of(1195.845, 64)
        ((2, 1.4), (3, 1.4))
    """
    turns = wavelengths(theta, HEAD) / trained
    if turns[-1] <= 1:
        raise ValueError(f"base {theta:g} has no wavelength above {trained}")
    pair = int(np.argmax(turns > 1))
    return pair, round(float(turns[pair]), 3)


def finite(values: Float[np.ndarray, " S"]) -> Float[np.ndarray, " P"]:
    """The differences of the seeds of which all runs fitted."""
    return values[np.isfinite(values)]


def mean_of(values: Float[np.ndarray, " P"]) -> Estimate | None:
    """The mean over seeds and its interval; None for none."""
    return of_mean(values) if len(values) else None


def fitted(results: Results) -> Sequence[tuple[Cell, Float[np.ndarray, " P"]]]:
    """Each cell with the length factors of the runs that fitted."""
    return [(cell, finite(values)) for cell, values in results.factors.items()]
