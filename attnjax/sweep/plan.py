"""Makes many configs from one: a sweep is an iterable of `{"dotted.key": value}`, one table of changes for each run.

    product(vary("model.encoding", ["rope", "alibi"]), seeds(3))        6 runs
    chain(a, b)                                                         those of a, then those of b

Runs that one compiled program can train form a group, and train together as one population.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from attnjax.config import RunConfig, override, parse, run_id, to_dict
from attnjax.config.files import bounded, check_runs
from attnjax.config.kinds import shown
from attnjax.config.overrides import outside
from attnjax.config.parse import plain
from attnjax.registry import ENCODINGS

Changes = Mapping[str, Any]
Sweep = Iterable[Changes]

VARIES_INSIDE = ("seed", "data_seed", "train.learning_rate", "train.weight_decay")
"""Fields that may differ inside a population: numbers that enter the compiled step as arguments."""

SHORT = 1_100_000
"""Tokens of a run up to which runs of several encodings form one group; longer ones are better parted among workers."""
BY_LENGTH = ("dynamic_ntk", "longrope")
"""Scalings of RoPE that are code, since they look at the length of the sequence."""


class Planned(NamedTuple):
    """A run to be made, and what its sweep changed in the config."""

    config: RunConfig
    changes: Changes


def vary(key: str, values: Iterable[Any]) -> list[Changes]:
    """One run for each value of one field."""
    return [{key: value} for value in bounded(values)]


def seeds(count: int, start: int = 0) -> list[Changes]:
    """Runs that differ in both seeds: other parameters and other data. Vary "seed" or "data_seed" alone to part the two."""
    check_runs(count)
    return [{"seed": seed, "data_seed": seed} for seed in range(start, start + count)]


def product(*sweeps: Sweep) -> list[Changes]:
    """Every combination, the last sweep changing fastest. Raises ValueError where two sweeps set the same key."""
    factors = [bounded(sweep) for sweep in sweeps]
    check_runs(math.prod(map(len, factors)))
    return [_merged(parts) for parts in itertools.product(*factors)]


def chain(*sweeps: Sweep) -> list[Changes]:
    """All of the first, then all of the second."""
    return bounded(itertools.chain.from_iterable(sweeps))


def plan(config: Any, sweep: Sweep = ({},), *, held: Changes | None = None, factors: Sweep = ({},)) -> list[Planned]:
    """The runs of a sweep over a config, in the sweep's order; of equal runs the first.

    `held` and `factors` are what the command line asks for, and win over the sweep: what it sets of the same fields, or
    inside of them, is left out; where it sets a table around a field, the field is set in that table. `held` holds in
    every run, and the runs are those of the sweep times the `factors`, tables of the same keys.

    Raises ValueError, with the number of the entry, for a change that the config refuses, and for an empty sweep.
    """
    held, factors = held or {}, bounded(factors)
    keys = {*held, *itertools.chain.from_iterable(factors)}
    kept: dict[str, tuple[int, Changes]] = {}
    for number, changes in enumerate(bounded(sweep)):
        if not isinstance(changes, Mapping):
            raise ValueError(f"entry {number} of the sweep must be a table of dotted keys, got {shown(changes)}")
        left = outside(changes, keys)
        kept.setdefault(repr(sorted(left.items(), key=lambda item: str(item[0]))), (number, left))
    check_runs(len(kept) * len(factors))
    found: dict[str, Planned] = {}
    for (number, changes), factor in itertools.product(kept.values(), factors):
        try:
            resolved = parse(override(config, {**changes, **held, **factor}))
        except ValueError as error:
            raise ValueError(f"entry {number} of the sweep: {error}") from None
        found.setdefault(run_id(resolved), Planned(resolved, {**changes, **factor}))
    if not found:
        raise ValueError("the sweep is empty")
    return list(found.values())


def expand(config: Any, sweep: Sweep = ({},)) -> list[RunConfig]:
    """The resolved configs of a sweep, see `plan`."""
    return [planned.config for planned in plan(config, sweep)]


def groups(runs: Iterable[Any], key: Callable[[Any], str] | None = None, limit: int | None = None) -> list[list[Any]]:
    """Runs with equal keys together, by first appearance, in lists of at most `limit`. By default by `population_key`."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        found.setdefault((key or population_key)(run), []).append(run)
    return [part for group in found.values() for part in _parts(group, limit or len(group))]


def population_key(config: RunConfig) -> str:
    """Equal for runs that one compiled step can train together: a hash of all fields but those of `VARIES_INSIDE`, and
    of the options of the encoding but the numeric ones; in short runs also of all encodings but those that are optional.
    """
    values = to_dict(config, whole=False)
    for name in VARIES_INSIDE:
        *tables, last = name.split(".")
        table = values
        for part in tables:
            table = table[part]
        del table[last]
    encoding = values["model"]["encoding"]
    if isinstance(encoding, dict):
        name, code = encoding["name"], _code(encoding["name"], encoding["options"])
        shared = not code and name in ENCODINGS and ENCODINGS[name].optional and _is_short(config)
        values["model"]["encoding"] = {"name": "" if shared else name, "options": code}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def words(changes: Changes) -> str:
    """Changes in one line: model.encoding=rope train.learning_rate=0.003."""
    return " ".join(f"{key}={word(value)}" for key, value in changes.items()) or "(the config as it is)"


def word(value: Any) -> str:
    """A value as text, an encoding without options as its name."""
    value = plain(value)
    if isinstance(value, dict) and value.keys() <= {"name", "options"} and not value.get("options"):
        value = value.get("name")
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _is_short(config: RunConfig) -> bool:
    """Whether compiling takes so much of a run's time that encodings of several classes share a program."""
    return config.train.steps * config.train.batch * config.task.length_max <= SHORT


def _code(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an encoding that decide which program it is; numeric ones do not, where all layers have one encoding."""
    scaling = options.get("scaling")
    # What is no table is refused where the run is checked, see `attnjax.train.model.encoding`.
    if isinstance(scaling, Mapping) and scaling.get("name") in BY_LENGTH:
        return dict(options)
    numeric = ENCODINGS[name].numeric if name in ENCODINGS else ()
    return {key: value for key, value in options.items() if key not in numeric}


def _parts(group: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(group[start : start + size]) for start in range(0, len(group), size)]


def _merged(parts: Sequence[Changes]) -> Changes:
    merged: dict[str, Any] = {}
    for part in parts:
        twice = merged.keys() & part.keys()
        if twice:
            raise ValueError(f"two sweeps set {sorted(twice)[0]!r}")
        merged.update(part)
    return merged
