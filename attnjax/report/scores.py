"""From records to scores: what one run reached, at every length and as one number.

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

from attnjax.report.groups import Panel, Variant
from attnjax.report.measures import Measure
from attnjax.report.records import SPLITS, Result, Run

FIT = 0.99
"""A run has fitted its task if it answers this share of the examples within the training range exactly."""


@dataclass(frozen=True)
class Scored:
    """The scores of a variant under one metric.

    `curve[r, x]` belongs to run `runs[r]` at `lengths[x]`; `past`, the mean over the lengths `beyond` training, and
    `within` are one number per run, NaN where a record is lost. Failed runs are among `runs`.
    """

    variant: Variant
    measure: Measure
    runs: tuple[Run, ...]
    lengths: tuple[int, ...]
    beyond: tuple[int, ...]
    curve: Float[np.ndarray, "R X"]
    past: Float[np.ndarray, " R"]
    within: Float[np.ndarray, " R"]


def final(run: Run) -> tuple[Result, ...]:
    """The records of the last evaluation of a run: of the highest step at which more than validation was measured."""
    steps = [result.step for result in run.results if result.split != "validation"]
    return tuple(result for result in run.results if result.step == max(steps)) if steps else ()


def outcome(run: Run) -> str:
    """What a run counts as: "done", "failed" or "unfinished"."""
    if run.state == "failed":
        return "failed"
    return "done" if run.state in ("done", "unknown") and final(run) else "unfinished"


def metrics(panel: Panel) -> set[str]:
    """The keys of all metrics that any run of a task recorded at its end."""
    return {result.metric for run in members(panel) for result in final(run)}


def members(panel: Panel) -> list[Run]:
    """All runs of a task."""
    return [run for variant in panel.variants for run in variant.runs]


def points(panel: Panel, measure: Measure) -> set[tuple[int, str]]:
    """Every (length, split) but validation at which any run of a task recorded this metric at its end."""
    rows = (row for run in members(panel) for row in final(run) if row.metric == measure.key)
    return {(row.length, row.split) for row in rows if row.split != "validation"}


def values(results: Iterable[Result], measure: Measure) -> dict[tuple[int, str], float]:
    """{(length, split): value} of one metric but validation. The last record of a length counts; not finite is the worst."""
    return {
        (row.length, row.split): row.value if np.isfinite(row.value) else measure.worst
        for row in results
        if row.metric == measure.key and row.split != "validation"
    }


def scored(panel: Panel, variant: Variant, measure: Measure) -> Scored:
    """The scores of all runs of a variant that ended, well or badly."""
    where = points(panel, measure)
    lengths = tuple(sorted({length for length, _ in where}))
    beyond = tuple(sorted(length for length, split in where if split == "test" and length > panel.trained[1]))
    inside = [length for length in lengths if length <= panel.trained[1]]
    runs = tuple(run for run in variant.runs if outcome(run) != "unfinished")
    curve = np.full((len(runs), len(lengths)), measure.worst)
    past = np.full(len(runs), measure.worst if beyond else np.nan)
    within = np.full(len(runs), measure.worst if inside else np.nan)
    for r, run in enumerate(runs):
        if outcome(run) == "done":
            measured = values(final(run), measure)
            curve[r] = [at(measured, length) for length in lengths]
            past[r] = average([measured.get((length, "test"), np.nan) for length in beyond])
            within[r] = average([at(measured, length) for length in inside])
    return Scored(variant, measure, runs, lengths, beyond, curve, past, within)


def at(measured: dict[tuple[int, str], float], length: int) -> float:
    """The value at a length, of the test examples where there are some, else of the others; NaN where it is lost."""
    found = [measured[length, split] for split in reversed(SPLITS) if (length, split) in measured]
    return found[0] if found else np.nan


def average(numbers: list[float]) -> float:
    """The mean, NaN where one is lost or there is none."""
    return float(np.mean(numbers)) if numbers else np.nan
