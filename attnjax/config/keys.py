"""Dotted keys of a config, `train.steps`: which there are, what each may hold, and which is nearest to a misspelt one."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union

from attnjax.config.kinds import key_of
from attnjax.config.names import nearest
from attnjax.config.options import Options, shown
from attnjax.config.schema import EncodingConfig, RunConfig


def kind_of(key: str) -> Any:
    """The annotation of the field with this dotted key; `Any` for what lies inside options.

    Raises ValueError where there is no such field, with the nearest key.
    """
    if not isinstance(key, str):
        raise ValueError(f"a key must be a dotted name, as train.steps, got {shown(key)}")
    kind: Any = RunConfig
    for part in key.split("."):
        record = record_of(kind)
        if record is Options or kind is Any:
            kind = Any
            continue
        names = _kinds(record) if record else {}
        if part not in names:
            hint = nearest_key(key[:100]) or f"; there are: {', '.join(names)}"
            raise ValueError(f"unknown key {key[:100]!r}{hint}")
        kind = names[part]
    return kind


def check_keys(values: Mapping[Any, Any], kind: Any = RunConfig, prefix: str = "") -> None:
    """Raise ValueError as `kind_of` does for the first key of nested tables that no config has."""
    record = record_of(kind)
    if record is Options or kind is Any:
        return
    names = _kinds(record) if record else {}
    for name, value in values.items():
        inside = names[name] if name in names else kind_of(f"{prefix}{name}")
        if isinstance(value, dict):
            check_keys(value, inside, f"{prefix}{name}.")


def keys() -> list[str]:
    """All dotted keys of a config, tables included."""
    return list(_keys(RunConfig, ""))


def nearest_key(key: str) -> str:
    """A hint: the keys of the same table with this word in their names; else one key, with the same last word elsewhere,
    like it in the same table, or like it anywhere.
    """
    everything, (table, _, last) = keys(), key.rpartition(".")
    last_word = lambda one: one.rpartition(".")[2]
    same_table = [one for one in everything if one.rpartition(".")[0] == table]
    if table and (longer := [one for one in same_table if last in last_word(one).split("_")]):
        return f" (did you mean {' or '.join(map(repr, longer))}?)"
    for candidates in ([one for one in everything if last_word(one) == last], same_table, everything):
        hint = nearest(last, map(last_word, candidates))
        found = [one for one in candidates if repr(last_word(one)) in hint]
        if found:
            return f" (did you mean {found[0]!r}?)"
    return ""


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types a field takes, without their ranges."""
    if typing.get_origin(kind) is Annotated:
        return alternatives(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (Union, types.UnionType):
        return tuple(one for part in typing.get_args(kind) for one in alternatives(part))
    if typing.get_origin(kind) is typing.Literal or kind is EncodingConfig:
        return (str, kind)
    return (kind,)


def record_of(kind: Any) -> Any:
    """The table that a field holds, if it is one."""
    for one in alternatives(kind):
        if one is Options or dataclasses.is_dataclass(one):
            return one
    return None


def _kinds(record: Any) -> dict[str, Any]:
    return {key_of(field): field.type for field in dataclasses.fields(record)}


def _keys(record: Any, prefix: str) -> Iterator[str]:
    for name, kind in _kinds(record).items():
        yield prefix + name
        inner = record_of(kind)
        if inner and inner is not Options:
            yield from _keys(inner, f"{prefix}{name}.")
