"""Tuning parity: every family of a sweep chooses among the same candidates, at the same budget, on seeds of its own.

    candidates     what `tune()` of the config lists: changes like those of `sweep()`, all of the same keys
    family         what is left of the runs of a sweep without seeds and without these keys: a task under an encoding, say
    tuning runs    families x candidates x tuning seeds, without test lengths, so that nobody can choose by a test score
    tuned runs     those of the sweep, with the candidate that its family chose

A tuned run is the run that a person gets who writes the chosen values on the command line: it has the same id.

    SWEEP/tuning/        the tuning runs, an ordinary sweep
    SWEEP/tuning.json    candidates, seeds, and for each family the scores of every tuning run, and what was chosen and why
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from attnjax.config import SCHEMA, RunConfig, cell_id, run_id
from attnjax.config.files import check_runs
from attnjax.config.options import shown
from attnjax.config.overrides import outside
from attnjax.config.parse import SEEDS
from attnjax.records import files, jsonl, status
from attnjax.records.runs import TUNING as FILE
from attnjax.records.values import DECIMALS, as_dict, clean, finite, jsonable
from attnjax.sweep.plan import Changes, Planned, plan
from attnjax.sweep.store import Store

DEFAULT_SEEDS = (10_000, 10_001)
"""Tuning seeds of a config without `tuning_seeds()`."""
NEVER = (*SEEDS, "name", "task", "evaluate")
"""What candidates may not change: it says what is measured, and for whom, and not how it is trained."""
FOLDER = "tuning"
RULE = (
    "Of the candidates, the one with the best mean validation score: the mean over the validation lengths, all of them "
    "within the trained ones, then over the tuning seeds, which no run of the sweep has. A failed run has the worst score "
    "there is. Of equal candidates the one with the fewest failed runs, then that with the lowest validation loss. No tuning "
    "run was evaluated at a test length."
)
METRICS = ("exact_match", "loss_nonoverlapping", "loss")
"""What is compared: the first of these that the runs of a family recorded."""


class AllFailed(ValueError):
    """No tuning run of a family succeeded."""


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
        """How many other candidates have the best mean score, and as few failed runs as the chosen one."""
        ranks = [rank[:2] for rank in ranked(self.metric, self.trials)]
        return ranks.count(ranks[self.best]) - 1

    def edges(self, candidates: Sequence[Changes]) -> dict[str, str]:
        """Return the numbers of the chosen candidate that are the smallest or the largest of those that were tried."""
        found = {}
        for key, value in candidates[self.best].items():
            values = {one[key] for one in candidates if finite(one[key])}
            if finite(value) and len(values) > 1 and value in (min(values), max(values)):
                found[key] = "smallest" if value == min(values) else "largest"
        return found

    def notes(self, candidates: Sequence[Changes]) -> list[str]:
        """Return what a reader should know about the choice: ties, edges of a range, failed runs."""
        means, chosen, found = [rank[0] for rank in ranked(self.metric, self.trials)], candidates[self.best], []
        if (best := means.count(means[self.best])) > 1:
            by_loss = self.tied and any(math.isfinite(trial.loss) for trial in self.trials[self.best])
            which = "one with the lowest validation loss" if by_loss else "first of them"
            fewest = "" if best == self.tied + 1 else " with the fewest failed runs"
            found.append(f"{best} of {len(means)} candidates have the best score; the {which}{fewest} was chosen")
        for key, end in self.edges(candidates).items():
            found.append(f"{key}={chosen[key]:g} is the {end} value that was tried: a better one may lie beyond")
        if failed := sum(trial.state == "failed" for trials in self.trials for trial in trials):
            found.append(f"{failed} of {len(means) * len(self.trials[0])} tuning runs failed")
        return found


@dataclasses.dataclass(frozen=True)
class Choices:
    """The content of `tuning.json`; without families it says that a sweep that could have been tuned was not."""

    protocol: str
    candidates: tuple[Changes, ...]
    seeds: tuple[int, ...]
    families: tuple[Choice, ...] = ()
    rule: str = RULE


class Family(NamedTuple):
    """One family: the cell of its tuning runs under the first candidate, what the sweep changes in it, and the tuning runs
    [candidate][seed].
    """

    id: str
    changes: Changes
    runs: tuple[tuple[Planned, ...], ...]

    @property
    def ids(self) -> list[list[str]]:
        """The ids of the tuning runs, [candidate][seed]."""
        return [[run_id(run.config) for run in runs] for runs in self.runs]


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The tuning of a sweep. `family_of` has the number of the family of each planned run."""

    config: Any
    held: Changes
    planned: tuple[Planned, ...]
    candidates: tuple[Changes, ...]
    seeds: tuple[int, ...]
    families: tuple[Family, ...]
    family_of: tuple[int, ...]

    @property
    def runs(self) -> list[Planned]:
        """The tuning runs of all families."""
        return [run for family in self.families for runs in family.runs for run in runs]

    def tuned(self, chosen: Sequence[int]) -> list[Planned]:
        """The runs of the sweep under the candidate that each family chose, by its number; of equal runs the first."""
        return list({run_id(run.config): run for _, run in reversed(self._tuned(chosen))}.values())[::-1]

    def cells(self, chosen: Sequence[int]) -> list[tuple[str, ...]]:
        """The cells of the tuned runs of each family."""
        found: list[dict[str, None]] = [{} for _ in self.families]
        for family, run in self._tuned(chosen):
            found[family][cell_id(run.config)] = None
        return [tuple(cells) for cells in found]

    def without(self, families: Collection[str]) -> "Tuning":
        """The tuning of the other families alone, and of their runs."""
        left = [number for number, family in enumerate(self.families) if family.id not in families]
        pairs = [(one, n) for one, n in zip(self.planned, self.family_of, strict=True) if n in left]
        return dataclasses.replace(
            self,
            planned=tuple(one for one, _ in pairs),
            families=tuple(self.families[number] for number in left),
            family_of=tuple(left.index(number) for _, number in pairs),
        )

    def _tuned(self, chosen: Sequence[int]) -> list[tuple[int, Planned]]:
        return [
            (family, _planned(self.config, one.changes, self.held, self.candidates[chosen[family]]))
            for one, family in zip(self.planned, self.family_of, strict=True)
        ]


