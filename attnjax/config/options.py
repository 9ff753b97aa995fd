"""Options of a task, an encoding or an optimizer: an immutable, hashable mapping of plain values."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

DEEPEST = 4
LARGEST = 2**63


class Options(Mapping[str, Any]):
    """A mapping from names to numbers, texts, booleans, None, tuples of those, or further options, sorted by name.

    It can be passed as `**options`. Raises ValueError, with the dotted path, for NaN, infinity, values of other types, and
    names that are no Python identifiers.

    Example:
      >>> Options({"theta": 500.0, "layout": "half"}).to_dict()
      {'layout': 'half', 'theta': 500.0}
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None, *, path: str = "options", depth: int = DEEPEST):
        self._values: dict[str, Any] = {}
        for name, value in sorted((values or {}).items(), key=lambda item: str(item[0])):
            if not isinstance(name, str) or not name.isidentifier() or len(name) > 64:
                raise ValueError(f"{path}: an option must be named like a variable, got {shown(name)}")
            self._values[name] = _plain(value, f"{path}.{name}", depth)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return f"Options({self.to_dict()})"

    def to_dict(self) -> dict[str, Any]:
        """Returns a plain dict with lists instead of tuples, as JSON has them."""
        return {name: _jsonable(value) for name, value in self._values.items()}


def unwrap(value: Any) -> Any:
    """Returns the Python number inside a NumPy scalar, and any other value as it is."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def shown(value: Any) -> str:
    """Returns a value for an error message: short, whatever it is."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        return "a number of more than 63 bits"
    if isinstance(value, str | int | float | bool | None):
        text = repr(value)
        return text if len(text) <= 100 else text[:100] + "..."
    return f"a {type(value).__name__}"


def _plain(value: Any, path: str, depth: int) -> Any:
    value = unwrap(value)
    if isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise ValueError(f"{path} is nested more than {DEEPEST} deep")
        if isinstance(value, Mapping):
            return Options(value, path=path, depth=depth - 1)
        return tuple(_plain(one, f"{path}[{i}]", depth - 1) for i, one in enumerate(value))
    if isinstance(value, bool | str | None) or (isinstance(value, int) and abs(value) < LARGEST):
        return value
    if isinstance(value, float) and math.isfinite(value):
        # Adding 0.0 makes -0.0 the same setting as 0.0.
        return value + 0.0
    raise ValueError(f"{path} must be a finite number, a text, true, false or none, got {shown(value)}")


def _jsonable(value: Any) -> Any:
    if isinstance(value, Options):
        return value.to_dict()
    return [_jsonable(one) for one in value] if isinstance(value, tuple) else value
