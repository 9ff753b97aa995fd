"""Angles that stay exact at any position, and their sine and cosine.

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

from attnjax.typing import Array, ArrayLike, Float, Num, UInt32

TURN = 2.0**32
HALF_PI = (1.5703125, 4.837512969970703e-4, 7.549789948768648e-8)
"""pi/2 in three parts: whole numbers below 2^13 times the first two are exact in float32."""
SIN = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
COS = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)


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
    """Returns theta^(-2k/width) for k = 0..pairs-1 in float64; `width` is 2 * pairs unless given.

    Example:
        >>> geometric(2, 10_000.0).tolist()
        [1.0, 0.01]
    """
    return float(theta) ** (-2.0 * np.arange(pairs, dtype=np.float64) / (width or 2 * pairs))


def exact(radians: np.ndarray) -> Frequencies:
    """Returns frequencies known on the host, kept to 2^-64 of a turn per position. Raises ValueError if one is not finite.

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


def angles(pos: Num[ArrayLike, " T"], frequencies: Frequencies) -> Float[Array, "T c"]:
    """Returns pos * frequency modulo a full turn, in [-pi, pi]; the plain product where frequencies are float64.

    Integer positions are exact to 4e-7; of a fractional position the whole part is, and the rest is added in float32.

    Example:
        >>> angles(np.array([0, 1]), exact(np.array([1.0, 0.25]))).tolist()
        [[0.0, 0.0], [1.0, 0.25]]
    """
    chex.assert_rank([pos, *frequencies], 1)
    pos, radians = jnp.asarray(pos), jnp.asarray(frequencies.radians)
    if radians.dtype == jnp.float64:
        return pos.astype(jnp.float64)[:, None] * radians[None, :]
    if jnp.issubdtype(pos.dtype, jnp.integer):
        return _whole(pos, frequencies)
    whole = jnp.floor(pos)
    rest = (pos - whole).astype(jnp.float32)[:, None] * radians[None, :]
    return _whole(whole.astype(jnp.int32), frequencies) + rest


def _whole(pos: Num[Array, " T"], frequencies: Frequencies) -> Float[Array, "T c"]:
    magnitude = jnp.abs(pos).astype(jnp.uint32)[:, None]
    high, low = jnp.asarray(frequencies.high)[None, :], jnp.asarray(frequencies.low)[None, :]
    turns = magnitude * high + _high_word(magnitude, low)
    signed = jax.lax.bitcast_convert_type(turns, jnp.int32)
    angle = signed.astype(jnp.float32) * jnp.float32(2 * math.pi / TURN)
    return jnp.where(pos[:, None] < 0, -angle, angle)


def _high_word(a: UInt32[Array, "T 1"], b: UInt32[Array, "1 c"]) -> UInt32[Array, "T c"]:
    """The upper 32 bits of the 64-bit product of two uint32, from four 16-bit products."""
    mask, sixteen = jnp.uint32(0xFFFF), jnp.uint32(16)
    a0, a1, b0, b1 = a & mask, a >> sixteen, b & mask, b >> sixteen
    middle = a1 * b0 + ((a0 * b0) >> sixteen)
    other = a0 * b1 + (middle & mask)
    return a1 * b1 + (middle >> sixteen) + (other >> sixteen)


@jax.custom_jvp
def sine_cosine(angle: Float[Array, "*axes"]) -> tuple[Float[Array, "*axes"], Float[Array, "*axes"]]:
    """Returns (sin, cos) of angles in radians, in their type: float64 by the library, float32 by a polynomial.

    XLA calls scalar functions of the C library on a CPU, which takes ten times as long as all else that a rotation does. Here,
    with x = n pi/2 + r and |r| <= pi/4,

        sin r = r + r^3 (S_1 + S_2 r^2 + S_3 r^4)        cos r = 1 - r^2/2 + r^4 (C_1 + C_2 r^2 + C_3 r^4)

    and n mod 4 says which of the two is which, and its sign. The absolute error is below 1.2e-7 for |x| < 10,000; beyond, the
    error of the reduction grows like |x|. Derivatives are the cosine and the negative sine that this function returns.

    Reference: coefficients and parts of pi/2 are those of sinf and cosf of the Cephes library (Moshier 1989), public domain.

    Example:
        >>> [wave.tolist() for wave in sine_cosine(jnp.zeros(2))]
        [[0.0, 0.0], [1.0, 1.0]]
    """
    if angle.dtype == jnp.float64:
        return jnp.sin(angle), jnp.cos(angle)
    number = lambda x: jnp.asarray(x, jnp.float32)
    n = jnp.round(angle * number(2 / np.pi))
    r = angle
    for part in HALF_PI:
        r = r - n * number(part)
    square = r * r
    series = lambda c: number(c[0]) + square * (number(c[1]) + square * number(c[2]))
    sin = r + r * square * series(SIN)
    cos = number(1) - number(0.5) * square + square * square * series(COS)
    quarter = n.astype(jnp.int32) & 3
    odd = (quarter & 1) == 1
    negative = lambda turned: (turned & 2) == 2
    s, c = jnp.where(odd, cos, sin), jnp.where(odd, sin, cos)
    return jnp.where(negative(quarter), -s, s), jnp.where(negative(quarter + 1), -c, c)


@sine_cosine.defjvp
def _derivative(primals, tangents):
    (angle,), (change,) = primals, tangents
    sin, cos = sine_cosine(angle)
    return (sin, cos), (cos * change, -sin * change)