def tuning(
    config: Any,
    planned: Iterable[Planned],
    candidates: Iterable[Changes],
    seeds: Iterable[int] = DEFAULT_SEEDS,
    *,
    held: Changes | None = None,
    said: Iterable[str] = (),
) -> Tuning:
    """The tuning of the planned runs of a config; `held` are the changes that hold in every run, as in `plan`.

    `said` are further fields that the command line sets, which candidates may not change either.

    Raises ValueError for candidates or seeds that cannot be compared fairly, and for validation lengths that are missing or
    outside the trained ones.

    Example:
      >>> from attnjax.sweep import product, seeds, vary
      >>> sweep = product(vary("model.encoding", ["rope", "alibi"]), seeds(3))
      >>> found = tuning({}, plan({}, sweep), vary("train.learning_rate", [1e-3, 1e-2]))
      >>> len(found.families), len(found.runs), len(found.tuned([0, 1]))
      (2, 8, 6)
      >>> [run.config.train.learning_rate for run in found.tuned([0, 1])]
      [0.001, 0.001, 0.001, 0.01, 0.01, 0.01]
    """
    planned, held = tuple(planned), held or {}
    tried, drawn = _candidates(candidates, {*held, *said}), _seeds(seeds, planned)
    numbers: dict[str, int] = {}
    families: list[Family] = []
    known: dict[str, int] = {}
    family_of = []
    for one in planned:
        changes = outside(one.changes, (*SEEDS, *tried[0]))
        told = repr(sorted(changes.items(), key=lambda item: item[0]))
        if told not in known:
            first = _planned(config, changes, held, {**tried[0], **_of_seed(drawn[0])})
            known[told] = numbers.setdefault(cell_id(first.config), len(families))
            if known[told] == len(families):
                check_runs((len(families) + 1) * len(tried) * len(drawn))
                families.append(_family(config, changes, held, tried, drawn))
        family_of.append(known[told])
    return Tuning(config, held, planned, tried, drawn, tuple(families), tuple(family_of))


def _family(
    config: Any, changes: Changes, held: Changes, candidates: Sequence[Changes], seeds: Sequence[int]
) -> Family:
    runs = []
    for number, candidate in enumerate(candidates):
        try:
            runs.append(
                tuple(_planned(config, changes, held, {**candidate, **_of_seed(seed)}) for seed in seeds),
            )
        except ValueError as error:
            raise ValueError(
                f"candidate {number} of tune(): {str(error).removeprefix('entry 0 of the sweep: ')}"
            ) from None
    for run in (run for alike in runs for run in alike):
        _check_lengths(run.config)
    if len({run_id(run.config) for alike in runs for run in alike}) < len(candidates) * len(seeds):
        raise ValueError("two candidates of tune() are the same: list each once")
    return Family(cell_id(runs[0][0].config), changes, tuple(runs))


