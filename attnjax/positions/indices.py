"""Where positions come from: arrays of int32 to pass as `q_pos`, `k_pos` or to `embed`.

Positions are data, orthogonal to the encoding: any of these works with every encoding. Functions that draw take a typed
key of `jax.random.key` and give one row [T], or with `batch=B` an independent row per example [B, T].
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer

from attnjax.positions.checks import validate_integer
from attnjax.typing import Array, ArrayLike

LARGEST = 2**31 - 1
"""The most positions, counted from 0, for which positions and their count both fit int32."""


def arange(length: int) -> np.ndarray:
    """0, 1, ..., length - 1 as a NumPy array, so that its values stay known while tracing.

    Raises ValueError where length is not in 1 .. 2^31 - 1.
    """
    _check("arange", length, LARGEST)
    return np.arange(length, dtype=np.int32)


def randomized(key: jax.Array, length: int, maximum: int, batch: int | None = None) -> Integer[Array, "*B T"]:
    """`length` positions drawn from 0 .. maximum - 1 without replacement, in order.

    Training so on short sequences shows an encoding the positions of long ones. Memory: `maximum` numbers per row.
    Raises ValueError where length > maximum, or maximum > 2^31 - 1.
    Reference: Ruoss et al. 2023, arXiv:2305.16843.
    """
    _check("randomized", length, maximum)
    _check_key("randomized", key)

    def row(key: jax.Array) -> Integer[Array, " T"]:
        return jnp.sort(jax.random.permutation(key, jnp.arange(maximum, dtype=jnp.int32))[:length])

    if batch is None:
        return row(key)
    validate_integer("randomized", batch=batch)
    return jax.vmap(row)(jax.random.split(key, batch))


def offset(key: jax.Array, length: int, maximum: int, batch: int | None = None) -> Integer[Array, "*B T"]:
    """start + 0, 1, ..., length - 1 with start uniform in 0 .. maximum - length.

    Raises ValueError where length > maximum, or maximum > 2^31 - 1.
    Reference: Kiyono et al. 2021 (SHAPE), arXiv:2109.05644; start fixed to 0 at test time.
    """
    _check("offset", length, maximum)
    _check_key("offset", key)
    if batch is not None:
        validate_integer("offset", batch=batch)
    rows = () if batch is None else (batch,)
    start = jax.random.randint(key, (*rows, 1), 0, maximum - length + 1, jnp.int32)
    return start + np.arange(length, dtype=np.int32).reshape((1,) * len(rows) + (length,))


def from_segments(segment_ids: Integer[ArrayLike, "*B T"]) -> Integer[Array, "*B T"]:
    """Position inside each run of equal segment ids, from 0: [5 5 5 7 7 5] gives [0 1 2 0 1 0]."""
    ids = _sequence("from_segments", "segment_ids", segment_ids)
    index = _index(ids)
    begins = jnp.concatenate([jnp.ones_like(ids[..., :1], bool), ids[..., 1:] != ids[..., :-1]], axis=-1)
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=ids.ndim - 1)


def abacus(
    tokens: Integer[ArrayLike, "*B T"], digits: Sequence[int], start: int | Integer[ArrayLike, "*B"] = 0
) -> Integer[Array, "*B T"]:
    """Place of each digit in its number, counted from start + 1; 0 for every token that is not a digit.

    With digits written least significant first, digits of equal significance share a position. `digits` are the token
    ids of the digits; `start` is one number, or one per example, drawn from 0 .. 99 in training and 0 at test time.
    Raises ValueError for no digits, for ids that are not whole numbers, and for a negative start.
    Reference: McLeish et al. 2024, arXiv:2405.17399, section 3.
    """
    tokens = _sequence("abacus", "tokens", tokens)
    ids = np.array([_digit(digit) for digit in digits], np.int32)
    if not ids.size:
        raise ValueError("abacus: digits must name at least one token id, got none")
    if not isinstance(start, jax.Array | np.ndarray):
        validate_integer("abacus", minimum=0, start=start)
    index = _index(tokens)
    is_digit = jnp.isin(tokens.astype(jnp.int32), ids)
    before = jax.lax.cummax(jnp.where(is_digit, -1, index), axis=tokens.ndim - 1)
    shift = jnp.broadcast_to(jnp.asarray(start, jnp.int32)[..., None], tokens.shape)
    return jnp.where(is_digit, index - before + shift, 0)


def _check(owner: str, length: int, maximum: int) -> None:
    validate_integer(owner, length=length)
    validate_integer(owner, maximum=maximum)
    if maximum > LARGEST:
        raise ValueError(f"{owner}: maximum must be at most 2^31 - 1, so that positions fit int32; got {maximum}")
    if length > maximum:
        raise ValueError(f"{owner}: length must be at most maximum = {maximum}, got {length}")


def _check_key(owner: str, key: jax.Array) -> None:
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()):
        raise ValueError(f"{owner}: key must be one typed key made by jax.random.key, got {key!r}")


def _sequence(owner: str, name: str, values: Integer[ArrayLike, "*B T"]) -> Integer[Array, "*B T"]:
    values = jnp.asarray(values)
    if not values.ndim or not jnp.issubdtype(values.dtype, jnp.integer):
        raise ValueError(f"{owner}: {name} must be integers [..., T], got {values.dtype}{list(values.shape)}")
    return values


def _digit(digit: int) -> int:
    validate_integer("abacus", minimum=0, digits=digit)
    return int(digit)


def _index(values: Integer[Array, "*B T"]) -> Integer[Array, "*B T"]:
    return jax.lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
