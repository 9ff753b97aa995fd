"""Dotted keys of a config, `train.steps`: what each may hold, and which is nearest to a misspelt one."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from attnjax.config.kinds import alternatives, key_of
from attnjax.config.names import nearest
from attnjax.config.options import Options
from attnjax.config.schema import RunConfig


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
            kind = Any
            continue
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
    """Returns a hint: keys of the same table that contain the word; else one of the same word, or one that is like it.

    Example:
      >>> nearest_key("train.lr"), nearest_key("learning_rate")
      (" (did you mean 'train.learning_rate'?)", " (did you mean 'train.learning_rate'?)")
    """
    table, _, last = key.rpartition(".")
    words = {one: one.rpartition(".")[2] for one in keys()}
    same = [one for one in words if one.rpartition(".")[0] == table]
    found = [one for one in same if table and last in words[one].split("_")]
    for candidates in ([one for one in words if words[one] == last], same, words):
        hint = nearest(last, [words[one] for one in candidates])
        found = found or [one for one in candidates if repr(words[one]) in hint][:1]
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


def _table(kind: Any) -> Any:
    """The dataclass, or `Options`, that a field holds; None where it holds none."""
    tables = [one for one in alternatives(kind) if one is Options or dataclasses.is_dataclass(one)]
    return tables[0] if tables else None


def _fields(table: Any) -> dict[str, Any]:
    return {key_of(field): field.type for field in dataclasses.fields(table)} if table not in (None, Options) else {}
