"""From records to verdicts: which predictor follows the length at which models break, and which pairs break them.

The protocol, with every threshold, is the docstring of configs/unseen_phase.py, written before the runs.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnjax.report.intervals import FEWEST, Estimate, of_mean
from attnjax.report.reach import RISE
from attnjax.report.significance import holm, sign_flip_above
from attnjax.typing import Bool, Float
from experiments import recorded
from experiments.unseen_phase.measuring import FURTHEST
from experiments.unseen_phase.outcomes import correlations, excess_of, factor_of, loss_at, partial, plain_of, rise_of
from experiments.unseen_phase.phases import GROUPS, SIGNS, predictors, wavelengths

HEAD = 16
"""Channels of a head of the sweep's models."""
FEWEST_BASES = 12


@dataclasses.dataclass(frozen=True, eq=False)
class Length:
    """All runs of one trained length L, a row per seed and a column per base in ascending order.

    `factor` is the length factor of the excess, `plain` that of the loss itself, `rise` the excess at 4L less that at L.
    `learned` says which runs fitted, `fits` which bases enter correlations, those of which more than half of the runs did.
    `rho[outcome][name]` is Spearman's correlation of a predictor with an outcome times the sign that it predicts, for each
    seed; "novelty | base" and "base | novelty" are partial correlations.
    `effects[group]` is the mean effect of clamping a group of pairs, a number per seed, NaN where no run broke.
    `pairs` has (wavelength / L, mean effect over seeds) of each single pair of the bases that broke.
    """

    trained: int
    bases: tuple[float, ...]
    seeds: tuple[int, ...]
    factor: Float[np.ndarray, "S X"]
    plain: Float[np.ndarray, "S X"]
    rise: Float[np.ndarray, "S X"]
    learned: Bool[np.ndarray, "S X"]
    fits: Bool[np.ndarray, " X"]
    predictors: Mapping[str, Float[np.ndarray, " X"]]
    rho: Mapping[str, Mapping[str, Float[np.ndarray, " S"]]]
    effects: Mapping[str, Float[np.ndarray, " S"]]
    pairs: Sequence[tuple[float, float]]

    @property
    def enough(self) -> bool:
        """Whether so many bases fit that the protocol concludes something."""
        return int(self.fits.sum()) >= FEWEST_BASES


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """Both trained lengths, the verdicts, Holm's p of the critical pairs against the others, and where it was measured."""

    lengths: tuple[Length, ...]
    verdict: str
    cause: str
    p: Mapping[str, float]
    about: Mapping[str, Any]


def read(path: pathlib.Path) -> Results:
    """The results of a file of records. Raises ValueError, naming the file, where it is damaged or holds other records."""
    return recorded.read(path, "unseen phases", results)


def results(tables: list[dict[str, Any]]) -> Results:
    """The same of the records themselves. Raises ValueError where a base lacks a seed, or nothing was measured to its end."""
    runs = [table for table in tables if table.get("kind") == "run"]
    if not runs:
        raise ValueError("no run was measured to its end")
    ended = {run["run"] for run in runs}
    clamps = [table for table in tables if table.get("kind") == "clamp" and table["run"] in ended]
    found = tuple(
        length(trained, *([row for row in rows if row["trained"] == trained] for rows in (runs, clamps)))
        for trained in sorted({run["trained"] for run in runs})
    )
    cause, p = cause_of(found)
    return Results(found, verdict_of(found), cause, p, recorded.about(tables))


def length(trained: int, runs: list[dict[str, Any]], clamps: list[dict[str, Any]]) -> Length:
    """Everything about one trained length."""
    bases, seeds = (tuple(sorted({run[name] for run in runs})) for name in ("theta", "seed"))
    by_place = {(run["seed"], run["theta"]): run for run in runs}
    if len(by_place) < len(bases) * len(seeds):
        raise ValueError(f"at L = {trained} {len(by_place)} of {len(bases) * len(seeds)} runs were measured: go on")
    table = [[by_place[seed, base] for base in bases] for seed in seeds]
    of = lambda function: np.array([[function(run, trained) for run in row] for row in table], float)
    outcomes = {"factor": of(factor_of), "plain": of(plain_of), "rise": of(rise_of)}
    learned = of(excess_of) <= RISE
    fits = learned.mean(0) > 0.5
    said = [predictors(base, HEAD, trained)._asdict() for base in bases]
    known = {name: np.array([one[name] for one in said]) for name in SIGNS}
    kept = {name: values[fits] for name, values in known.items()}
    rho = {name: signed(kept, -rows[:, fits] if name == "rise" else rows[:, fits]) for name, rows in outcomes.items()}
    broke = {run["run"] for run in runs if excess_of(run, trained) <= RISE < rise_of(run, trained)}
    effects, pairs = causes(clamps, broke, trained, seeds)
    known_of = {"learned": learned, "fits": fits, "predictors": known, "rho": rho, "effects": effects, "pairs": pairs}
    return Length(trained, bases, seeds, **outcomes, **known_of)