def _planned(config: Any, changes: Changes, held: Changes, settings: Changes) -> Planned:
    """The run of these changes, over which hold the settings, as if the command line had given them."""
    return plan(config, [changes], held=outside(held, settings), factors=[settings])[0]


def _of_seed(seed: int) -> Changes:
    return {**dict.fromkeys(SEEDS, seed), "evaluate.lengths": ()}


def _candidates(candidates: Iterable[Changes], said: set[str]) -> tuple[Changes, ...]:
    tried = tuple(candidates)
    for number, one in enumerate(tried):
        if not isinstance(one, Mapping) or not one:
            raise ValueError(f"candidate {number} of tune() must be a table of dotted keys, got {shown(one)}")
        if one.keys() != tried[0].keys():
            raise ValueError(
                f"every candidate of tune() must change the same fields: candidate 0 changes {_listed(tried[0])}, "
                f"candidate {number} changes {_listed(one)}"
            )
    if len(tried) < 2:
        raise ValueError(f"tune() must list at least 2 candidates, got {len(tried)}")
    for key in tried[0]:
        if not outside({key: None}, NEVER):
            raise ValueError(f"tune() may not change {key}, which says what is measured and not how it is trained")
        if taken := sorted(one for one in said if not outside({one: None}, [key])):
            raise ValueError(
                f"{taken[0]} is set on the command line, and tune() of the config chooses {key}: leave it out, or give "
                "--no-tune"
            )
    return tried


def _listed(changes: Changes) -> str:
    return ", ".join(sorted(map(str, changes)))


def _seeds(seeds: Iterable[int], planned: Iterable[Planned]) -> tuple[int, ...]:
    drawn = tuple(seeds)
    wrong = [one for one in drawn if isinstance(one, bool) or not isinstance(one, int) or one < 0]
    if wrong or not drawn or len(set(drawn)) < len(drawn):
        raise ValueError(f"tuning_seeds() must list different whole numbers of at least 0, got {shown(list(drawn))}")
    taken = {seed for one in planned for seed in (one.config.seed, one.config.data_seed)}
    if both := sorted(taken & set(drawn)):
        raise ValueError(
            f"seed {both[0]} is both a tuning seed and a seed of the sweep: what is chosen on a seed would be reported on it. "
            "Give other ones in tuning_seeds()"
        )
    return drawn


def _check_lengths(config: RunConfig) -> None:
    """Raise ValueError unless there are validation lengths, and all of them are trained ones."""
    task, lengths = config.task, config.evaluate.validation_lengths
    if not lengths:
        raise ValueError("tune() chooses by validation scores, and evaluate.validation_lengths is empty")
    beyond = [length for length in lengths if not task.length_min <= length <= task.length_max]
    if beyond:
        raise ValueError(
            f"tune() chooses within the trained lengths, task.length_min={task.length_min} .. task.length_max="
            f"{task.length_max}, and evaluate.validation_lengths has {beyond[0]}"
        )


