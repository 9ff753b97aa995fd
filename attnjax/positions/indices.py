"""Position indices: arrays of int32 to pass as `q_pos`, `k_pos` or to `embed`.

Positions are data, orthogonal to the encoding: any of these works with every encoding. Functions that draw take a typed
key of `jax.random.key` and return one row [T], or with `batch=B` an independent row per example [B, T].
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer

from attnjax.positions.checks import validate_integer, validate_key
from attnjax.typing import Array, ArrayLike, Bool

LARGEST = 2**31 - 1
"""The most positions, counted from 0, for which positions and their count both fit int32."""


def arange(length: int) -> np.ndarray:
    """Returns 0, 1, ..., length - 1 as a NumPy array, so that its values stay known while tracing.

    Raises ValueError where length is not in 1 .. 2^31 - 1.

    Example:
        >>> arange(3).tolist()
        [0, 1, 2]
    """
    _check("arange", length)
    return np.arange(length, dtype=np.int32)


def randomized(
    key: jax.Array,
    length: int,
    maximum: int,
    batch: int | None = None,
    *,
    counts: Integer[ArrayLike, "*B"] | None = None,
) -> Integer[Array, "*B T"]:
    """Returns `length` positions drawn from 0 .. maximum - 1 without replacement, in ascending order.

    Training so on short sequences shows an encoding the positions of long ones. Memory: `maximum` integers per row.

    Args:
        key: one typed key.
        length: number of positions T of a row.
        maximum: number of positions to draw from.
        batch: number of independent rows B; None returns one row [T].
        counts: number of real tokens of each row, where the rest is padding: the first `counts` positions of a row are
            a sample of that size, and the padding is at maximum - 1. With batch=1 all rows of `counts` share one draw.

    Raises ValueError where length > maximum, or maximum > 2^31 - 1.
    Reference: Ruoss et al. 2023, arXiv:2305.16843.

    Example:
        >>> pos = randomized(jax.random.key(0), length=4, maximum=100)
        >>> pos.shape, bool((jnp.diff(pos) > 0).all())
        ((4,), True)
        >>> randomized(jax.random.key(0), 4, 1000, batch=2, counts=np.array([4, 2]))[1, 2:].tolist()
        [999, 999]
    """
    validate_key("randomized", key)
    rows = _check("randomized", length, maximum, batch)
    sample = lambda key: jax.random.permutation(key, jnp.arange(maximum, dtype=jnp.int32))[:length]
    drawn = jax.vmap(sample)(jax.random.split(key, rows)) if rows else sample(key)
    if counts is None:
        return jnp.sort(drawn, axis=-1)
    counts = jnp.asarray(counts)
    rows = counts.shape if batch == 1 and counts.ndim == 1 else rows
    if counts.shape != rows or not jnp.issubdtype(counts.dtype, jnp.integer):
        raise ValueError(f"randomized: counts must be integers {list(rows)}, got {counts.dtype}{list(counts.shape)}")
    real = jax.lax.broadcasted_iota(jnp.int32, (*rows, length), len(rows)) < counts.astype(jnp.int32)[..., None]
    return jnp.minimum(jnp.sort(jnp.where(real, drawn, maximum), axis=-1), maximum - 1)


def offset(key: jax.Array, length: int, maximum: int, batch: int | None = None) -> Integer[Array, "*B T"]:
    """Returns start + 0, 1, ..., length - 1 with start uniform in 0 .. maximum - length.

    Raises ValueError where length > maximum, or maximum > 2^31 - 1.
    Reference: Kiyono et al. 2021 (SHAPE), arXiv:2109.05644; start fixed to 0 at test time.

    Example:
        >>> jnp.diff(offset(jax.random.key(0), length=4, maximum=100)).tolist()
        [1, 1, 1]
    """
    validate_key("offset", key)
    rows = _check("offset", length, maximum, batch)
    start = jax.random.randint(key, (*rows, 1), 0, maximum - length + 1, jnp.int32)
    return start + jax.lax.broadcasted_iota(jnp.int32, (*rows, length), len(rows))


def from_segments(segment_ids: Integer[ArrayLike, "*B T"]) -> Integer[Array, "*B T"]:
    """Returns positions inside each run of equal segment ids, from 0: [5 5 5 7 7 5] gives [0 1 2 0 1 0].

    Example:
        >>> from_segments(np.array([5, 5, 5, 7, 7, 5])).tolist()
        [0, 1, 2, 0, 1, 0]
    """
    ids, index = _indexed("from_segments: segment_ids", segment_ids)
    begins = jnp.concatenate([jnp.ones_like(ids[..., :1], bool), ids[..., 1:] != ids[..., :-1]], axis=-1)
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=ids.ndim - 1)


def zigzag(length: int, devices: int) -> np.ndarray:
    """Returns the order of tokens [length] in which P devices, each with an equal part of the array, have equal work in a ring.

    Of 2 P chunks device d holds chunk d and chunk 2 P - 1 - d, so that under a causal mask every device has as many visible
    pairs as the others. `x[:, order]` is spread over devices, `order` itself gives the indices and positions of its tokens, and
    `np.argsort(order)` undoes it.

    Raises ValueError where length is no multiple of 2 P.

    Reference: the Llama team 2024 (arXiv:2407.21783), section 3.3.2.

    Example:
        >>> zigzag(8, devices=2).tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]
    """
    _check("zigzag", length)
    validate_integer("zigzag", devices=devices)
    if length % (2 * devices):
        raise ValueError(f"zigzag: length must be a multiple of 2 * devices = {2 * devices}, got {length}")
    chunks = np.arange(length, dtype=np.int32).reshape(2 * devices, -1)
    return np.concatenate([chunks[[d, 2 * devices - 1 - d]].reshape(-1) for d in range(devices)])


def abacus(
    tokens: Integer[ArrayLike, "*B T"], digits: Sequence[int], start: int | Integer[ArrayLike, "*B"] = 0
) -> Integer[Array, "*B T"]:
    """Returns the place of each digit in its number, counted from start + 1; 0 for every token that is not a digit.

    With digits written least significant first, digits of equal significance share a position. `digits` are the token
    ids of the digits; `start` is one number, or one per example, drawn from 0 .. 99 in training and 0 at test time.
    Raises ValueError for no digits, for ids that are not whole numbers, and for a negative start.
    Reference: McLeish et al. 2024, arXiv:2405.17399, section 3.

    Example:
        >>> abacus(np.array([3, 1, 9, 4, 4]), digits=range(5)).tolist()
        [1, 2, 0, 1, 2]
    """
    is_digit, index, shift = _digits("abacus", tokens, digits, start)
    before = jax.lax.cummax(jnp.where(is_digit, -1, index), axis=index.ndim - 1)
    return jnp.where(is_digit, index - before + shift, 0)


def coupled(
    tokens: Integer[ArrayLike, "*B T"],
    digits: Sequence[int],
    start: int | Integer[ArrayLike, "*B"] = 0,
    highest_first: int = 0,
) -> Integer[Array, "*B T"]:
    """Returns the significance of each digit, counted from start + 1, and `start` for every token that is not a digit.

    Digits of equal significance share a position: coupled positions. The first `highest_first` numbers of a row are written
    highest digit first, the operands as a rule, and all others lowest digit first, as an answer whose length is not known
    before its end must be.
    Raises ValueError for what `abacus` refuses, and for a negative `highest_first`.
    Reference: Cho et al. 2024, arXiv:2405.20671; the authors begin at 1 without a start.

    Example:
        >>> coupled(np.array([1, 2, 10, 7, 11, 9, 1]), digits=range(10), highest_first=2).tolist()  # 12 + 7 = 19, reversed
        [2, 1, 0, 1, 0, 1, 2]
    """
    validate_integer("coupled", minimum=0, highest_first=highest_first)
    is_digit, index, shift = _digits("coupled", tokens, digits, start)
    axis, T = index.ndim - 1, index.shape[-1]
    before = jax.lax.cummax(jnp.where(is_digit, -1, index), axis=axis)
    after = jax.lax.cummin(jnp.where(is_digit, T, index), axis=axis, reverse=True)
    number = jax.lax.cumsum((is_digit & (before == index - 1)).astype(jnp.int32), axis=axis)
    significance = jnp.where(number > highest_first, index - before, after - index)
    return shift + jnp.where(is_digit, significance, 0)


def _check(owner: str, length: int, maximum: int = LARGEST, batch: int | None = None) -> tuple[int, ...]:
    """The axes before those of a row: (B,), or () for one row. Raises ValueError for sizes that do not fit."""
    validate_integer(owner, length=length, maximum=maximum, batch=1 if batch is None else batch)
    if maximum > LARGEST:
        raise ValueError(f"{owner}: maximum must be at most 2^31 - 1, so that positions fit int32; got {maximum}")
    if length > maximum:
        raise ValueError(f"{owner}: length must be at most maximum = {maximum}, got {length}")
    return () if batch is None else (batch,)


def _digits(
    owner: str, tokens: Integer[ArrayLike, "*B T"], digits: Sequence[int], start: int | Integer[ArrayLike, "*B"]
) -> tuple[Bool[Array, "*B T"], Integer[Array, "*B T"], Integer[Array, "*B T"]]:
    """Whether a token is a digit, its index, and the start of its row. Raises ValueError as `abacus` says."""
    tokens, index = _indexed(f"{owner}: tokens", tokens)
    for digit in digits:
        validate_integer(owner, minimum=0, digits=digit)
    if not len(digits):
        raise ValueError(f"{owner}: digits must name at least one token id, got none")
    if not isinstance(start, jax.Array | np.ndarray):
        validate_integer(owner, minimum=0, start=start)
    is_digit = jnp.isin(tokens.astype(jnp.int32), np.array(digits, np.int32))
    return is_digit, index, jnp.broadcast_to(jnp.asarray(start, jnp.int32)[..., None], tokens.shape)


def _indexed(name: str, values: Integer[ArrayLike, "*B T"]) -> tuple[Array, Integer[Array, "*B T"]]:
    """The values as an array, and the index of each in its row. Raises ValueError unless they are integers."""
    values = jnp.asarray(values)
    if not values.ndim or not jnp.issubdtype(values.dtype, jnp.integer):
        raise ValueError(f"{name} must be integers [..., T], got {values.dtype}{list(values.shape)}")
    return values, jax.lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
