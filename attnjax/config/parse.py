"""Dict to `RunConfig` and back, and the hashes that name runs and cells."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from attnjax.config.keys import check_keys
from attnjax.config.kinds import build, key_of
from attnjax.config.options import Options, shown
from attnjax.config.references import is_config_dict, resolved
from attnjax.config.schema import SCHEMA, EncodingConfig, ModelConfig, RunConfig

SEEDS = ("seed", "data_seed")


def parse(values: Any) -> RunConfig:
    """A `RunConfig` from a dict, an `ml_collections.ConfigDict`, or itself.

    Raises ValueError, naming the field by its dotted path, for unknown keys (with the nearest one), wrong types, numbers
    that are NaN, infinite or out of range, and settings that do not fit together.
    """
    if isinstance(values, RunConfig):
        return values
    values = plain(values)
    check_keys(values)
    return build(RunConfig, values)


def plain(values: Any) -> dict[str, Any]:
    """A nested dict from a config in any form. Raises ValueError for what is not a table of settings."""
    if isinstance(values, RunConfig):
        return to_dict(values)
    if is_config_dict(values):
        values = resolved(values)
    if not isinstance(values, Mapping):
        raise ValueError(f"a config must be a table of settings, got {shown(values)}")
    if "schema" in values:
        check_schema(values["schema"], "the config")
    return {name: unshared(value) for name, value in values.items() if name != "schema"}


def to_dict(config: Any, *, whole: bool = True) -> dict[str, Any]:
    """A nested dict of plain values, as JSON has them (lists for tuples); `parse` of it gives the same config.

    Without `whole`, fields that were added since runs are stored are left out at their defaults. That form is what is
    stored and hashed, so that a new field changes the id of no run that does not use it.
    """
    values = [(field, getattr(config, field.name)) for field in dataclasses.fields(config)]
    left_out = lambda field, value: not whole and "added" in field.metadata and value == field.default
    return {key_of(field): _jsonable(value, whole) for field, value in values if not left_out(field, value)}


def canonical_json(config: RunConfig) -> str:
    """The one text of a config: keys sorted, no spaces, ASCII, with the schema's version; see `to_dict` for what it omits."""
    return _canonical(to_dict(config, whole=False))


def run_id(config: RunConfig) -> str:
    """First 16 hex digits of the sha256 of the canonical JSON."""
    return _digest(canonical_json(config))


def cell_id(config: RunConfig | Mapping[str, Any]) -> str:
    """The same without the seeds: equal for runs that differ in their seeds alone. A stored config need not be parsed.

    Raises ValueError for a table with NaN or infinity.
    """
    values = config if isinstance(config, Mapping) else to_dict(config, whole=False)
    return _digest(_canonical({name: value for name, value in values.items() if name not in SEEDS}))


def defaults() -> Any:
    """A locked `ml_collections.ConfigDict` with every field at its default, to be changed in a `get_config()`.

    `model.encoding` takes a name, a table or one of either per layer; options of tasks, encodings and optimizers are free.
    """
    from ml_collections import ConfigDict, config_dict

    config = ConfigDict(to_dict(RunConfig()), convert_dict=True)
    # A field's first type would be its only one, without a reference that says otherwise.
    loose = lambda value: config_dict.FieldReference(value, field_type=object)
    encoding = config.model.encoding
    tables = (config.task, "options"), (encoding, "options"), (config.optimizer, "options"), (config.model, "encoding")
    for table, name in tables:
        value = table[name]
        del table[name]
        table[name] = loose(value)
    config.lock()
    config.task.options.unlock()
    encoding.options.unlock()
    config.optimizer.options.unlock()
    return config


def check_schema(schema: Any, what: str) -> None:
    """Raise ValueError unless `schema` is a version that this code can read."""
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise ValueError(f"{what} must have a schema version, a whole number of at least 1, got {shown(schema)}")
    if schema > SCHEMA:
        raise ValueError(f"{what} was written by a newer version of attnjax (schema {schema}, this one reads {SCHEMA})")


def _canonical(values: dict[str, Any]) -> str:
    return json.dumps({"schema": SCHEMA, **values}, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _jsonable(value: Any, whole: bool) -> Any:
    if isinstance(value, Options):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return to_dict(value, whole=whole)
    return [_jsonable(one, whole) for one in value] if isinstance(value, tuple) else value


def unshared(value: Any, depth: int = 0) -> Any:
    """Nested tables as dicts that may be written to. Raises ValueError below 20 levels: a table may hold itself."""
    if depth > 20:
        raise ValueError("a config must not be nested more than 20 deep")
    if isinstance(value, Options):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {name: unshared(one, depth + 1) for name, one in value.items()}
    return [unshared(one, depth + 1) for one in value] if isinstance(value, list | tuple) else value


def encoding_name(model: ModelConfig, *, options: bool = False) -> str:
    """The name of a model's encoding, in the index, in records and on pages; of several, each distinct one joined by "+".

    `options`: each with the options it was given, "rope(theta=500.0)".
    """

    def named(one: EncodingConfig) -> str:
        given = ", ".join(f"{key}={value}" for key, value in dict(one.options).items())
        return f"{one.name}({given})" if options and given else one.name

    return "+".join(dict.fromkeys(map(named, model.encodings)))
