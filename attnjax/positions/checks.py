"""One check that several encodings and the position indices share: whole numbers in their allowed range."""

import numpy as np


def validate_integer(owner: str, minimum: int = 1, **fields: int) -> None:
    """Raise `ValueError` where a field is not a whole number of at least `minimum`, naming owner, field and value."""
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ValueError(f"{owner}: {name} must be an integer, got {value!r}")
        if value < minimum:
            raise ValueError(f"{owner}: {name} must be at least {minimum}, got {value}")
