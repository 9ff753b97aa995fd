"""Tuning parity: every family of a sweep chooses among the same candidates, at the same budget, on seeds of its own.

    candidates     what `tune()` of the config lists: changes like those of `sweep()`, all of the same keys
    family         what is left of the runs of a sweep without seeds and without these keys: a task under an encoding, say
    tuning runs    families x candidates x tuning seeds, without test lengths, so that nobody can choose by a test score
    tuned runs     those of the sweep, with the candidate that its family chose (`choices.py`)

A tuned run is the run that a person gets who writes the chosen values on the command line: it has the same id.

    SWEEP/tuning/        the tuning runs, an ordinary sweep
    SWEEP/tuning.json    candidates, seeds, and for each family the scores of every tuning run, and what was chosen and why
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from attnjax.config import RunConfig, cell_id, run_id
from attnjax.config.files import check_runs
from attnjax.config.kinds import shown
from attnjax.config.overrides import outside
from attnjax.config.parse import SEEDS
from attnjax.sweep.plan import Changes, Planned, plan

DEFAULT_SEEDS = (10_000, 10_001)
"""Tuning seeds of a config without `tuning_seeds()`."""
NEVER = (*SEEDS, "name", "task", "evaluate")
"""What candidates may not change: it says what is measured, and for whom, and not how it is trained."""


class Family(NamedTuple):
    """One family: the cell of its tuning runs under the first candidate, what the sweep changes in it, the tuning runs
    [candidate][seed], and the runs of the sweep.
    """

    id: str
    changes: Changes
    runs: tuple[tuple[Planned, ...], ...]
    planned: tuple[Planned, ...]

    @property
    def ids(self) -> list[list[str]]:
        """The ids of the tuning runs, [candidate][seed]."""
        return [[run_id(run.config) for run in runs] for runs in self.runs]


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The tuning of a sweep over a config; `held` are the changes that hold in every run."""

    config: Any
    held: Changes
    candidates: tuple[Changes, ...]
    seeds: tuple[int, ...]
    families: tuple[Family, ...]

    @property
    def runs(self) -> list[Planned]:
        """The tuning runs of all families."""
        return [run for family in self.families for runs in family.runs for run in runs]

    def tuned(self, chosen: Sequence[int]) -> list[Planned]:
        """The runs of the sweep under the candidate that each family chose, by its number; of equal runs the first."""
        found: dict[str, Planned] = {}
        for one in itertools.chain.from_iterable(self._tuned(chosen)):
            found.setdefault(run_id(one.config), one)
        return list(found.values())

    def cells(self, chosen: Sequence[int]) -> list[tuple[str, ...]]:
        """The cells of the tuned runs of each family."""
        return [tuple(dict.fromkeys(cell_id(one.config) for one in runs)) for runs in self._tuned(chosen)]

    def _tuned(self, chosen: Sequence[int]) -> list[list[Planned]]:
        return [
            [_planned(self.config, one.changes, self.held, self.candidates[number]) for one in family.planned]
            for family, number in zip(self.families, chosen, strict=True)
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
    first = {**tried[0], **_of_seed(drawn[0])}
    alike: dict[str, list[Planned]] = {}
    for one in planned:
        alike.setdefault(cell_id(_planned(config, _own(one, tried[0]), held, first).config), []).append(one)
    check_runs(len(alike) * len(tried) * len(drawn))
    families = []
    for name, runs in alike.items():
        changes = _own(runs[0], tried[0])
        families.append(Family(name, changes, _trials(config, changes, held, tried, drawn), tuple(runs)))
    return Tuning(config, held, tried, drawn, tuple(families))


def _own(run: Planned, candidate: Changes) -> Changes:
    """What the sweep changes in a run beside seeds and tuned fields."""
    return outside(run.changes, (*SEEDS, *candidate))


def _trials(
    config: Any, changes: Changes, held: Changes, candidates: Sequence[Changes], seeds: Sequence[int]
) -> tuple[tuple[Planned, ...], ...]:
    """The tuning runs of a family, [candidate][seed]."""
    trials = []
    for number, candidate in enumerate(candidates):
        try:
            trials.append(tuple(_planned(config, changes, held, {**candidate, **_of_seed(seed)}) for seed in seeds))
        except ValueError as error:
            told = str(error).removeprefix("entry 0 of the sweep: ")
            raise ValueError(f"candidate {number} of tune(): {told}") from None
    runs = [run for alike in trials for run in alike]
    for run in runs:
        _check_lengths(run.config)
    if len({run_id(run.config) for run in runs}) < len(runs):
        raise ValueError("two candidates of tune() are the same: list each once")
    return tuple(trials)


def _planned(config: Any, changes: Changes, held: Changes, settings: Changes) -> Planned:
    """The run of these changes, over which hold the settings, as if the command line had given them."""
    return plan(config, [changes], held=outside(held, settings), factors=[settings])[0]


def _of_seed(seed: int) -> Changes:
    return {**dict.fromkeys(SEEDS, seed), "evaluate.lengths": ()}


def _candidates(candidates: Iterable[Changes], said: set[str]) -> tuple[Changes, ...]:
    tried = tuple(candidates)
    for number, one in enumerate(tried):
        if not isinstance(one, Mapping):
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
    if not drawn or len(set(drawn)) < len(drawn):
        raise ValueError(f"tuning_seeds() must list different seeds, got {str(list(drawn))[:100]}")
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
