"""Angles that stay exact at any position: position * frequency, reduced to [-pi, pi] in integers.

A float32 product `pos * frequency` is wrong by 1e-2 radians at a million. Here the frequency is held on the host in
float64 as a binary fraction of a full turn,

    frequency / (2 pi) = high * 2^-32 + low * 2^-64        (high, low: uint32)

so the turns made at an integer position are `pos * high + floor(pos * low / 2^32)` in arithmetic modulo 2^32, where
the wrap-around *is* the reduction by whole turns. Only the reduced angle becomes a float: the error stays below 4e-7
radians for every |pos| < 2^31, traced positions included.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from attnjax.typing import Array, ArrayLike, Float, Num, UInt32

TURN = 2.0**32


class Frequencies(NamedTuple):
    """Angular frequencies in radians per position: 64-bit fractions of a turn, and plain for fractional positions.

    Example:
        >>> exact(np.array([0.5])).radians.tolist()
        [0.5]
    """

    high: UInt32[ArrayLike, " c"]
    low: UInt32[ArrayLike, " c"]
    radians: Float[ArrayLike, " c"]


def geometric(pairs: int, theta: float, width: int | None = None) -> np.ndarray:
    """theta^(-2k/width) for k = 0..pairs-1 in float64; `width` is 2 * pairs unless given.

    Example:
        >>> geometric(2, 10_000.0).tolist()
        [1.0, 0.01]
    """
    return float(theta) ** (-2.0 * np.arange(pairs, dtype=np.float64) / (width or 2 * pairs))


def exact(radians: np.ndarray) -> Frequencies:
    """Frequencies known on the host, kept to 2^-64 of a turn per position. Raises ValueError if one is not finite.

    Example:
        >>> exact(np.array([1.0])).high.tolist() == [2**32 // 6.283185307179586]
        True
    """
    radians = np.asarray(radians, np.float64)
    chex.assert_rank(radians, 1)
    if not np.all(np.isfinite(radians)):
        raise ValueError(f"angular frequencies must be finite, got {radians}")
    words = [math.floor(_turns(value) * 2**64) % 2**64 for value in radians]
    high = np.array([word >> 32 for word in words], np.uint32)
    low = np.array([word & 0xFFFFFFFF for word in words], np.uint32)
    return Frequencies(high, low, radians)


def _turns(radians: float) -> Fraction:
    """radians / (2 pi) as an exact fraction of the two float64 numbers, with 2 pi to 106 bits."""
    two_pi = Fraction(2 * math.pi) + Fraction(2.4492935982947064e-16)
    return Fraction(float(radians)) / two_pi


def rounded(radians: Float[Array, " c"]) -> Frequencies:
    """Frequencies computed while tracing, such as those that depend on a traced length: float32, in [0, 2 pi).

    Example:
        >>> rounded(jnp.array([2 * math.pi / 4])).high.tolist() == [2**30]
        True
    """
    chex.assert_rank(radians, 1)
    turns = radians.astype(jnp.float32) * jnp.float32(TURN / (2 * math.pi))
    high = jnp.floor(turns)
    low = (turns - high) * jnp.float32(TURN)
    return Frequencies(high.astype(jnp.uint32), low.astype(jnp.uint32), radians)


def select(condition: Array, on_true: Frequencies, on_false: Frequencies) -> Frequencies:
    """Either of two sets of frequencies, chosen by a traced condition of shape [] or [c].

    Example:
        >>> select(jnp.array(True), exact(np.ones(2)), exact(np.zeros(2))).radians.tolist()
        [1.0, 1.0]
    """
    chex.assert_rank(condition, {0, 1})
    chex.assert_equal_shape([*on_true, *on_false])
    return Frequencies(*(jnp.where(condition, a, b) for a, b in zip(on_true, on_false, strict=True)))


def angles(pos: Num[ArrayLike, " T"], frequencies: Frequencies, dtype: DTypeLike = jnp.float32) -> Float[Array, "T c"]:
    """pos * frequency modulo a full turn, in [-pi, pi].

    Integer positions are exact to 4e-7; of a fractional position the whole part is, and the rest is added in float32.
    Derivatives with respect to frequencies are those of the plain product.
    With `dtype=float64` the plain product is returned.

    Example:
        >>> angles(np.array([0, 1]), exact(np.array([1.0, 0.25]))).tolist()
        [[0.0, 0.0], [1.0, 0.25]]
    """
    chex.assert_rank(pos, 1)
    chex.assert_rank(list(frequencies), 1)
    pos = jnp.asarray(pos)
    if dtype == jnp.float64:
        return pos.astype(dtype)[:, None] * jnp.asarray(frequencies.radians, dtype)[None, :]
    if jnp.issubdtype(pos.dtype, jnp.integer):
        return _whole(pos, frequencies)
    whole = jnp.floor(pos)
    rest = (pos - whole).astype(jnp.float32)[:, None] * jnp.asarray(frequencies.radians, jnp.float32)[None, :]
    return _whole(whole.astype(jnp.int32), frequencies) + rest


def _whole(pos: Num[ArrayLike, " T"], frequencies: Frequencies) -> Float[Array, "T c"]:
    magnitude = jnp.abs(pos).astype(jnp.uint32)[:, None]
    high, low = jnp.asarray(frequencies.high)[None, :], jnp.asarray(frequencies.low)[None, :]
    turns = magnitude * high + _high_word(magnitude, low)
    signed = jax.lax.bitcast_convert_type(turns, jnp.int32)
    angle = signed.astype(jnp.float32) * jnp.float32(2 * math.pi / TURN)
    angle = jnp.where(pos[:, None] < 0, -angle, angle)
    if not isinstance(frequencies.radians, jax.Array):
        return angle
    return _with_slope(angle, pos.astype(jnp.float32), frequencies.radians.astype(jnp.float32))


@jax.custom_jvp
def _with_slope(
    angle: Float[Array, "T c"], pos: Float[Array, " T"], radians: Float[Array, " c"]
) -> Float[Array, "T c"]:
    """The angle, whose derivative with respect to radians is pos; integers pass on none."""
    del pos, radians
    return angle


@_with_slope.defjvp
def _slope(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (angle, pos, _), (change, _, of_radians) = primals, tangents
    return angle, change + pos[:, None] * of_radians[None, :]


def _high_word(a: UInt32[Array, "T 1"], b: UInt32[Array, "1 c"]) -> UInt32[Array, "T c"]:
    """The upper 32 bits of the 64-bit product of two uint32, from four 16-bit products."""
    mask = jnp.uint32(0xFFFF)
    sixteen = jnp.uint32(16)
    a0, a1, b0, b1 = a & mask, a >> sixteen, b & mask, b >> sixteen
    middle = a1 * b0 + ((a0 * b0) >> sixteen)
    other = a0 * b1 + (middle & mask)
    return a1 * b1 + (middle >> sixteen) + (other >> sixteen)
