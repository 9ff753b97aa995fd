"""Chooses a candidate for each family of a tuned sweep, from the validation scores of its tuning runs."""

import math
from statistics import fmean

from attnjax.records import jsonl, status
from attnjax.sweep.choices import METRICS, Choice, Choices, Trial, asked, lower_is_better, with_cells, words
from attnjax.sweep.store import Store
from attnjax.sweep.tuning import Family, Tuning


class AllFailed(ValueError):
    """No tuning run of a family succeeded."""


def choose(tuning: Tuning, store: Store) -> Choices:
    """The choices that the records of the tuning runs lead to.

    Raises ValueError where a run has not ended, or a run that is done lacks a score, and AllFailed where all runs of a
    family failed.
    """
    families = tuple(_choice(family, store) for family in tuning.families)
    return with_cells(tuning, Choices(store.protocol, *asked(tuning), families))


def _choice(family: Family, store: Store) -> Choice:
    """The scores of one family under the first metric that its runs have."""
    ends = {run: store.status(run).state for row in family.ids for run in row}
    if left := [run for run, state in ends.items() if state not in status.FINAL]:
        raise ValueError(f"tuning run {left[0]} in {store.root} has not ended")
    measured = {run: _validation(store, run) for run, state in ends.items() if state == "done"}
    if not measured:
        raise AllFailed(
            f"all tuning runs of {words(family.changes)} failed, so that no candidate can be chosen: see {store.root}; "
            "--retry-failed trains them again"
        )
    metric = next((name for name in METRICS if any(name in scores for scores in measured.values())), METRICS[0])
    worst = math.inf if lower_is_better(metric) else 0.0

    def trial(run: str) -> Trial:
        if ends[run] == "failed":
            return Trial(run, "failed", worst)
        values = measured[run].get(metric, {})
        lengths = store.config(run).evaluate.validation_lengths
        if missing := [length for length in lengths if length not in values]:
            raise ValueError(
                f"tuning run {run} in {store.root} is done and has no {metric} at validation length {missing[0]}"
            )
        score = fmean(values[length] for length in lengths)
        return Trial(run, "done", score if math.isfinite(score) else worst)

    return Choice(family.id, family.changes, metric, tuple(tuple(map(trial, row)) for row in family.ids))


def _validation(store: Store, run: str) -> dict[str, dict[int, float]]:
    """{metric: {length: value}} of the last validation of a run; NaN for null, which JSON has for what is not finite."""
    rows = [row for row in jsonl.read(store.directory(run) / jsonl.RESULTS).tables if row.get("split") == "validation"]
    last = max((row["step"] for row in rows), default=0)
    found: dict[str, dict[int, float]] = {}
    for row in (row for row in rows if row["step"] == last):
        value = row["value"]
        found.setdefault(row["metric"], {})[row["length"]] = math.nan if value is None else float(value)
    return found
