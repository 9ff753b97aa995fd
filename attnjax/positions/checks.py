"""Checks that encodings, position indices, attention and modules share: numbers, arrays, keys."""

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Range
from attnjax.typing import ArrayLike

INT32 = np.iinfo(np.int32)
MOST = 2**24
"""Rows of a table, or hidden units. A larger table would be planned for long before memory is asked for."""
Rows = Annotated[int, Range(1, MOST)]


def concrete(values: Any) -> np.ndarray | None:
    """Returns the values as NumPy where they are known, None where they are traced.

    Example:
        >>> concrete(np.arange(2)).tolist(), jax.eval_shape(lambda x: concrete(x), np.arange(2)) is None
        ([0, 1], True)
    """
    try:
        return np.asarray(values)
    except jax.errors.TracerArrayConversionError:
        return None


def is_array(values: Any) -> bool:
    """Returns whether this is an array of JAX, traced or not, or of NumPy.

    Example:
        >>> is_array(np.arange(2)), is_array([0, 1])
        (True, False)
    """
    return isinstance(values, jax.Array | np.ndarray)


def described(values: Any) -> str:
    """Returns the type and the shape of an array, or the name of any other type, for a message.

    Example:
        >>> described(np.zeros((2, 3), np.int32)), described([0, 1])
        ('int32[2, 3]', 'list')
    """
    return f"{values.dtype}{list(values.shape)}" if is_array(values) else type(values).__name__


def validate_array(name: str, array: Any, kind: Any, *shapes: tuple[int, ...]) -> ArrayLike:
    """Returns an array of `kind` (np.integer, np.bool_, np.floating) that has one of the shapes; lists become NumPy arrays.

    Raises ValueError for any other, with what came.

    Example:
        >>> validate_array("valid", [1, 0], np.bool_, (2,), (3, 2))
        Traceback (most recent call last):
        ValueError: valid must be booleans of shape (2,) or (3, 2), got int64[2]
    """
    array = array if is_array(array) else np.asarray(array)
    if array.shape not in shapes or not jnp.issubdtype(array.dtype, kind):
        kinds = {np.integer: "integers", np.bool_: "booleans", np.floating: "floating numbers"}[kind]
        raise ValueError(f"{name} must be {kinds} of shape {' or '.join(map(str, shapes))}, got {described(array)}")
    return array


def validate_tokens(owner: str, x: Any, pos: Any) -> None:
    """Raises ValueError unless x is floating and [B, T, D], and pos an array [T] or [B, T] whose known values fit int32.

    Example:
        >>> validate_tokens("embed", np.zeros((1, 2, 4)), np.array([2**31, 0]))
        Traceback (most recent call last):
        ValueError: embed: pos must fit int32 (|value| < 2^31), got values 0..2147483648
    """
    if not is_array(x) or x.ndim != 3 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"{owner} needs floating numbers x [B, T, D], got {described(x)}")
    if not is_array(pos) or pos.shape not in (x.shape[1:2], x.shape[:2]):
        raise ValueError(
            f"{owner} needs x [B, T, D] and pos [T] or [B, T], got x {described(x)} and pos {described(pos)}"
        )
    validate_range(f"{owner}: pos", pos)


def validate_range(name: str, pos: Any) -> None:
    """Raises ValueError where known positions do not fit int32, or are floats and not finite. Traced values are not seen.

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


def validate_rows(owner: str, table: Any, rows: int) -> Any:
    """Returns a table with so many rows. Raises ValueError for another number, which would be read beyond its end.

    Example:
        >>> validate_rows("T5Bias", np.zeros(8), 32)
        Traceback (most recent call last):
        ValueError: T5Bias: the table must have 32 rows, got shape (8,)
    """
    if not np.ndim(table) or table.shape[0] != rows:
        raise ValueError(f"{owner}: the table must have {rows} rows, got shape {np.shape(table)}")
    return table


def validate_key(owner: str, key: jax.Array) -> jax.Array:
    """Returns the key. Raises ValueError where it is not one typed key.

    Example:
        >>> validate_key("offset", 0)
        Traceback (most recent call last):
        ValueError: offset: key must be one typed key made by jax.random.key, got 0
    """
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()):
        raise ValueError(f"{owner}: key must be one typed key made by jax.random.key, got {key!r}")
    return key


def validate_integer(owner: str, minimum: int = 1, most: float = math.inf, **fields: Any) -> None:
    """Raises ValueError where a field is not a whole number from `minimum` to `most`, with owner, field and value.

    Example:
        >>> validate_integer("generate", steps=2.5)
        Traceback (most recent call last):
        ValueError: generate: steps must be an integer, got 2.5
    """
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ValueError(f"{owner}: {name} must be an integer, got {value!r}")
        if not minimum <= value <= most:
            bound = f"at least {minimum}" if value < minimum else f"at most {most}"
            raise ValueError(f"{owner}: {name} must be {bound}, got {value}")
