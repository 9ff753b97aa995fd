"""What the families of a tuned sweep chose, from the validation scores of their tuning runs: the content of `tuning.json`."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from attnjax.config import SCHEMA
from attnjax.records import files, jsonl
from attnjax.records.runs import TUNING as FILE
from attnjax.records.values import DECIMALS, as_dict, clean, finite
from attnjax.sweep.plan import Changes, words
from attnjax.sweep.store import Store
from attnjax.sweep.tuning import Family, Tuning

FOLDER = "tuning"
RULE = (
    "Of the candidates, the one with the best mean validation score: the mean over the validation lengths, all of them "
    "within the trained ones, then over the tuning seeds, which no run of the sweep has. A failed run has the worst score "
    "there is. Of equal candidates the one with the fewest failed runs, then that with the lowest validation loss. No tuning "
    "run was evaluated at a test length."
)
METRICS = ("exact_match", "loss_nonoverlapping", "loss")
"""What is compared: the first of these that the runs of a family recorded."""


class Trial(NamedTuple):
    """A tuning run, its score (the mean of a metric over the validation lengths), and the same of the loss, for ties."""

    run: str
    state: str
    score: float
    loss: float = math.inf


@dataclasses.dataclass(frozen=True)
class Choice:
    """What one family measured, `trials[candidate][seed]`, what it chose, and the cells of the sweep that take that."""

    family: str
    changes: Changes
    metric: str
    trials: tuple[tuple[Trial, ...], ...]
    best: int
    cells: tuple[str, ...] = ()

    @property
    def means(self) -> list[float]:
        """The mean score of each candidate over the tuning seeds."""
        return [fmean(trial.score for trial in trials) for trials in self.trials]

    @property
    def tied(self) -> int:
        """How many other candidates have the best mean score."""
        means = [rank[0] for rank in ranked(self.metric, self.trials)]
        return means.count(means[self.best]) - 1

    def edges(self, candidates: Sequence[Changes]) -> dict[str, str]:
        """Return the numbers of the chosen candidate that are the smallest or the largest of those that were tried."""
        found = {}
        for key, value in candidates[self.best].items():
            values = {number for one in candidates if finite(number := one.get(key))}
            if finite(value) and len(values) > 1 and value in (min(values), max(values)):
                found[key] = "smallest" if value == min(values) else "largest"
        return found

    def notes(self, candidates: Sequence[Changes]) -> list[str]:
        """Return what a reader should know about the choice: ties, edges of a range, failed runs."""
        found = []
        if self.tied:
            rule = "the one with fewer failed runs or a lower validation loss was chosen, or the first"
            found.append(f"{self.tied + 1} of {len(candidates)} candidates have the best score; {rule}")
        for key, end in self.edges(candidates).items():
            told = f"{key}={candidates[self.best][key]:g} is the {end} value that was tried"
            found.append(f"{told}: a better one may lie beyond")
        states = [trial.state for trials in self.trials for trial in trials]
        if failed := states.count("failed"):
            found.append(f"{failed} of {len(states)} tuning runs failed")
        return found


@dataclasses.dataclass(frozen=True)
class Choices:
    """The content of `tuning.json`; without families it says that a sweep that could have been tuned was not."""

    protocol: str
    candidates: tuple[Changes, ...]
    seeds: tuple[int, ...]
    families: tuple[Choice, ...] = ()
    rule: str = RULE


def choose(tuning: Tuning, store: Store) -> tuple[Choice, ...]:
    """Return what the records of the tuning runs lead to, for each family.

    Raises ValueError where a run that is done lacks a score, or all runs of a family failed.
    """
    return tuple(_choice(family, store) for family in tuning.families)


def ranked(metric: str, trials: Sequence[Sequence[Trial]]) -> list[tuple[float, int, float]]:
    """Return what candidates are compared by, the less the better: mean score, failed runs, mean validation loss."""
    sign = 1 if lower_is_better(metric) else -1
    return [
        (
            sign * round(fmean(trial.score for trial in row), DECIMALS),
            sum(trial.state == "failed" for trial in row),
            fmean(trial.loss for trial in row),
        )
        for row in trials
    ]


def _choice(family: Family, store: Store) -> Choice:
    ends = {run: store.status(run).state for row in family.ids for run in row}
    measured = {run: _validation(store, run) for run, state in ends.items() if state == "done"}
    if not measured:
        raise ValueError(
            f"all tuning runs of {words(family.changes)} failed, so that no candidate can be chosen: see {store.root}; "
            "--retry-failed trains them again"
        )
    metric = next((name for name in METRICS if any(name in scores for scores in measured.values())), METRICS[0])

    def trial(run: str) -> Trial:
        """Return the score of a tuning run over its validation lengths, the worst there is where it failed."""
        if ends[run] == "failed":
            return Trial(run, "failed", worst(metric))
        scores, lengths = measured[run], store.config(run).evaluate.validation_lengths
        if missing := [length for length in lengths if length not in scores.get(metric, {})]:
            raise ValueError(
                f"tuning run {run} in {store.root} is done and has no {metric} at validation length {missing[0]}"
            )
        score, loss = (fmean(scores.get(name, {}).get(n, math.inf) for n in lengths) for name in (metric, "loss"))
        return Trial(run, "done", score if finite(score) else worst(metric), loss if finite(loss) else math.inf)

    trials = tuple(tuple(map(trial, row)) for row in family.ids)
    ranks = ranked(metric, trials)
    return Choice(family.id, family.changes, metric, trials, ranks.index(min(ranks)))


def _validation(store: Store, run: str) -> dict[str, dict[int, float]]:
    """Return {metric: {length: value}} of the last validation of a run; NaN for null, which JSON has for what is not finite."""
    tables = jsonl.read(store.folder(run) / jsonl.RESULTS).rows
    rows = [row for row in tables if row.get("split") == "validation"]
    last = max((row["step"] for row in rows), default=0)
    found: dict[str, dict[int, float]] = {}
    for row in (row for row in rows if row["step"] == last):
        value = row["value"]
        found.setdefault(row["metric"], {})[row["length"]] = math.nan if value is None else float(value)
    return found


def lower_is_better(metric: str) -> bool:
    """Return whether a metric of `METRICS` is a loss."""
    return metric.startswith("loss")


def worst(metric: str) -> float:
    """Return the worst score of a metric, which failed runs have."""
    return math.inf if lower_is_better(metric) else 0.0


def keep(root: pathlib.Path, choices: Choices) -> None:
    """Write the choices into the folder of a sweep, beside those of families that it has besides."""
    there = read(root)
    families = {one.family: one for one in there.families} if there else {}
    for one in choices.families:
        cells = (*families.get(one.family, one).cells, *one.cells)
        families[one.family] = dataclasses.replace(one, cells=tuple(dict.fromkeys(cells)))
    new = dataclasses.replace(there or choices, families=tuple(families.values()))
    if new == there:
        return
    table = {
        "schema": SCHEMA,
        "rule": new.rule if families else "The sweep was trained without tuning.",
        "protocol": new.protocol,
        "candidates": new.candidates,
        "seeds": new.seeds,
        "families": [_row(one, new.candidates) for one in new.families],
    }
    files.write_table(root / FILE, table)


def _row(one: Choice, candidates: Sequence[Changes]) -> dict[str, Any]:
    tried = zip(one.means, one.trials, strict=True)
    return {
        "family": one.family,
        "changes": dict(one.changes),
        "metric": one.metric,
        "chosen": one.best,
        "values": candidates[one.best],
        "candidates": [{"mean": mean, "runs": [trial._asdict() for trial in trials]} for mean, trials in tried],
        "cells": list(one.cells),
    }


def read(root: pathlib.Path) -> Choices | None:
    """Return the choices in the folder of a sweep; None where it has none.

    Raises OSError where the file cannot be read, and ValueError where it is damaged or of a newer schema.
    """
    path = root / FILE
    try:
        table = clean(files.read_table(path))
    except FileNotFoundError:
        return None
    try:
        candidates, seeds = tuple(map(as_dict, table["candidates"])), tuple(table["seeds"])
        families = tuple(_read(row) for row in table["families"])
        for one in families:
            sizes = [len(row) for row in one.trials]
            if sizes != [len(seeds)] * len(candidates) or not 0 <= one.best < len(candidates):
                raise ValueError("a family does not have a score for each candidate and seed")
        return Choices(str(table["protocol"]), candidates, seeds, families, str(table["rule"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__} {error}") from None


def _read(row: Mapping[str, Any]) -> Choice:
    metric = row["metric"]
    if metric not in METRICS:
        raise ValueError(f"a family chose by {metric!r}, which is none of {', '.join(METRICS)}")

    def trial(one: Mapping[str, Any]) -> Trial:
        score, loss = one["score"], one.get("loss")
        told = float(score) if finite(score) else worst(metric)
        return Trial(str(one["run"]), str(one["state"]), told, float(loss) if finite(loss) else math.inf)

    trials = tuple(tuple(map(trial, rows["runs"])) for rows in row["candidates"])
    return Choice(row["family"], as_dict(row["changes"]), metric, trials, row["chosen"], tuple(row["cells"]))
