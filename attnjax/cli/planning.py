"""From a config's name and the settings on the command line to the runs they mean.

What the command line sets holds in every run, over what the `sweep()` of the config sets: see `attnjax.sweep.plan.plan`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from attnjax.config import RunConfig, load, override, parse, parse_choices, parse_override
from attnjax.config.files import ConfigFile
from attnjax.config.outside import class_paths
from attnjax.config.parse import is_config_dict
from attnjax.sweep import plan, product, seeds, vary
from attnjax.sweep.plan import Changes, Planned, Sweep, word
from attnjax.sweep.tuning import DEFAULT_SEEDS, Tuning, tuning

SHOWN, LONGEST = 6, 60
"""Values of a field that are printed, and characters of each."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A config file, the config it resolves to, and the runs of its sweep.

    `imports` are the classes of other projects that config and runs name. `tuning` is how the runs are to be tuned; they are
    `untuned` where the file says how, and the command does not want it.
    """

    file: ConfigFile
    config: RunConfig
    runs: tuple[Planned, ...]
    imports: tuple[str, ...] = ()
    tuning: Tuning | None = None
    untuned: bool = False


def planned(
    config: str,
    overrides: Sequence[str] = (),
    over: Sequence[str] = (),
    count: int | None = None,
    *,
    tune: bool = False,
) -> Plan:
    """Return what a command line means; with `tune`, the tuning too if `tune()` of the file lists candidates.

    Raises ValueError for whatever is wrong with the file, a key or a value, and for a field that is set twice.
    """
    file = load(config)
    held, factors = _settings(overrides, over, count)
    values, settings = file.config, override(file.config, held)
    if "name" not in held and settings.get("name", RunConfig.name) == RunConfig.name:
        stem = file.path.parent.name if file.path.name == "config.json" else file.path.stem
        settings["name"] = f"{stem}-{file.variant}" if file.variant else stem
        values = _renamed(values, settings["name"])
    resolved = parse(settings)
    runs = tuple(plan(values, file.sweep() if file.sweep is not None else [{}], held=held, factors=factors))
    candidates, found = list(file.tune()) if file.tune is not None else [], None
    if candidates and tune:
        drawn = DEFAULT_SEEDS if file.tuning_seeds is None else file.tuning_seeds()
        found = tuning(values, runs, candidates, drawn, held=held, said=factors[0])
    tried = [one.config for one in found.runs] if found else []
    imports = class_paths([resolved, *(one.config for one in runs), *tried])
    unsaid = [path for path in imports if not any(path in text for text in (*overrides, *over))]
    if unsaid and file.path.suffix != ".py":
        raise ValueError(
            f"{file.path} is data, which imports nothing, and names {unsaid[0]}: give that name on the command line too, as "
            "KEY=VALUE, if you trust it"
        )
    return Plan(file, resolved, runs, imports, found, bool(candidates) and not found)


def swept(plan: Plan) -> dict[str, str]:
    """Return the fields that the runs of a sweep set, with their distinct values as one short text each."""
    found: dict[str, list[str]] = {}
    for one in plan.runs:
        for key, value in one.changes.items():
            texts = found.setdefault(key, [])
            texts += [short] if (short := word(value)[:LONGEST]) not in texts else []
    more = lambda texts: f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return {key: ", ".join(texts[:SHOWN]) + more(texts) for key, texts in found.items()}


def _settings(overrides: Sequence[str], over: Sequence[str], count: int | None) -> tuple[Changes, list[Changes]]:
    """What holds in every run, and the tables whose product is asked for. Raises ValueError for a field set twice."""
    held, varied = [parse_override(text) for text in overrides], [parse_choices(text) for text in over]
    seeded: list[Sweep] = [] if count is None else [seeds(count)]
    said = [key for key, _ in (*held, *varied)] + [key for changes in seeded for key in next(iter(changes))]
    if twice := [key for key in said if said.count(key) > 1]:
        raise ValueError(f"{twice[0]} is set twice on the command line")
    return dict(held), product(*(vary(key, values) for key, values in varied), *seeded)


def _renamed(config: Any, name: str) -> Any:
    """The config with this name; a `ConfigDict`, which its file made for this plan alone, is itself changed."""
    if not is_config_dict(config):
        return {**config, "name": name}
    with config.unlocked():
        config.name = name
    return config