def choose(tuning: Tuning, store: Store) -> tuple[Choice, ...]:
    """Return what the records of the tuning runs lead to, for each family.

    Raises ValueError where a run has not ended, or a run that is done lacks a score, and AllFailed where all runs of a
    family failed.
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
        scores, lengths = measured[run], store.config(run).evaluate.validation_lengths
        if missing := [length for length in lengths if length not in scores.get(metric, {})]:
            raise ValueError(
                f"tuning run {run} in {store.root} is done and has no {metric} at validation length {missing[0]}"
            )
        score, loss = (fmean(scores.get(name, {}).get(n, math.inf) for n in lengths) for name in (metric, "loss"))
        return Trial(run, "done", score if finite(score) else worst, loss if finite(loss) else math.inf)

    trials = tuple(tuple(map(trial, row)) for row in family.ids)
    ranks = ranked(metric, trials)
    return Choice(family.id, family.changes, metric, trials, ranks.index(min(ranks)))


def _validation(store: Store, run: str) -> dict[str, dict[int, float]]:
    """Return {metric: {length: value}} of the last validation of a run; NaN for null, which JSON has for what is not finite."""
    tables = jsonl.read(store.folder(run) / jsonl.RESULTS).tables
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


def words(changes: Changes) -> str:
    """Return changes in one line: model.encoding=rope train.learning_rate=0.003."""
    return " ".join(f"{key}={_word(value)}" for key, value in changes.items()) or "(the config as it is)"


def _word(value: Any) -> str:
    value = jsonable(value)
    if isinstance(value, dict) and value.keys() <= {"name", "options"} and not value.get("options"):
        value = value.get("name")
    return value if isinstance(value, str) else json.dumps(value)


def known(tuning: Tuning, there: Choices | None) -> tuple[Choice, ...]:
    """Return the choices of a folder for families of a tuning: these are not tuned again.

    Raises ValueError where they were made among other candidates or seeds, or the runs were trained without tuning.
    """
    if there is None:
        return ()
    mine = Choices("", tuple(jsonable(dict(one)) for one in tuning.candidates), tuning.seeds)
    if not there.families:
        why = "runs in this folder were trained without tuning, and one sweep cannot hold both"
    elif there.candidates != mine.candidates:
        old, new = (" | ".join(map(words, one.candidates))[:300] for one in (there, mine))
        why = f"its choices were made among other candidates ({old}) than those of the config ({new})"
    elif there.seeds != mine.seeds:
        why = f"its choices were made on the seeds {list(there.seeds)}, and the config says {list(mine.seeds)}"
    else:
        families = {family.id: family for family in tuning.families}
        found = tuple(choice for choice in there.families if choice.family in families)
        ids = lambda choice: [[trial.run for trial in row] for row in choice.trials]
        if all(ids(one) == families[one.family].ids for one in found):
            return found
        why = "a family chose among other tuning runs than those of the config"
    raise ValueError(f"{FILE}: {why}. Choose another folder (--out)")


def keep(root: pathlib.Path, choices: Choices) -> None:
    """Write the choices into the folder of a sweep, beside those of families that it has besides."""
    there = read(root)
    before = {choice.family: choice for choice in (there or choices).families}
    for one in choices.families:
        cells = (*before[one.family].cells, *one.cells) if one.family in before else one.cells
        before[one.family] = dataclasses.replace(one, cells=tuple(dict.fromkeys(cells)))
    if there is not None and dataclasses.replace(there, families=tuple(before.values())) == there:
        return
    rule = choices.rule if before else "The sweep was trained without tuning."
    files.write_table(
        root / FILE,
        {
            "schema": SCHEMA,
            "rule": rule,
            "protocol": choices.protocol,
            "candidates": list(choices.candidates),
            "seeds": list(choices.seeds),
            "families": [_row(one, choices.candidates) for one in before.values()],
        },
    )


def _row(one: Choice, candidates: Sequence[Changes]) -> dict[str, Any]:
    tried = [
        {"mean": mean, "runs": [trial._asdict() for trial in trials]}
        for mean, trials in zip(one.means, one.trials, strict=True)
    ]
    chosen = {"chosen": one.best, "values": candidates[one.best], "notes": one.notes(candidates)}
    return {
        "family": one.family,
        "changes": dict(one.changes),
        "metric": one.metric,
        **chosen,
        "candidates": tried,
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
        candidates = tuple(map(as_dict, table["candidates"]))
        families, rule = tuple(map(_read, table["families"])), str(table["rule"])
        found = Choices(table["protocol"], candidates, tuple(table["seeds"]), families, rule)
        keys = {key for one in candidates for key in one}
        sound = all(one.keys() == keys for one in candidates) and isinstance(found.protocol, str)
        for one in found.families:
            sound &= len(one.trials) == len(candidates) and 0 <= one.best < len(candidates)
            sound &= all(len(row) == len(found.seeds) for row in one.trials) and one.metric in METRICS
        if not sound:
            raise ValueError("a family does not have a score for each candidate and seed")
        return found
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__} {error}") from None


def _read(row: Mapping[str, Any]) -> Choice:
    worst = math.inf if lower_is_better(row["metric"]) else 0.0

    def trial(one: Mapping[str, Any]) -> Trial:
        score, loss = one["score"], one.get("loss")
        told = float(score) if finite(score) else worst
        return Trial(str(one["run"]), str(one["state"]), told, float(loss) if finite(loss) else math.inf)

    trials = tuple(tuple(map(trial, rows["runs"])) for rows in row["candidates"])
    return Choice(row["family"], as_dict(row["changes"]), row["metric"], trials, row["chosen"], tuple(row["cells"]))
