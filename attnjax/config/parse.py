"""Dict or `ml_collections.ConfigDict` to `RunConfig` and back, and the hashes that name runs and cells."""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from attnjax.config.kinds import Count, build, coerce, key_of, shown
from attnjax.config.schema import SCHEMA, EncodingConfig, ModelConfig, RunConfig

SEEDS = ("seed", "data_seed")


def parse(values: Any) -> RunConfig:
    """Returns a `RunConfig` from a dict, an `ml_collections.ConfigDict`, or itself.

    Raises ValueError, naming the field by its dotted path, for unknown keys (with the nearest one), wrong types, numbers
    that are NaN, infinite or out of range, and settings that do not fit together.

    Example:
      >>> parse({"model": {"encoding": "alibi"}}).model.encoding.name
      'alibi'
    """
    if isinstance(values, RunConfig):
        return values
    table = plain(values)
    if not isinstance(table, dict):
        raise ValueError(f"a config must be a table of settings, got {shown(values)}")
    schema = coerce(Count, table.pop("schema", SCHEMA), "the version of a config, schema,")
    if schema > SCHEMA:
        raise ValueError(
            f"the config was written by a newer version of attnjax: schema {schema}, this one reads {SCHEMA}"
        )
    return build(RunConfig, table)


def plain(value: Any) -> Any:
    """Returns a config in any form, or a part of one, as dicts and lists that may be changed.

    Raises ValueError where tables are nested too deeply, as in a table that holds itself.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise ValueError("a config must not be nested this deeply") from None


def to_dict(config: Any, *, whole: bool = True) -> dict[str, Any]:
    """Returns a nested dict of plain values, as JSON has them (lists for tuples); `parse` of it gives the same config.

    Without `whole`, fields that were added since runs are stored are left out at their defaults. That form is what is
    stored and hashed, so that a new field changes the id of no run that does not use it.
    """
    values = [(field, getattr(config, field.name)) for field in dataclasses.fields(config)]
    left_out = lambda field, value: not whole and "added" in field.metadata and value == field.default
    return {key_of(field): _plain(value, whole) for field, value in values if not left_out(field, value)}


def canonical_json(config: RunConfig) -> str:
    """Returns the one text of a config: keys sorted, no spaces, ASCII, with the schema's version."""
    return _canonical(to_dict(config, whole=False))


def run_id(config: RunConfig) -> str:
    """Returns the first 16 hex digits of the sha256 of the canonical JSON."""
    return _digest(canonical_json(config))


def run_id_of(config: Mapping[str, Any]) -> str:
    """Returns the same of a stored config, which need not be parsed. Raises ValueError for a table with NaN or infinity."""
    return _digest(_canonical(dict(config)))


def cell_id(config: RunConfig | Mapping[str, Any]) -> str:
    """Returns the same without the seeds: equal for runs that differ in their seeds alone. A stored config need not be parsed.

    Raises ValueError for a table with NaN or infinity.
    """
    values = config if isinstance(config, Mapping) else to_dict(config, whole=False)
    return _digest(_canonical({name: value for name, value in values.items() if name not in SEEDS}))


def encoding_name(model: ModelConfig, *, options: bool = False) -> str:
    """Returns the name of a model's encoding, in the index, in records and on pages; of several, each once, joined by "+".

    `options`: each with the options it was given, "rope(theta=500.0)".
    """

    def named(one: EncodingConfig) -> str:
        given = ", ".join(f"{key}={value}" for key, value in one.options.items())
        return f"{one.name}({given})" if options and given else one.name

    return "+".join(dict.fromkeys(map(named, model.encodings)))


def defaults() -> Any:
    """Returns a locked `ml_collections.ConfigDict` with every field at its default, to be changed in a `get_config()`.

    `model.encoding` takes a name, a table or one of either per layer; options of tasks, encodings and optimizers are free.
    """
    from ml_collections import ConfigDict, FieldReference

    config = ConfigDict(to_dict(RunConfig()), convert_dict=True)
    encoding = config.model.encoding
    tables = (config.task, "options"), (encoding, "options"), (config.optimizer, "options"), (config.model, "encoding")
    for table, name in tables:
        # A field's first type would be its only one, without a reference that says otherwise.
        value = table[name]
        del table[name]
        table[name] = FieldReference(value, field_type=object)
    config.lock()
    for table in (config.task, encoding, config.optimizer):
        table.options.unlock()
    return config


def is_config_dict(config: Any) -> bool:
    """Returns whether this is a `ConfigDict`, which is no `Mapping`. ml_collections is not imported for the answer."""
    module = sys.modules.get("ml_collections")
    return module is not None and isinstance(config, module.ConfigDict)


def derives(config: Any) -> bool:
    """Returns whether a field of a `ConfigDict` may be derived from another field, or has to be given."""
    from ml_collections import FieldReference

    for name, field in config.items(preserve_field_references=True):
        # The references of `defaults` have the type `object`.
        if isinstance(field, FieldReference) and field.get_type() is not object:
            return True
        if is_config_dict(config[name]) and derives(config[name]):
            return True
    return False


def values_of(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns a `ConfigDict` as a nested dict.

    Raises ValueError, with the dotted key, for a field that must be given or cannot be derived.
    """
    table = {}
    for name in config:
        key = f"{prefix}{name}"
        try:
            value = config[name]
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            raise ValueError(f"{key} has no value, give {key}=VALUE ({why})") from error
        table[name] = values_of(value, f"{key}.") if is_config_dict(value) else value
    return table


def _canonical(values: dict[str, Any]) -> str:
    return json.dumps({"schema": SCHEMA, **values}, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any, whole: bool = True) -> Any:
    if is_config_dict(value):
        value = values_of(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value, whole=whole)
    if isinstance(value, Mapping):
        return {name: _plain(one, whole) for name, one in value.items()}
    return [_plain(one, whole) for one in value] if isinstance(value, list | tuple) else value
