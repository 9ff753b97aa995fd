"""What the families of a tuned sweep chose, and what from: the content of `tuning.json`.

    SWEEP/tuning/        the tuning runs, an ordinary sweep
    SWEEP/tuning.json    candidates, seeds, and of each family the validation score of every tuning run and what was chosen

The file is a function of the records of the tuning runs, and its choices are computed again whenever it is read. Without
families it says that a sweep that could have been tuned was not.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from attnjax.config import SCHEMA
from attnjax.records import files, status
from attnjax.records.runs import RUN, TUNING
from attnjax.records.values import DECIMALS, as_dict, clean, finite, jsonable, number, whole
from attnjax.sweep.plan import Changes
from attnjax.sweep.tuning import Tuning

FOLDER, FILE = "tuning", TUNING
RULE = (
    "Of the candidates, the one with the best mean validation score: the mean over the validation lengths, all of them "
    "within the trained ones, then over the tuning seeds, which no run of the sweep has. A failed run has the worst score "
    "there is. Of equal candidates the first of those with the fewest failed runs. No tuning run was evaluated at a test "
    "length."
)
ELSEWHERE = "Choose another folder (--out)"
METRICS = ("exact_match", "loss_nonoverlapping", "loss")
"""What is compared: the first of these that the runs of a family recorded."""


class Trial(NamedTuple):
    """A tuning run and its score: the mean of a metric over the validation lengths."""

    run: str
    state: str
    score: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """What one family measured, `trials[candidate][seed]`, and the cells of the sweep that take what it chose."""

    family: str
    changes: Changes
    metric: str
    trials: tuple[tuple[Trial, ...], ...]
    cells: tuple[str, ...] = ()

    @property
    def means(self) -> list[float]:
        """The mean score of each candidate over the tuning seeds."""
        return [fmean(trial.score for trial in trials) for trials in self.trials]

    @property
    def ranks(self) -> list[tuple[float, int]]:
        """What candidates are compared by, the less the better: the mean score, negated unless it is a loss; failed runs.

        Means are rounded to `DECIMALS`.
        """
        sign = 1 if lower_is_better(self.metric) else -1
        failed = [sum(trial.state == "failed" for trial in trials) for trials in self.trials]
        return [(sign * round(mean, DECIMALS), count) for mean, count in zip(self.means, failed, strict=True)]

    @property
    def best(self) -> int:
        """The number of the chosen candidate."""
        return self.ranks.index(min(self.ranks))

    @property
    def tied(self) -> int:
        """How many candidates are as good as the chosen one, which is the first of them."""
        return self.ranks.count(self.ranks[self.best]) - 1

    def edges(self, candidates: Sequence[Changes]) -> dict[str, str]:
        """The numbers of the chosen candidate that are the smallest or the largest that was tried, and which of the two."""
        found = {}
        for key, value in candidates[self.best].items():
            values = {one[key] for one in candidates if finite(one[key])}
            if finite(value) and len(values) > 1 and value in (min(values), max(values)):
                found[key] = "smallest" if value == min(values) else "largest"
        return found

    def notes(self, candidates: Sequence[Changes]) -> list[str]:
        """What a reader should know about the choice: ties, edges of a range, failed runs."""
        means, chosen, found = [mean for mean, _ in self.ranks], candidates[self.best], []
        if (best := means.count(means[self.best])) > 1:
            which = "first of them" if best == self.tied + 1 else "first of them with the fewest failed runs"
            found.append(f"{best} of {len(means)} candidates have the best score; the {which} was chosen")
        for key, end in self.edges(candidates).items():
            found.append(f"{key}={chosen[key]:g} is the {end} value that was tried: a better one may lie beyond")
        failed = sum(trial.state == "failed" for trials in self.trials for trial in trials)
        if failed:
            found.append(f"{failed} of {len(means) * len(self.trials[0])} tuning runs failed")
        return found


@dataclasses.dataclass(frozen=True)
class Choices:
    """The content of `tuning.json`."""

    protocol: str
    candidates: tuple[Changes, ...]
    seeds: tuple[int, ...]
    families: tuple[Choice, ...] = ()

    @property
    def chosen(self) -> list[int]:
        """The number of the candidate that each family chose."""
        return [choice.best for choice in self.families]

    def of(self, tuning: Tuning) -> tuple[Choice, ...]:
        """The choices of those families of a tuning that have chosen.

        Raises ValueError where the tuning has other candidates, seeds or tuning runs than those that were compared.
        """
        mine = Choices(self.protocol, *asked(tuning))
        if not self.families or (self.candidates, self.seeds) != (mine.candidates, mine.seeds):
            raise ValueError(_refusal(self, mine))
        known = {choice.family: choice for choice in self.families}
        families = [family for family in tuning.families if family.id in known]
        for one in families:
            if one.ids != [[trial.run for trial in row] for row in known[one.id].trials]:
                raise ValueError(
                    f"{FILE}: {words(one.changes)} chose among other tuning runs than those of the config. {ELSEWHERE}"
                )
        return tuple(known[family.id] for family in families)


def with_cells(tuning: Tuning, choices: Choices) -> Choices:
    """The choices of all families of a tuning, with the cells of the sweep that take them."""
    cells = tuning.cells(choices.chosen)
    families = [dataclasses.replace(one, cells=own) for one, own in zip(choices.families, cells, strict=True)]
    return dataclasses.replace(choices, families=tuple(families))


def words(changes: Changes) -> str:
    """Changes in one line: model.encoding=rope train.learning_rate=0.003."""
    return " ".join(f"{key}={_word(value)}" for key, value in changes.items()) or "(the config as it is)"


def lower_is_better(metric: str) -> bool:
    """Whether a metric of `METRICS` is a loss."""
    return metric.startswith("loss")


def untuned(candidates: Iterable[Changes], protocol: str) -> Choices:
    """What `tuning.json` says of a sweep that was trained without tuning."""
    return Choices(protocol, tuple(jsonable(dict(one)) for one in candidates), ())


def keep(root: pathlib.Path, choices: Choices) -> Choices:
    """Write the choices into the folder of a sweep, beside those of families that it has besides; returns all of them."""
    before = {choice.family: choice for choice in (read(root) or choices).families}
    for choice in choices.families:
        cells = (*before[choice.family].cells, *choice.cells) if choice.family in before else choice.cells
        before[choice.family] = dataclasses.replace(choice, cells=tuple(dict.fromkeys(cells)))
    whole = dataclasses.replace(choices, families=tuple(before.values()))
    text = json.dumps(_table(whole), indent=1, allow_nan=False) + "\n"
    if not (root / FILE).exists() or files.read_text(root / FILE) != text:
        files.write(root / FILE, text)
    return whole


def read(root: pathlib.Path) -> Choices | None:
    """The choices in the folder of a sweep; None where it has none.

    Raises OSError where the file cannot be read, and ValueError where it is damaged, of a newer schema, or says that another
    candidate was chosen than its scores choose.
    """
    path = root / FILE
    try:
        table = clean(files.read_table(path))
    except FileNotFoundError:
        return None
    try:
        return _choices(table)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__} {error}") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def asked(tuning: Tuning) -> tuple[tuple[Changes, ...], tuple[int, ...]]:
    """Candidates, as JSON has them, and seeds."""
    return tuple(jsonable(dict(one)) for one in tuning.candidates), tuning.seeds


def _refusal(there: Choices, mine: Choices) -> str:
    if not there.families:
        why = (
            "runs in this folder were trained without tuning (by `attnjax run`, or by `attnjax sweep --no-tune`), and one "
            "sweep cannot hold both"
        )
    elif there.candidates != mine.candidates:
        old, new = (" | ".join(map(words, one.candidates)) for one in (there, mine))
        why = f"its choices were made among other candidates ({old[:300]}) than those of the config ({new[:300]})"
    else:
        why = f"its choices were made on the seeds {list(there.seeds)}, and the config says {list(mine.seeds)}"
    return f"{FILE}: {why}. {ELSEWHERE}"


def _table(choices: Choices) -> dict[str, Any]:
    rows = [
        {
            "family": one.family,
            "changes": jsonable(dict(one.changes)),
            "metric": one.metric,
            "chosen": one.best,
            "values": choices.candidates[one.best],
            "notes": one.notes(choices.candidates),
            "candidates": [
                {"mean": jsonable(mean), "runs": [jsonable(trial._asdict()) for trial in trials]}
                for mean, trials in zip(one.means, one.trials, strict=True)
            ],
            "cells": list(one.cells),
        }
        for one in choices.families
    ]
    head = {
        "schema": SCHEMA,
        "rule": RULE if rows else "The sweep was trained without tuning.",
        "protocol": choices.protocol,
    }
    return {**head, "candidates": list(choices.candidates), "seeds": list(choices.seeds), "families": rows}


def _choices(table: Mapping[str, Any]) -> Choices:
    """The choices of a table. Raises whatever Python raises for one of another form, and ValueError for wrong content."""
    candidates, seeds = tuple(map(as_dict, table["candidates"])), tuple(table["seeds"])
    families = []
    for row in table["families"]:
        worst = math.inf if lower_is_better(row["metric"]) else 0.0
        trials = tuple(tuple(_trial(one, worst) for one in rows["runs"]) for rows in row["candidates"])
        found = Choice(row["family"], as_dict(row["changes"]), row["metric"], trials, tuple(row["cells"]))
        if (
            len(trials) != len(candidates)
            or any(len(one) != len(seeds) for one in trials)
            or found.metric not in METRICS
        ):
            raise ValueError(f"family {found.family} does not have a score for each candidate and seed")
        if row["chosen"] != found.best:
            raise ValueError(
                f"family {found.family} chose candidate {row['chosen']!r}, and its scores choose {found.best}"
            )
        families.append(found)
    names = [*(one.family for one in families), *(cell for one in families for cell in one.cells)]
    if not all(isinstance(name, str) and RUN.fullmatch(name) for name in names):
        raise ValueError("a family or a cell has no name of 16 hex digits")
    keys = {key for one in candidates for key in one}
    if (
        not isinstance(table["protocol"], str)
        or not all(map(whole, seeds))
        or any(one.keys() != keys for one in candidates)
    ):
        raise ValueError("it has no protocol, no seeds, or candidates that change different fields")
    return Choices(table["protocol"], candidates, seeds, tuple(families))


def _trial(row: Mapping[str, Any], worst: float) -> Trial:
    run, state, score = row["run"], row["state"], row["score"]
    if not RUN.fullmatch(run) or state not in status.FINAL or not (score is None or number(score)):
        raise ValueError(f"a tuning run has no id, state and score: {str(row)[:100]}")
    return Trial(run, state, float(score) if score is not None and math.isfinite(score) else worst)


def _word(value: Any) -> str:
    value = jsonable(value)
    if isinstance(value, dict) and value.keys() <= {"name", "options"} and not value.get("options"):
        value = value.get("name")
    return value if isinstance(value, str) else json.dumps(value)
