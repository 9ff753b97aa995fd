"""What a field may hold: its annotation, read once, decides which values are taken, and what the refusal says.

`Annotated[int, Range(1)]` is a whole number of at least 1; `X | None`, `Literal[...]`, tuples and dataclasses work as they
read. A bool is no number, a whole number is taken where a float is asked for, NaN and infinity are taken nowhere.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from attnjax.config import limits
from attnjax.config.names import nearest
from attnjax.config.options import Options, scalar, shown, unwrap

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
        low = "" if self.low == -math.inf else f"{'above' if self.open_low else 'at least'} {self.low:g}"
        high = (
            "" if self.high in (math.inf, LARGEST) else f"{'below' if self.open_high else 'at most'} {self.high:.10g}"
        )
        return " and ".join(filter(None, (low, high)))


Count = Annotated[int, Range(1, LARGEST)]
Index = Annotated[int, Range(0, LARGEST)]
Layers = Annotated[int, Range(1, limits.LAYERS)]
Heads = Annotated[int, Range(1, limits.HEADS)]
Width = Annotated[int, Range(1, limits.WIDTH)]
Hidden = Annotated[int, Range(1, limits.HIDDEN)]
Length = Annotated[int, Range(1, limits.LENGTH)]
Batch = Annotated[int, Range(1, limits.BATCH)]
Examples = Annotated[int, Range(1, limits.EXAMPLES)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
AtMostOne = Annotated[float, Range(0, 1)]
Rate = Annotated[float, Range(0, 1, open_high=True)]
"""0 <= rate < 1."""


def coerce(kind: Any, value: Any, path: str) -> Any:
    """`value` as this kind of field holds it. Raises ValueError with the dotted path for any other."""
    value = unwrap(value)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _number(kind, arguments, value, path)
    if origin in (Union, types.UnionType):
        return _one_of(kind, arguments, value, path)
    if origin is Literal:
        return _choice(arguments, value, path)
    if origin is tuple:
        return _sequence(kind, arguments, value, path)
    if dataclasses.is_dataclass(kind) or kind is Options:
        return _record(kind, value, path)
    return _basic(kind, kind, value, path)


def describe(kind: Any) -> str:
    """A kind in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return " ".join(filter(None, (describe(arguments[0]), str(arguments[1]).replace("at", "of at", 1))))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(one) for one in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple:
        inner = describe(arguments[0])
        return f"a list ({inner} each)" if arguments[-1] is ... else f"a list of {len(arguments)} ({inner} each)"
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text", type(None): "none"}
    other = "a table of settings" if dataclasses.is_dataclass(kind) else f"a {getattr(kind, '__name__', kind)}"
    return names.get(kind, other)


def _refuse(kind: Any, value: Any, path: str) -> ValueError:
    return ValueError(f"{path} must be {describe(kind)}, got {shown(value)}")


def _basic(kind: Any, named: Any, value: Any, path: str) -> Any:
    """A value of a type of Python's own; `named` is the kind that the refusal tells."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**53 else math.inf
    good = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not good or (kind is float and not math.isfinite(value)):
        raise _refuse(named, value, path)
    if kind not in (bool, int, float, str):
        return value
    # Adding 0.0 makes -0.0 the same setting as 0.0; str, int, float undo subclasses.
    return scalar(value, path) if kind is str else kind(value + 0.0) if kind is float else kind(value)


def _number(kind: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    number = _basic(arguments[0], kind, value, path)
    if not arguments[1].holds(number):
        raise _refuse(kind, value, path)
    return number


def _one_of(kind: Any, kinds: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    fitting = [one for one in kinds if _fits(one, value)]
    if not fitting:
        raise _refuse(kind, value, path)
    return coerce(fitting[0], value, path)


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value is of the right sort at all, so that the refusal can be about its content."""
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    origin = typing.get_origin(kind)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, list | tuple)
    if dataclasses.is_dataclass(kind):
        return isinstance(value, Mapping | kind) or (hasattr(kind, "from_name") and isinstance(value, str))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _choice(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    if not isinstance(value, str) or value not in choices:
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise ValueError(f"{path} must be one of {', '.join(map(repr, choices))}, got {shown(value)}{hint}")
    return str(value)


def _sequence(kind: Any, kinds: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    fixed = kinds[-1] is not ...
    if not isinstance(value, list | tuple) or (fixed and len(value) != len(kinds)):
        raise _refuse(kind, value, path)
    if len(value) > limits.LENGTHS:
        raise ValueError(f"{path} may have at most {limits.LENGTHS} entries, got {len(value)}")
    return tuple(coerce(kinds[i if fixed else 0], one, f"{path}[{i}]") for i, one in enumerate(value))


def _record(kind: Any, value: Any, path: str) -> Any:
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and hasattr(kind, "from_name"):
        return kind.from_name(value)
    if not isinstance(value, Mapping):
        raise _refuse(kind, value, path)
    return Options(value, path=path) if kind is Options else build(kind, value, path)


def build(kind: Any, values: Mapping[Any, Any], path: str = "") -> Any:
    """A dataclass from a mapping of its fields; what is not given keeps its default. Raises ValueError for others.

    The values are checked by `settle` when the dataclass is made.
    """
    fields = {key_of(field): field.name for field in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            key, owner = f"{path}.{str(name)[:100]}".lstrip("."), path or "a config"
            raise ValueError(f"unknown key {key!r}{nearest(name, fields)}; {owner} has: {', '.join(fields)}")
    return kind(**{fields[name]: value for name, value in values.items()})


def key_of(field: dataclasses.Field) -> str:
    """The name of a field in configs and records: its own, unless its metadata say under which one it was first stored."""
    return field.metadata.get("key", field.name)


def settle(record: Any, path: str) -> None:
    """Check and normalise every field of a frozen dataclass that is being made."""
    for field in dataclasses.fields(record):
        value = coerce(field.type, getattr(record, field.name), f"{path}.{key_of(field)}".lstrip("."))
        object.__setattr__(record, field.name, value)


def check_order(low_name: str, low: int, high_name: str, high: int) -> None:
    """Raise ValueError unless low <= high."""
    if low > high:
        raise ValueError(f"{low_name}={low} must not be above {high_name}={high}")
