"""From a config's name and the changes on the command line to the runs they mean."""

import dataclasses
from collections.abc import Sequence

from attnjax.config import RunConfig, load, override, parse, parse_choices, parse_override
from attnjax.config.files import ConfigFile
from attnjax.sweep import plan, product, seeds, vary
from attnjax.sweep.plan import Changes, Planned, Sweep


@dataclasses.dataclass(frozen=True)
class Plan:
    """A config file, the config it resolves to, and the runs of its sweep."""

    file: ConfigFile
    config: RunConfig
    runs: tuple[Planned, ...]


def planned(
    config: str,
    overrides: Sequence[str] = (),
    over: Sequence[str] = (),
    count: int | None = None,
    *,
    alone: bool = False,
) -> Plan:
    """What a command line means; with `alone` the config itself, without the sweep of its file.

    Raises ValueError for whatever is wrong with the file, a key or a value.
    """
    file = load(config)
    base = override(file.config, dict(map(parse_override, overrides)))
    if base.get("name", RunConfig.name) == RunConfig.name:
        stem = file.path.parent.name if file.path.name == "config.json" else file.path.stem
        base["name"] = f"{stem}-{file.argument}" if file.argument else stem
    return Plan(file, parse(base), tuple(plan(base, [{}] if alone else _sweep(file, over, count))))


def _sweep(file: ConfigFile, over: Sequence[str], count: int | None) -> list[Changes]:
    factors: list[Sweep] = [file.sweep() if file.sweep is not None else [{}]]
    factors += [vary(*parse_choices(text)) for text in over]
    if count is not None:
        factors.append(seeds(count))
    return product(*factors)