def signed(
    kept: Mapping[str, Float[np.ndarray, " X"]], rows: Float[np.ndarray, "S X"]
) -> dict[str, Float[np.ndarray, " S"]]:
    """The correlations of all predictors with an outcome that is high where a model lasts, times their signs."""
    found = {name: sign * correlations(kept[name], rows) for name, sign in SIGNS.items()}
    for name, other in (("novelty", "base"), ("base", "novelty")):
        found[f"{name} | {other}"] = SIGNS[name] * partial(kept[name], kept[other], rows)
    return found


def causes(
    clamps: list[dict[str, Any]], broke: set[str], trained: int, seeds: Sequence[int]
) -> tuple[dict[str, Float[np.ndarray, " S"]], list[tuple[float, float]]]:
    """The mean effect of each group by seed over the runs `broke` that have a critical pair; and that of single pairs."""
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    for row in clamps:
        runs.setdefault(row["run"], {})[row["what"]] = row
    chosen = [run for name, run in runs.items() if name in broke and "critical" in run]
    at = FURTHEST * trained
    effect = lambda run, what: loss_at(run[what], at) - loss_at(run["none"], at)
    found = {}
    for name in (*GROUPS, "all"):
        of_seed = [
            [effect(run, name) for run in chosen if run["none"]["seed"] == seed and name in run] for seed in seeds
        ]
        found[name] = np.array([np.mean(values) if values else np.nan for values in of_seed])
    points: dict[float, list[float]] = {}
    for run in chosen:
        for k, turn in enumerate(wavelengths(run["none"]["theta"], HEAD)):
            points.setdefault(float(turn) / trained, []).append(effect(run, f"pair {k}"))
    return found, sorted((x, float(np.mean(values))) for x, values in points.items())


def mean_of(values: Float[np.ndarray, " S"]) -> Estimate | None:
    """The mean over seeds and its interval; None where a seed is lost."""
    return of_mean(values) if len(values) and np.isfinite(values).all() else None


def above(values: Float[np.ndarray, " S"]) -> bool:
    """Whether six seeds or more have a mean whose 95 % interval lies above 0."""
    found = mean_of(values)
    return found is not None and found.runs >= FEWEST and found.low > 0


def verdict_of(lengths: Sequence[Length]) -> str:
    """The verdict of the protocol: "unseen phase", "base" or "neither"; "none" where too few bases fit."""
    if len(lengths) < 2 or not all(one.enough for one in lengths):
        return "none"
    for name, other, words in (("novelty", "base", "unseen phase"), ("base", "novelty", "base")):
        if all(
            above(one.rho["factor"][name]) and above(one.rho["factor"][name] - one.rho["factor"][other])
            for one in lengths
        ):
            return words
    return "neither"


def cause_of(lengths: Sequence[Length]) -> tuple[str, dict[str, float]]:
    """Whether clamping critical pairs, and no others, mends: "critical pairs", "not shown" or "none"; and Holm's p."""
    mean = {name: np.mean([one.effects[name] for one in lengths], axis=0) for name in GROUPS}
    others = [name for name in GROUPS if name != "critical"]
    more = [mean[name] - mean["critical"] for name in others]
    if not all(len(values) and np.isfinite(values).all() for values in more):
        return "none", {}
    p = dict(zip(others, holm([sign_flip_above(values) for values in more]), strict=True))
    mends = all(above(-one.effects["critical"]) for one in lengths)
    return ("critical pairs" if mends and max(p.values()) < 0.05 else "not shown"), p
