"""What a field may hold: its annotation decides which values are taken, and what the refusal says.

`Annotated[int, Range(1)]` is a whole number of at least 1; `X | None`, `Literal[...]`, tuples and dataclasses work as they
read. A bool is no number, a whole number is taken where a float is asked for, NaN and infinity are taken nowhere. An annotation
that is no class, as `Any`, is not checked. `Options` are the free options of a task, an encoding or an optimizer.
"""

import dataclasses
import math
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union

from attnjax.config.names import nearest

LARGEST = 2**31 - 1
"""Counters are int32 on the device."""


@dataclasses.dataclass(frozen=True)
class Range:
    """low <= value <= high, or without the ends where `open`."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value lies within."""
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low = f"{'above' if self.open_low else 'at least'} {self.low:g}"
        high = f"{'below' if self.open_high else 'at most'} {self.high:.10g}"
        return " and ".join([low] * (self.low > -math.inf) + [high] * (self.high not in (math.inf, LARGEST)))


Count = Annotated[int, Range(1, LARGEST)]
Index = Annotated[int, Range(0, LARGEST)]
Width = Annotated[int, Range(1, 2**16)]
"""Channels or heads; the exact frequencies of a wider head would take minutes."""
Size = Annotated[int, Range(1, 2**20)]
"""A hidden layer, a length or a batch. A larger one is a mistake, which would otherwise end in a machine without memory."""
Layers = Annotated[int, Range(1, 1000)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
AtMostOne = Annotated[float, Range(0, 1)]
Rate = Annotated[float, Range(0, 1, open_high=True)]
"""0 <= rate < 1."""


def coerce(kind: Any, value: Any, path: str) -> Any:
    """Returns `value` as a field of this kind holds it.

    Raises ValueError, with the dotted path, for a value that the kind does not take.

    Example:
      >>> coerce(Positive | None, 1, "model.scale")
      1.0
    """
    value = unwrap(value)
    for one in alternatives(kind):
        base, limits = typing.get_args(one) if typing.get_origin(one) is Annotated else (one, Range())
        arguments = typing.get_args(base)
        if base is int or base is float:
            if _is_number(base, value) and limits.holds(value):
                # Adding 0.0 makes -0.0 the same setting as 0.0.
                return float(value) + 0.0 if base is float else value
        elif typing.get_origin(base) is Literal:
            if isinstance(value, str) and value in arguments:
                return value
        elif typing.get_origin(base) is tuple:
            if isinstance(value, list | tuple) and (arguments[-1] is ... or len(value) == len(arguments)):
                kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
                return tuple(coerce(kinds[i], entry, f"{path}[{i}]") for i, entry in enumerate(value))
        elif is_named(base) and isinstance(value, str):
            return base(value)
        elif _is_table(base) and isinstance(value, Mapping):
            return Options(value, path=path) if base is Options else build(base, value, path)
        elif base is Any or not isinstance(base, type) or isinstance(value, base):
            return value
    words = [word for one in alternatives(kind) for word in typing.get_args(one) if isinstance(word, str)]
    hint = nearest(value, words) if isinstance(value, str) else ""
    raise ValueError(f"{path} must be {describe(kind)}, got {shown(value)}{hint}")


def describe(kind: Any) -> str:
    """Returns a kind in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return f"{describe(arguments[0])} {str(arguments[1]).replace('at', 'of at', 1)}".rstrip()
    if origin in (Union, types.UnionType):
        return " or ".join(describe(one) for one in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple:
        inner = describe(arguments[0])
        return f"a list ({inner} each)" if arguments[-1] is ... else f"a list of {len(arguments)} ({inner} each)"
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text", type(None): "none"}
    other = "a table of settings" if _is_table(kind) else f"a {getattr(kind, '__name__', kind)}"
    return names.get(kind, other)


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the kind itself."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        return tuple(one for part in typing.get_args(kind) for one in alternatives(part))
    return (kind,)


def build(kind: Any, values: Mapping[Any, Any], path: str = "") -> Any:
    """Returns a dataclass from a mapping of its keys. A field that is not given keeps its default.

    Raises ValueError, with the nearest key, for a key that it does not have.
    """
    names = {key_of(field): field.name for field in dataclasses.fields(kind)}
    for key in values:
        if key not in names:
            unknown = f"{path}.{str(key)[:100]}".lstrip(".")
            raise ValueError(
                f"unknown key {unknown!r}{nearest(key, names)}; {path or 'a config'} has: {', '.join(names)}"
            )
    return kind(**{names[key]: value for key, value in values.items()})


def key_of(field: dataclasses.Field) -> str:
    """Returns the name of a field in configs and records: its own, unless its metadata say under which one it was stored."""
    return field.metadata.get("key", field.name)


def settle(record: Any, path: str) -> None:
    """Checks and normalises every field of a frozen dataclass that is being made. Raises ValueError as `coerce` does."""
    for field in dataclasses.fields(record):
        value = coerce(field.type, getattr(record, field.name), f"{path}.{key_of(field)}".lstrip("."))
        object.__setattr__(record, field.name, value)


def check_order(low_name: str, low: int, high_name: str, high: int) -> None:
    """Raises ValueError unless low <= high."""
    if low > high:
        raise ValueError(f"{low_name}={low} must not be above {high_name}={high}")


def is_named(kind: Any) -> bool:
    """Returns whether a kind is a table that a config may give by its name alone: its class says `by_name = True`."""
    return getattr(kind, "by_name", False)


def _is_number(kind: type, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | kind):
        return False
    return kind is int or abs(value) <= sys.float_info.max


def _is_table(kind: Any) -> bool:
    return kind is Options or dataclasses.is_dataclass(kind)


DEEPEST = 4
"""A record of somebody else that is nested more deeply would end in a RecursionError later, far from its name."""


class Options(Mapping[str, Any]):
    """A mapping from names to numbers, texts, booleans, None, tuples of those, or further options, sorted by name.

    It can be passed as `**options`. Raises ValueError, with the dotted path, for NaN, infinity, values of other types, and
    names that are no Python identifiers.

    Example:
      >>> Options({"theta": 500.0, "layout": "half"})
      Options({'layout': 'half', 'theta': 500.0})
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None, *, path: str = "options", depth: int = DEEPEST):
        self._values: dict[str, Any] = {}
        for name, value in sorted((values or {}).items(), key=lambda item: str(item[0])):
            if not isinstance(name, str) or not name.isidentifier() or len(name) > 64:
                raise ValueError(f"{path}: an option must be named like a variable, got {shown(name)}")
            self._values[name] = _option(value, f"{path}.{name}", depth)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return f"Options({self._values})"


def unwrap(value: Any) -> Any:
    """Returns the Python number inside a NumPy scalar, and any other value as it is."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def shown(value: Any) -> str:
    """Returns a value for an error message: short, whatever it is."""
    if isinstance(value, str | int | float | bool | None):
        text = repr(value)
        return text if len(text) <= 100 else text[:100] + "..."
    return f"a {type(value).__name__}"


def _option(value: Any, path: str, depth: int) -> Any:
    value = unwrap(value)
    if isinstance(value, Mapping | list | tuple) and depth == 0:
        raise ValueError(f"{path} is nested more than {DEEPEST} deep")
    if isinstance(value, Mapping):
        return Options(value, path=path, depth=depth - 1)
    if isinstance(value, list | tuple):
        return tuple(_option(one, f"{path}[{i}]", depth - 1) for i, one in enumerate(value))
    if isinstance(value, bool | str | int | None):
        return value
    if isinstance(value, float) and math.isfinite(value):
        # Adding 0.0 makes -0.0 the same setting as 0.0.
        return value + 0.0
    raise ValueError(f"{path} must be a finite number, a text, true, false or none, got {shown(value)}")
