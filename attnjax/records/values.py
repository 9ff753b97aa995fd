"""Conversion of values to JSON, and checks of values from untrusted JSON."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

LARGEST = 2**53
"""Whole numbers below this are exact in a float."""
DECIMALS = 12
"""To which means of scores are compared: those of as many right answers can differ in their last bits."""

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def jsonable(value: Any) -> Any:
    """Plain values from NumPy's, JAX's and paths; NaN and infinity become null, which JSON has not otherwise."""
    if isinstance(value, dict):
        return {str(name): jsonable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(one) for one in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def printable(text: str) -> str:
    r"""The text with U+FFFD for what no file should hold: lone surrogates, control characters, and reversals of
    direction.

    Example:
      >>> printable("a\x1b[31m") == "a\ufffd[31m"
      True
    """
    return UNPRINTABLE.sub("\ufffd", text)


def clean(value: Any) -> Any:
    """A JSON value whose strings, keys included, are all `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list) else value


def dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a nested table; an empty table is a value.

    Example:
      >>> dict(dotted({"seed": 0, "task": {"name": "copy", "options": {}}}))
      {'seed': 0, 'task.name': 'copy', 'task.options': {}}
    """
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def as_dict(value: Any) -> dict[str, Any]:
    """The value if it is a dict, otherwise an empty dict."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """The value if it is a text, otherwise ""."""
    return value if isinstance(value, str) else ""


def whole(value: Any) -> TypeGuard[int]:
    """Whether this is a whole number, not negative, that a float holds exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def number(value: Any) -> TypeGuard[float]:
    """Whether this is a number; NaN and infinity are, because a run may really have ended there."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST)


def finite(value: Any) -> TypeGuard[float]:
    """Whether this is a number that is neither NaN nor infinite."""
    return number(value) and math.isfinite(value)
