"""One check that several encodings and the position indices share: whole numbers in their allowed range."""

import math

import numpy as np

MOST = 2**24
"""Rows of a table, or hidden units. A larger table would be planned for long before memory is asked for."""


def validate_integer(owner: str, minimum: int = 1, most: float = math.inf, **fields: int) -> None:
    """Raise `ValueError` where a field is not a whole number from `minimum` to `most`, with owner, field and value."""
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ValueError(f"{owner}: {name} must be an integer, got {value!r}")
        if value < minimum:
            raise ValueError(f"{owner}: {name} must be at least {minimum}, got {value}")
        if value > most:
            raise ValueError(f"{owner}: {name} must be at most {most}, got {value}")
