"""Checks that encodings, position indices and modules share: positive numbers, integers in a range, arrays, and keys."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.concrete import concrete
from attnjax.typing import Array

INT32 = np.iinfo(np.int32)
MOST = 2**24
"""Rows of a table, or hidden units. A larger table would be planned for long before memory is asked for."""


def is_number(value: Any) -> bool:
    """Whether this is an integer or a real number of Python or NumPy, and no boolean.

    Example:
        >>> is_number(np.float32(0.5)), is_number(True), is_number(np.ones(1))
        (True, False, False)
    """
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_array(values: Any) -> bool:
    """Whether this is an array of JAX, traced or not, or of NumPy.

    Example:
        >>> is_array(np.arange(2)), is_array([0, 1])
        (True, False)
    """
    return isinstance(values, jax.Array | np.ndarray)


def described(values: Any) -> str:
    """What a message says that came: the type and the shape of an array, or the name of any other type.

    Example:
        >>> described(np.zeros((2, 3), np.int32)), described([0, 1])
        ('int32[2, 3]', 'list')
    """
    return f"{values.dtype}{list(values.shape)}" if is_array(values) else type(values).__name__


def validate_tokens(owner: str, x: Any, pos: Any) -> None:
    """Raise `ValueError` unless x is floating and [B, T, D], and pos an array [T] or [B, T] whose known values fit int32.

    Example:
        >>> validate_tokens("embed", np.zeros((1, 2, 4)), np.array([2**31, 0]))
        Traceback (most recent call last):
        ValueError: embed: pos must fit int32 (|value| < 2^31), got values 0..2147483648
    """
    if not is_array(x) or not jnp.issubdtype(x.dtype, jnp.floating):
        came = x.dtype if is_array(x) else type(x).__name__
        raise ValueError(f"{owner} needs an array x of floating numbers, got {came}")
    if x.ndim != 3 or not is_array(pos) or pos.shape not in (x.shape[1:2], x.shape[:2]):
        came = pos.shape if is_array(pos) else type(pos).__name__
        raise ValueError(f"{owner} needs x [B, T, D] and pos [T] or [B, T], got x {x.shape} and pos {came}")
    validate_range(f"{owner}: pos", pos)


def validate_range(name: str, pos: Any) -> None:
    """Raise `ValueError` where known positions do not fit int32, or are floats and not finite.

    Floats of 16 bits, which hold no 2^31, are refused elsewhere. Traced values are not seen.

    Example:
        >>> validate_range("q_pos", np.array([0.0, np.inf]))
        Traceback (most recent call last):
        ValueError: q_pos must be finite and fit int32 (|position| < 2^31), got [ 0. inf]
    """
    values = None if pos.dtype == np.int32 else concrete(pos)
    if values is None or not values.size:
        return
    if jnp.issubdtype(pos.dtype, jnp.integer):
        if not INT32.min <= values.min() <= values.max() <= INT32.max:
            raise ValueError(f"{name} must fit int32 (|value| < 2^31), got values {values.min()}..{values.max()}")
    elif pos.dtype.itemsize > 2 and not np.all(np.abs(values) < 2.0**31):
        raise ValueError(f"{name} must be finite and fit int32 (|position| < 2^31), got {values}")


def expect(encoding: Any, hook: str, got: Any, shape: tuple[int | None, ...]) -> Array:
    """What a hook returned, if it is a floating array of this shape (None: any size). Raises `ValueError` otherwise.

    Example:
        >>> expect("RoPE()", "map_q", np.zeros((3, 4)), (3, None)).shape
        (3, 4)
    """
    came = tuple(jnp.shape(got)) if hasattr(got, "shape") else None
    fits = came is not None and len(came) == len(shape)
    if not fits or any(m not in (None, n) for n, m in zip(came, shape, strict=True)):
        allowed = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
        raise ValueError(
            f"{encoding}: the hook {hook} must return an array of shape {allowed}, got "
            f"{type(got).__name__ if came is None else list(came)}"
        )
    if not jnp.issubdtype(got.dtype, jnp.floating):
        raise ValueError(f"{encoding}: the hook {hook} must return floating numbers, got {got.dtype}")
    return got


def validate_key(owner: str, key: jax.Array) -> jax.Array:
    """The key, unchanged. Raise `ValueError` where it is not one typed key.

    Example:
        >>> validate_key("offset", 0)
        Traceback (most recent call last):
        ValueError: offset: key must be one typed key made by jax.random.key, got 0
    """
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()):
        raise ValueError(f"{owner}: key must be one typed key made by jax.random.key, got {key!r}")
    return key


def validate(owner: str, **fields: Any) -> None:
    """Raise `ValueError` where a number is not positive and finite, with owner, field and value.

    Example:
        >>> validate("RoPE", theta=-1.0)
        Traceback (most recent call last):
        ValueError: RoPE: theta must be positive and finite, got -1.0
    """
    for name, number in fields.items():
        if not is_number(number):
            raise ValueError(f"{owner}: {name} must be a number, got {number!r}")
        if not 0 < number < float("inf"):
            raise ValueError(f"{owner}: {name} must be positive and finite, got {number!r}")


def validate_each(owner: str, **fields: Sequence[Any]) -> None:
    """`validate` of every number of a tuple or a list.

    Example:
        >>> validate_each("ALiBi", slopes=(0.5, 0.0))
        Traceback (most recent call last):
        ValueError: ALiBi: slopes must be positive and finite, got 0.0
    """
    for name, numbers in fields.items():
        for number in numbers:
            validate(owner, **{name: number})


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
