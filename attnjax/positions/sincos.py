"""Sine and cosine of the same angles, as a polynomial that every compiler turns into vector instructions.

XLA calls the scalar functions of the C library on a CPU, which takes ten times as long as all else that a rotation does. In
float32, with x = n pi/2 + r and |r| <= pi/4,

    sin r = r + r^3 (S_1 + S_2 r^2 + S_3 r^4)        cos r = 1 - r^2/2 + r^4 (C_1 + C_2 r^2 + C_3 r^4)

and n mod 4 says which of the two is which, and its sign. The absolute error is below 1.2e-7 for |x| < 10,000 (angles of
integer positions are within [-pi, pi], see `angles.py`); beyond, the error of the reduction grows like |x|.

Coefficients and the three parts of pi/2: sinf and cosf of the Cephes library (Moshier 1989), public domain.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import Array, Float

HALF_PI = (1.5703125, 4.837512969970703e-4, 7.549789948768648e-8)
"""pi/2 in three parts: whole numbers below 2^13 times the first two are exact in float32."""

SIN = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
COS = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)


@jax.custom_jvp
def sine_cosine(angle: Float[Array, "*axes"]) -> tuple[Float[Array, "*axes"], Float[Array, "*axes"]]:
    """(sin, cos) of angles in radians, in their type: float64 by the library, float32 as the module's text says.

    Derivatives are the cosine and the negative sine that this function returns, not those of the polynomial.

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
