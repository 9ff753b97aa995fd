"""From a config's name and the settings on the command line to the runs they mean.

What the command line sets holds in every run, over what the `sweep()` of the config sets: see `attnjax.sweep.plan.plan`.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from attnjax.config import RunConfig, load, override, parse, parse_choices, parse_override
from attnjax.config.config_dict import is_config_dict
from attnjax.config.files import ConfigFile
from attnjax.config.outside import class_paths
from attnjax.config.parse import plain
from attnjax.sweep import plan, product, seeds, vary
from attnjax.sweep.plan import Changes, Planned, Sweep
from attnjax.sweep.tuning import DEFAULT_SEEDS, Tuning, tuning

SHOWN, LONGEST = 6, 60
"""Values of a field that are printed, and characters of each."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A config file, the config it resolves to, and the runs of its sweep.

    `notes` say which settings of the command line replaced values that the sweep of the file sets; `imports` are the classes
    of other projects that config and runs name. `tuning` is how the runs are to be tuned; they are `untuned` where the file
    says how, and the command does not want it.
    """

    file: ConfigFile
    config: RunConfig
    runs: tuple[Planned, ...]
    notes: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    tuning: Tuning | None = None
    untuned: bool = False


def planned(
    config: str,
    overrides: Sequence[str] = (),
    over: Sequence[str] = (),
    count: int | None = None,
    *,
    alone: bool = False,
    tune: bool | None = False,
) -> Plan:
    """What a command line means; with `alone` the config itself, without the sweep of its file and its tuning.

    `tune`: whether runs are tuned; None: if `tune()` of the file lists candidates.
    Raises ValueError for whatever is wrong with the file, a key or a value, and for a field that is set twice.
    """
    file = load(config)
    held, factors = _settings(overrides, over, count)
    values, settings = file.config, override(file.config, held)
    if "name" not in held and settings.get("name", RunConfig.name) == RunConfig.name:
        stem = file.path.parent.name if file.path.name == "config.json" else file.path.stem
        settings["name"] = f"{stem}-{file.variant}" if file.variant else stem
        values = _renamed(values, settings["name"])
    resolved, sweep = parse(settings), list(file.sweep()) if file.sweep is not None and not alone else [{}]
    runs = tuple(plan(values, sweep, held=held, factors=factors))
    tried = list(file.tune()) if file.tune is not None else []
    found = _tuning(file, values, runs, held, factors[0], tried) if tried and not alone and tune is not False else None
    if tune and found is None:
        raise ValueError(f"--tune: {file.path} has no function tune(), which lists the candidates, or it lists none")
    candidates = [one.config for one in found.runs] if found else []
    imports = class_paths([resolved, *(one.config for one in runs), *candidates])
    unsaid = [path for path in imports if not any(path in text for text in (*overrides, *over))]
    if unsaid and file.path.suffix != ".py":
        raise ValueError(
            f"{file.path} is data, which imports nothing, and names {unsaid[0]}: give that name on the command line too, as "
            "KEY=VALUE, if you trust it"
        )
    return Plan(
        file,
        resolved,
        runs,
        tuple(_replaced(sweep, {*held, *factors[0]})),
        imports,
        found,
        bool(tried) and not found,
    )


def swept(plan: Plan) -> dict[str, list[Any]]:
    """The fields in which runs of the sweep differ from the config itself, with the value of each run."""
    own, tables = _fields(plan.config), [_fields(one.config) for one in plan.runs]
    found = {key: [table[key] for table in tables] for key in own}
    return {key: values for key, values in found.items() if any(value != own[key] for value in values)}


def shown(values: Iterable[Any]) -> str:
    """The distinct values of a field in one short text, in their order."""
    texts = list(dict.fromkeys(map(_text, values)))
    return ", ".join(texts[:SHOWN]) + (f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else "")


def _fields(config: RunConfig) -> dict[str, Any]:
    """The fields of a config by dotted key; the encoding and the options of the task are one field each."""
    fields: dict[str, Any] = {}
    for name, value in vars(config).items():
        fields.update(
            {f"{name}.{key}": one for key, one in vars(value).items()}
            if dataclasses.is_dataclass(value)
            else {name: value}
        )
    return fields


def _text(value: Any) -> str:
    """A value as JSON, an encoding without options as its name; cut after 60 characters."""
    value = plain(value)
    bare = isinstance(value, dict) and value.get("options") == {} and value.keys() == {"name", "options"}
    text = json.dumps(value["name"] if bare else value, default=str)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _settings(overrides: Sequence[str], over: Sequence[str], count: int | None) -> tuple[Changes, list[Changes]]:
    """What holds in every run, and the tables whose product is asked for. Raises ValueError for a field set twice."""
    held = [(text, *parse_override(text)) for text in overrides]
    varied = [(f"--over {text}", *parse_choices(text)) for text in over]
    factors: list[Sweep] = [vary(key, values) for _, key, values in varied]
    said = [(text, key) for text, key, _ in (*held, *varied)]
    if count is not None:
        factors.append(seeds(count))
        said += [(f"--seeds {count}", key) for key in ("seed", "data_seed")]
    first: dict[str, str] = {}
    for text, key in said:
        if key in first:
            raise ValueError(f"{key} is set twice on the command line: by {first[key][:100]} and by {text[:100]}")
        first[key] = text
    return {key: value for _, key, value in held}, product(*factors)


def _tuning(
    file: ConfigFile, values: Any, runs: Sequence[Planned], held: Changes, said: Iterable[str], tried: Sequence[Changes]
) -> Tuning:
    """How the runs are tuned, as the functions of the file say."""
    drawn = DEFAULT_SEEDS if file.tuning_seeds is None else file.tuning_seeds()
    return tuning(values, runs, tried, drawn, held=held, said=said)


def _renamed(config: Any, name: str) -> Any:
    """The config with this name; a `ConfigDict`, which its file made for this plan alone, is itself changed."""
    if not is_config_dict(config):
        return {**config, "name": name}
    with config.unlocked():
        config.name = name
    return config


def _replaced(sweep: Sequence[Changes], keys: Iterable[str]) -> Iterable[str]:
    """A sentence about each key of the command line that the sweep sets too."""
    for key in sorted(keys):
        same = [value for changes in sweep for one, value in changes.items() if f"{one}.".startswith(f"{key}.")]
        around = {one for changes in sweep for one in changes if key.startswith(f"{one}.")}
        if same:
            yield f"{key}: the command line wins over the sweep of the config, which sets {shown(same)}"
        for one in sorted(around):
            yield f"{key}: set in every {one} of the sweep"
