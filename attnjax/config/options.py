"""Options of a task, an encoding or an optimizer: an immutable, hashable mapping of plain values."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

DEPTH = 4
TEXT = 4096
INTEGER = 2**63


class Options(Mapping[str, Any]):
    """A mapping from names to numbers, texts, booleans, None, tuples of those, or further options, sorted by name.

    It can be passed as `**options`. Raises ValueError, with the dotted path, for NaN, infinity, values of other types, and
    names that are no Python identifiers.

    Example:
      >>> Options({"theta": 500.0, "layout": "half"}).to_dict()
      {'layout': 'half', 'theta': 500.0}
    """

    __slots__ = ("_items",)

    def __init__(self, values: Mapping[str, Any] | None = None, *, path: str = "options", depth: int = 0):
        if depth > DEPTH:
            raise ValueError(f"{path} is nested more than {DEPTH} deep")
        items = {name: _plain(value, f"{path}.{name}", depth) for name, value in _named(values or {}, path)}
        self._items = tuple(sorted(items.items()))

    def __getitem__(self, name: str) -> Any:
        for key, value in self._items:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"Options({self.to_dict()})"

    def to_dict(self) -> dict[str, Any]:
        """The options as a plain dict with lists instead of tuples, as JSON has them."""
        return {name: _jsonable(value) for name, value in self._items}


def _named(values: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if not isinstance(name, str) or not name.isidentifier() or len(name) > 64:
            raise ValueError(f"{path}: an option must be named like a variable, got {str(name)[:100]!r}")
        yield name, value


def _plain(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, Mapping):
        return Options(value, path=path, depth=depth + 1)
    if isinstance(value, list | tuple):
        if depth > DEPTH or len(value) > TEXT:
            raise ValueError(f"{path} holds lists that are too deep or too long")
        return tuple(_plain(one, f"{path}[{i}]", depth + 1) for i, one in enumerate(value))
    return scalar(value, path)


def scalar(value: Any, path: str) -> bool | int | float | str | None:
    """The value as a plain Python number, text, boolean or None. Raises ValueError for all else, NaN and infinity included."""
    value = unwrap(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < INTEGER:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value) + 0.0
    if isinstance(value, str) and len(value) <= TEXT and _printable(value):
        return str(value)
    raise ValueError(f"{path} must be a finite number, a text, true, false or none, got {shown(value)}")


def unwrap(value: Any) -> Any:
    """The Python number inside a NumPy scalar."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def shown(value: Any) -> str:
    """A value for an error message: short, whatever it is."""
    if isinstance(value, int) and abs(value) >= INTEGER:
        return "a number of more than 63 bits"
    if isinstance(value, str | int | float | bool | None):
        text = repr(value)
        return text if len(text) <= 100 else text[:100] + "..."
    return f"a {type(value).__name__}"


def _printable(text: str) -> bool:
    return not any(ch == "\0" or "\ud800" <= ch <= "\udfff" for ch in text)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Options):
        return value.to_dict()
    return [_jsonable(one) for one in value] if isinstance(value, tuple) else value
