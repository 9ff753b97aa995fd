"""From records to numbers: the cell as committed and every rerun of it, by length, and which reruns lie inside its range.

The number of a cell is the median of its runs, as in reports, in which a failed run has the worst score there is; a rerun is
inside if its median lies within the range of the committed runs (the 95 % interval from 6 runs on, see
`attnjax.report.intervals`).
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from attnjax.records.values import text
from attnjax.report.groups import panels
from attnjax.report.intervals import Estimate, of_runs
from attnjax.report.metrics import declared, metric, ordered
from attnjax.report.records import Sweep
from attnjax.report.scores import metric_keys, outcome, scored
from experiments import recorded
from experiments.rerun.planning import nudged

COMMITTED, RERUN = "committed", "rerun"


@dataclasses.dataclass(frozen=True, eq=False)
class Quantity:
    """One number of the cell: `committed` and `reruns`, a value per seed in the same order."""

    name: str
    committed: Float[np.ndarray, " R"]
    reruns: Float[np.ndarray, "K R"]

    @property
    def estimate(self) -> Estimate:
        """The committed median and its range or interval."""
        return of_runs(self.committed)

    @property
    def medians(self) -> Float[np.ndarray, " K"]:
        """The number that each rerun would have printed."""
        return np.median(self.reruns, axis=1)

    @property
    def inside(self) -> int:
        """How many reruns lie within the committed range or interval."""
        found = self.estimate
        return int(np.sum((self.medians >= found.low) & (self.medians <= found.high)))

    @property
    def by_rounding(self) -> float:
        """The standard deviation over reruns of one seed: the root of the mean variance over seeds."""
        return float(np.sqrt(np.mean(np.var(self.reruns, axis=0, ddof=1)))) if len(self.reruns) > 1 else np.nan

    @property
    def by_seed(self) -> float:
        """The standard deviation over seeds of the mean over reruns."""
        means = self.reruns.mean(0)
        return float(np.std(means, ddof=1)) if len(means) > 1 else np.nan


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """Every quantity of the cell, what was compared, and how many reruns of it are complete."""

    quantities: list[Quantity]
    about: Mapping[str, Any]
    reruns: int


def measured(sweep: Sweep, only: Sequence[str] | None = None, key: str = "") -> list[dict[str, Any]]:
    """A record per run that ended: task, seeds, rate, and values of the first metric past training, within, and by length.

    A number that a run has lost is not among its values. `only` names the runs; all without it. `key` is that of a metric;
    without it the first that a report of the sweep prints.
    """
    first = (key,) if key else declared(text(sweep.spec.get("protocol")))
    found = []
    for panel in panels(run for run in sweep.runs if only is None or run.id in only):
        keys = metric_keys(panel)
        if not keys:
            continue
        shown = ordered(keys, first)[0].of_task(panel.task)
        for variant in panel.variants:
            scores = scored(panel, variant, shown)
            for run, past, within, curve in zip(scores.runs, scores.past, scores.within, scores.curve, strict=True):
                if outcome(run) != "unfinished":
                    values = {"past training": past, "within": within}
                    values |= {str(length): value for length, value in zip(scores.lengths, curve, strict=True)}
                    seeds = {"seed": run.config["seed"], "data_seed": run.config["data_seed"]}
                    rate = run.config["train"]["learning_rate"]
                    numbers = {name: float(value) for name, value in values.items() if not np.isnan(value)}
                    cell = {"task": panel.label, "variant": variant.label}
                    found.append({"run": run.id, **cell, **seeds, "rate": rate, "metric": shown.key, "values": numbers})
    return found


def tables(committed: list[dict[str, Any]], again: list[dict[str, Any]], units: Sequence[int]) -> list[dict[str, Any]]:
    """The records of a comparison: those of the committed runs, then those of every complete rerun, with their nudges."""
    rate = committed[0]["rate"]
    order = [seeds_of(one) for one in committed]
    found: list[dict[str, Any]] = [{"kind": "run", "of": COMMITTED, **one} for one in committed]
    for unit in units:
        wanted = nudged(rate, unit) if unit else rate
        here = {seeds_of(one): one for one in again if one["rate"] == wanted}
        if sorted(here) == sorted(order):
            found += [{"kind": "run", "of": RERUN, "nudge": unit, **here[seeds]} for seeds in order]
    return found


def seeds_of(record: Mapping[str, Any]) -> tuple[int, int]:
    """The seeds of parameters and of data."""
    return record["seed"], record["data_seed"]


def quantities(committed: Sequence[Mapping[str, Any]], again: Sequence[Sequence[Mapping[str, Any]]]) -> list[Quantity]:
    """Every number of the runs of a cell and of its reruns. Raises ValueError where a run lacks one that another has."""
    runs = [*committed, *(one for rerun in again for one in rerun)]
    names = list(committed[0]["values"])
    for one in runs:
        if one["values"].keys() != set(names):
            odd = sorted(one["values"].keys() ^ set(names))
            raise ValueError(f"run {one['run']} was not measured at what the others were: {', '.join(odd)}")
    worst = metric(committed[0]["metric"]).worst
    # JSON has null for an infinite loss.
    of = lambda rows, name: [worst if one["values"][name] is None else one["values"][name] for one in rows]
    return [
        Quantity(name, np.array(of(committed, name)), np.array([of(rerun, name) for rerun in again])) for name in names
    ]


def read(path: pathlib.Path) -> Results:
    """The numbers of a file of records.

    Raises ValueError for a file without a complete rerun, or with a damaged line.
    """
    return recorded.read(path, "reruns", _results)


def _results(found: list[dict[str, Any]]) -> Results:
    runs = [one for one in found if one.get("kind") == "run"]
    first = [one for one in runs if one["of"] == COMMITTED]
    nudges = list(dict.fromkeys(one["nudge"] for one in runs if one["of"] == RERUN))
    if not (first and nudges):
        raise ValueError("there is no complete rerun in these records; the command that began them goes on")
    again = [[one for one in runs if one.get("nudge") == unit and one["of"] == RERUN] for unit in nudges]
    return Results(quantities(first, again), recorded.about(found) | {"metric": first[0]["metric"]}, len(again))
