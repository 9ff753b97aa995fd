"""Extrapolatable rotary positions (xPos): RoPE whose pairs fade with the distance.

    score(i, j) = scale * sum_k zeta_k^((i-j)/B) <pair k of q_i, R((j-i) theta_k) pair k of k_j>
    theta_k = theta^(-2k/d),    zeta_k = (2k/d + 0.4) / 1.4 < 1

Acts on queries and keys (`map_q`, `map_k`): q[T,H], pos[T] -> [T,H]. Queries are turned and multiplied by
zeta_k^(pos/B), keys by its inverse. Nothing is learned. Hyper-parameters: `scale_base` B (512), `theta` (10,000) and
`layout`, see `rotary.py`.

Scores of future keys grow with the distance, so a causal mask is needed. The factors of q and of k leave float32 far
from position 0: the exponent log2(zeta_0) pos/B is held to 64, which is position 18,130 at B = 512.

Reference: Sun et al. 2022 (arXiv:2212.10554), section 3 and algorithm 1.
"""

import dataclasses
import math
from typing import Any

import chex
import jax.numpy as jnp
import numpy as np

from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.checks import validate
from attnjax.positions.concrete import concrete
from attnjax.positions.population import numeric
from attnjax.positions.rotary import Layout, check_even, check_layout, rotate
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype

LARGEST_EXPONENT = 64.0


@dataclasses.dataclass(frozen=True)
class XPos(PositionEncoding):
    """Rotary positions with a decay per pair (Sun et al. 2022).

    Raises ValueError for an odd head dimension, a mask that is not causal, and a known position beyond `reach`; a
    traced position beyond it gives a row of NaN.

    Example:
        >>> p = XPos().constants(Sizes(16, 2, 2, 8))
        >>> XPos().map_q(p, jnp.ones((1, 8)), np.array([0])).tolist() == [[1.0] * 8]
        True
    """

    scale_base: float = 512.0
    theta: float = numeric(10_000.0)
    layout: Layout = "half"

    def __post_init__(self) -> None:
        validate("XPos", scale_base=self.scale_base, theta=self.theta)
        check_layout(self.layout)

    @property
    def reach(self) -> float:
        """The largest |position| whose factors float32 can hold."""
        return LARGEST_EXPONENT * self.scale_base / -math.log2(0.4 / 1.4)

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """shared={"frequencies": those of H / 2 pairs}."""
        del length
        return EncodingParams(shared={"frequencies": exact(geometric(sizes.head_dim // 2, self.theta))})

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses an odd head dimension, a mask that shows future keys, and known positions beyond `reach`."""
        if sizes is not None:
            check_even("XPos", sizes.head_dim)
        if causal is False:
            raise ValueError("XPos grows with the distance to future keys and needs a causal mask, got causal=False")
        values = None if pos is None else concrete(pos)
        if values is not None and values.size and np.abs(values.astype(np.float64)).max() > self.reach:
            raise ValueError(
                f"XPos(scale_base={self.scale_base}) holds positions up to {self.reach:.0f} in float32, got positions "
                f"{values.min()}..{values.max()}: raise scale_base or shift the positions"
            )

    def map_q(self, p: EncodingParams, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """zeta^(pos/B) R(pos) q."""
        return self._turn(p, q, pos, 1)

    def map_k(self, p: EncodingParams, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S H"]:
        """zeta^(-pos/B) R(pos) k."""
        return self._turn(p, k, pos, -1)

    def _turn(
        self, p: EncodingParams, x: Float[Array, "T H"], pos: Num[ArrayLike, " T"], sign: int
    ) -> Float[Array, "T H"]:
        check_even("XPos", x.shape[-1])
        self.check(pos=pos)
        pairs, dtype = x.shape[-1] // 2, compute_dtype(x)
        angle = angles(pos, p.shared["frequencies"], dtype)
        zeta = (np.arange(pairs) / pairs + 0.4) / 1.4
        # The factors of keys are the inverse of those of queries, so that XLA computes one table for both.
        grown = power_of_two(pos, np.log2(zeta) / self.scale_base, dtype)
        magnitude = grown if sign > 0 else 1 / grown
        near = (jnp.abs(jnp.asarray(pos).astype(dtype)) <= self.reach)[:, None]
        # The largest number of float16 is 65,504, and factors of queries and keys reach 2^64.
        x = x.astype(dtype) if x.dtype == jnp.float16 else x
        return rotate(x, angle, self.layout, jnp.where(near, magnitude, jnp.asarray(jnp.nan, dtype)))


def power_of_two(pos: Num[ArrayLike, " T"], rates: np.ndarray, dtype: jnp.dtype) -> Float[Array, "T c"]:
    """2^(pos * rates), to a relative error of 3e-7 in float32 where the exponent is below 127.

    The float32 product pos * rates would lose its fraction: 4e-6 at an exponent of 64. An exponent modulo 1 is an angle
    modulo a full turn, so `angles` finds the fraction; the product is good enough for the integer that remains.

    Example:
        >>> power_of_two(np.array([0, 4]), np.array([0.5]), jnp.dtype("float32")).round(6).tolist()
        [[1.0], [4.0]]
    """
    chex.assert_rank([pos, rates], 1)
    fraction = angles(pos, exact(2 * np.pi * rates), dtype) / (2 * np.pi)
    product = jnp.asarray(pos).astype(dtype)[:, None] * jnp.asarray(rates, dtype)[None, :]
    integer = jnp.round(product - fraction)
    return jnp.ldexp(jnp.exp2(fraction), integer.astype(jnp.int32))
