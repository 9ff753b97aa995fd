"""Checks of hyper-parameters that encodings and position indices share: positive numbers, and integers in a range."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST = 2**24
"""Rows of a table, or hidden units. A larger table would be planned for long before memory is asked for."""


def validate(owner: str, **fields: Any) -> None:
    """Raise `ValueError` where a number, or one of several, is not positive and finite, with owner, field and value.

    Example:
        >>> validate("RoPE", theta=-1.0)
        Traceback (most recent call last):
        ValueError: RoPE: theta must be positive and finite, got -1.0
    """
    for name, value in fields.items():
        values: Sequence[Any] = value if isinstance(value, tuple | list) else (value,)
        for number in values:
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"{owner}: {name} must be a number, got {number!r}")
            if not 0 < number < float("inf"):
                raise ValueError(f"{owner}: {name} must be positive and finite, got {number!r}")


def validate_integer(owner: str, minimum: int = 1, most: float = math.inf, **fields: int) -> None:
    """Raise `ValueError` where a field is not a whole number from `minimum` to `most`, with owner, field and value.

    Example:
        >>> validate_integer("CoPE", max_position=2.5)
        Traceback (most recent call last):
        ValueError: CoPE: max_position must be an integer, got 2.5
    """
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ValueError(f"{owner}: {name} must be an integer, got {value!r}")
        if value < minimum:
            raise ValueError(f"{owner}: {name} must be at least {minimum}, got {value}")
        if value > most:
            raise ValueError(f"{owner}: {name} must be at most {most}, got {value}")
