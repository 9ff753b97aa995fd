"""Changes of a config by dotted keys: `{"train.steps": 100}` from a sweep, `train.steps=100` from the command line.

The type of the field decides how a text is read: `name=007` stays a text, `train.steps=007` is refused, `none` is None.
Nothing is evaluated: a value is a literal number, quoted text, list, tuple or table.
"""

import ast
import contextlib
import copy
import dataclasses
import json
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from attnjax.config.kinds import Options, alternatives, coerce, is_named, key_of, shown
from attnjax.config.names import nearest
from attnjax.config.parse import is_config_dict, plain
from attnjax.config.schema import RunConfig

WORDS = (("none", None), ("null", None), ("true", True), ("false", False))


def override(config: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config as a nested dict with these dotted keys set, the shorter keys first. `parse` then checks the values.

    What a `ConfigDict` derives from a changed field follows it. Raises ValueError for a key that is no field, with the
    nearest one, and for a field of a `ConfigDict` that is left without a value.

    Example:
      >>> override({"train": {"batch": 8}}, {"train.steps": 20})
      {'train': {'batch': 8, 'steps': 20}}
    """
    for key in changes:
        kind_of(key)
    values = plain(_followed(config, changes) if is_config_dict(config) and changes else config)
    for key in sorted(changes, key=lambda key: key.count(".")):
        _set(values, key.split("."), plain(changes[key]))
    return values


def outside(changes: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Returns the changes without those of one of the keys, or of a field inside one of them."""
    keys = list(keys)
    return {key: value for key, value in changes.items() if not any(f"{key}.".startswith(f"{one}.") for one in keys)}


def parse_override(text: str) -> tuple[str, Any]:
    """Returns `("train.steps", 100)` for `train.steps=100`.

    Raises ValueError for a text that is not KEY=VALUE, and for an unknown key.
    """
    key, value = split_override(text)
    return key, read_value(value, kind_of(key))


def parse_choices(text: str) -> tuple[str, list[Any]]:
    """Returns `("seed", [0, 1, 2])` for `seed=0,1,2`: values are separated by commas outside brackets and quotes."""
    key, values = split_override(text)
    kind = kind_of(key)
    return key, [read_value(value, kind) for value in _split(values)]


def split_override(text: str) -> tuple[str, str]:
    """Returns key and value of KEY=VALUE, both as texts."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"an override must be KEY=VALUE, as train.steps=100, got {shown(text)}")
    return key.strip(), value.strip()


def read_value(text: str, kind: Any) -> Any:
    """Returns the value of a text in a field of this kind. A text that is no literal stays a text, which `parse` checks.

    Example:
      >>> read_value("8,16", tuple[int, ...]), read_value("none", int | None), read_value("007", str)
      ((8, 16), None, '007')
    """
    kinds = alternatives(kind)
    for word, value in WORDS:
        if text.lower() == word and (kind is Any or type(value) in kinds):
            return value
    texts = (one is str or is_named(one) or typing.get_origin(one) is Literal for one in kinds)
    if any(texts) and text[:1] not in ("'", '"', "[", "(", "{"):
        return text
    value = _literal(text)
    lists = all(typing.get_origin(one) is tuple for one in kinds if one is not type(None))
    return [value] if lists and not isinstance(value, list | tuple) else value


def kind_of(key: str) -> Any:
    """Returns the annotation of the field with this dotted key, `Any` for what lies inside options.

    Raises ValueError, with the nearest key, where there is no such field.

    Example:
      >>> kind_of("model.bias")
      <class 'bool'>
    """
    kind: Any = RunConfig
    for part in str(key).split("."):
        table = _table(kind)
        if table is Options or kind is Any:
            return Any
        fields = _fields(table)
        if part not in fields:
            hint = nearest_key(str(key)[:100]) or (f"; there are: {', '.join(fields)}" if fields else "")
            raise ValueError(f"unknown key {str(key)[:100]!r}{hint}")
        kind = fields[part]
    return kind


def keys(kind: Any = RunConfig, prefix: str = "") -> Iterator[str]:
    """Yields all dotted keys of a config, those of tables included."""
    for name, inner in _fields(_table(kind)).items():
        yield f"{prefix}{name}"
        yield from keys(inner, f"{prefix}{name}.")


def nearest_key(key: str) -> str:
    """Returns a hint: keys of the same table that contain the word; else one whose last word is like it.

    Example:
      >>> nearest_key("train.lr"), nearest_key("learning_rate")
      (" (did you mean 'train.learning_rate'?)", " (did you mean 'train.learning_rate'?)")
    """
    table, _, last = key.rpartition(".")
    same = [one for one in keys() if one.rpartition(".")[0] == table]
    found = [one for one in same if table and last in one.rpartition(".")[2].split("_")]
    if not found:
        # A word that several tables have is that of the same table.
        words = {one.rpartition(".")[2]: one for one in [*keys(), *same]}
        hint = nearest(last, words)
        found = [one for word, one in words.items() if repr(word) in hint]
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


def _followed(config: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a `ConfigDict` in which what is derived from changed fields is computed from their new values.

    Raises ValueError, with the dotted key, for a value that a field does not take.
    """
    config = copy.deepcopy(config)
    for key, value in changes.items():
        value = coerce(kind_of(key), value, key)
        *path, name = key.split(".")
        table = _inside(config, path)
        if is_config_dict(table) and name in table:
            with table.unlocked(), table.ignore_type():
                table[name] = value
    return config


def _inside(config: Any, path: list[str]) -> Any:
    """The field at a path, None where there is none."""
    for name in path:
        if not is_config_dict(config) or name not in config:
            return None
        config = config[name]
    return config


def _table(kind: Any) -> Any:
    """The dataclass, or `Options`, that a field holds; None where it holds none."""
    tables = [one for one in alternatives(kind) if one is Options or dataclasses.is_dataclass(one)]
    return tables[0] if tables else None


def _fields(table: Any) -> dict[str, Any]:
    return {key_of(field): field.type for field in dataclasses.fields(table)} if table not in (None, Options) else {}


def _literal(text: str) -> Any:
    for read in (ast.literal_eval, json.loads):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return read(text)
    return text


def _split(text: str) -> list[str]:
    """The parts between commas outside brackets and quotes."""
    parts: list[str] = []
    for piece in text.split(","):
        if parts and _is_open(parts[-1]):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return [part.strip() for part in parts]


def _is_open(text: str) -> bool:
    opened, closed = (sum(map(text.count, brackets)) for brackets in ("([{", ")]}"))
    return opened > closed or text.count('"') % 2 == 1 or text.count("'") % 2 == 1


def _set(values: dict[str, Any], path: list[str], value: Any) -> None:
    key = ".".join(path)
    for name in path[:-1]:
        inner = values.get(name)
        if isinstance(inner, list):
            raise ValueError(f"{key} cannot be set: {name} has one entry per layer; set {name} as a whole")
        if isinstance(inner, str):  # an encoding given by its name alone
            inner = {"name": inner}
        if not isinstance(inner, dict | None):
            raise ValueError(f"{key} cannot be set: {name} is {shown(inner)}")
        values[name] = inner or {}
        values = values[name]
    values[path[-1]] = value
