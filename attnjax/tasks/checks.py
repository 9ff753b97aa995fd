"""Checks of what users pass to a task. Every mistake is a ValueError that says what came and what is allowed."""

import jax
import numpy as np

from attnjax.positions.checks import validate_key
from attnjax.typing import Array, Int, Key

IMPLEMENTATION = "threefry2x32"
"""The only generator of JAX whose streams neither the platform, nor the size, nor `vmap` changes."""
MOST = 100_000
"""Symbols of a task, keys, repetitions: the names of all tokens are made anew wherever they are asked for."""


def check_key(owner: str, key: Key[Array, ""]) -> None:
    """Raise ValueError where a key is not one typed threefry key."""
    validate_key(owner, key)
    if str(jax.random.key_impl(key)) != IMPLEMENTATION:
        raise ValueError(
            f"{owner}: data must not change with the platform or the padding, so the key must be of "
            f"{IMPLEMENTATION}, got {jax.random.key_impl(key)}; use jax.random.key(seed, impl={IMPLEMENTATION!r})"
        )


def check_lengths(owner: str, lengths: Int[Array, "..."] | np.ndarray, shortest: int, longest: int) -> None:
    """Raise ValueError where lengths are known and one is out of range."""
    try:
        known = np.asarray(lengths)
    except jax.errors.TracerArrayConversionError:
        return
    if known.min() < shortest or known.max() > longest:
        raise ValueError(f"{owner}: lengths must be in {shortest} .. {longest}, got {known.min()} .. {known.max()}")


def check_count(owner: str, minimum: int = 1, maximum: int = MOST, **fields: int) -> None:
    """Raise ValueError where a hyper-parameter that counts something is not an int from `minimum` to `maximum`."""
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError(f"{owner}: {name} must be an int of at least {minimum}, got {value!r}")
        if value > maximum:
            raise ValueError(f"{owner}: {name} must be at most {maximum}, got {value}")


def check_choice(owner: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError where an option is none of its choices."""
    if value not in choices:
        raise ValueError(f"{owner}: {name} must be one of {', '.join(choices)}; got {value!r}")
