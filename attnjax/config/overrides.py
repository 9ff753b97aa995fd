"""Changes of a config by dotted keys: `{"train.steps": 100}` from a sweep, `train.steps=100` from the command line.

The type of the field decides how a text is read: `name=007` stays a text, `train.steps=007` is refused, `none` is None.
Nothing is evaluated: a value is a literal number, quoted text, list, tuple or table.
"""

import ast
import functools
import operator
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from attnjax.config.keys import alternatives, kind_of
from attnjax.config.options import shown
from attnjax.config.parse import plain, unshared
from attnjax.config.references import is_config_dict, resolved

LONGEST = 10_000
WORDS = (("none", None), ("null", None), ("true", True), ("false", False))


def override(config: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The config as a nested dict with these dotted keys set, the shorter keys first. `parse` then checks the values.

    What a `ConfigDict` derives from a changed field follows it. Raises ValueError for a key that is no field, with the
    nearest one, and for a required placeholder that is left without a value.
    """
    for key in changes:
        kind_of(key)
    values = plain(resolved(config, changes) if is_config_dict(config) else config)
    for key in sorted(changes, key=lambda key: str(key).count(".")):
        _set(values, key.split("."), unshared(changes[key]))
    return values


def outside(changes: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The changes without those of one of the keys, or of a field inside one of them."""
    keys = list(keys)
    return {key: value for key, value in changes.items() if not any(f"{key}.".startswith(f"{one}.") for one in keys)}


def folded(changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, in which a setting inside a changed table is set: theta in each encoding that a sweep changes."""
    found = dict(changes)
    for outer in found:
        for key in (key for key in settings if key.startswith(f"{outer}.")):
            table: dict[str, Any] = {}
            path = outer.split(".")
            _set(table, path, unshared(found[outer]))
            _set(table, key.split("."), unshared(settings[key]))
            found[outer] = functools.reduce(operator.getitem, path, table)
    return found


def parse_override(text: str) -> tuple[str, Any]:
    """`("train.steps", 100)` for `train.steps=100`. Raises ValueError for a text that is not KEY=VALUE, or an unknown key."""
    key, value = split_override(text)
    return key, read_value(value, kind_of(key), key)


def parse_choices(text: str) -> tuple[str, list[Any]]:
    """`("seed", [0, 1, 2])` for `seed=0,1,2`: values are separated by commas outside brackets and quotes."""
    key, values = split_override(text)
    kind = kind_of(key)
    return key, [read_value(value, kind, key) for value in _split(values)]


def split_override(text: str) -> tuple[str, str]:
    """Key and value of KEY=VALUE, both as texts."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or len(text) > LONGEST:
        raise ValueError(f"an override must be KEY=VALUE, as train.steps=100, got {shown(text)}")
    return key.strip(), value.strip()


def read_value(text: str, kind: Any, key: str) -> Any:
    """The value of a text in a field of this type. A text that is no literal stays a text, which `parse` then checks."""
    choices = alternatives(kind)
    for word, value in WORDS:
        if text.lower() == word and (kind is Any or type(value) in choices):
            return value
    if str in choices and text[:1] not in ("'", '"', "[", "(", "{"):
        return text
    value = _literal(text, key)
    takes_lists = any(typing.get_origin(one) is tuple for one in choices)
    if isinstance(value, tuple) and text[:1] != "(" and any(_is_pair(one) for one in choices):
        raise ValueError(
            f"{key}={text} can be read in two ways: write {key}=[{text}] for one pair, left and right, in every layer"
        )
    if takes_lists and int not in choices and isinstance(value, int):
        return [value]
    return value


def _is_pair(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple and ... not in typing.get_args(kind)


def _literal(text: str, key: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"the value of {key} is nested too deep") from error
    return value if not isinstance(value, bytes | complex | set) else text


def _split(text: str) -> list[str]:
    """The parts between commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for ch in text:
        if quote:
            quote = "" if ch == quote else quote
        elif ch in "\"'":
            quote = ch
        depth += 0 if quote else (ch in "([{") - (ch in ")]}")
        if ch == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += ch
    return [part.strip() for part in parts]


def _set(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner: Any = values.get(name)
        if isinstance(inner, str):  # an encoding given by its name alone
            inner = {"name": inner}
        elif isinstance(inner, list):
            raise ValueError(f"{'.'.join(path)} cannot be set: {name} has one entry per layer; set {name} as a whole")
        inner = {} if inner is None else inner
        values[name] = inner
        if not isinstance(inner, dict):
            raise ValueError(f"{'.'.join(path)} cannot be set: {name} is {shown(inner)}")
        values = inner
    values[path[-1]] = value
