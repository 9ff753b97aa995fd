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

import chex
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Positive
from attnjax.positions.angles import Frequencies, angles, exact, geometric
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.population import numeric
from attnjax.positions.rotary import Layout, pairs_of, rotate
from attnjax.typing import Array, ArrayLike, Float, Num

LARGEST_EXPONENT = 64.0


@dataclasses.dataclass(frozen=True)
class XPos(PositionEncoding):
    """Rotary positions with a decay per pair (Sun et al. 2022).

    Constants: frequencies, and rates, the logarithms of the factors per position as `power_of_two` reads them.
    Raises ValueError for an odd head dimension and for a known position beyond `reach`; a traced one gives a row of NaN.

    Example:
        >>> p = XPos().constants(Sizes(16, 2, 2, 8))
        >>> XPos().map_q(p, jnp.ones((1, 8)), np.array([0])).tolist() == [[1.0] * 8]
        True
    """

    scale_base: Positive = 512.0
    theta: Positive = numeric(10_000.0)
    layout: Layout = "half"

    causal_only = "lets scores of keys in the future grow with the distance"
    float16 = False
    """Queries and keys in float16 are refused: its largest number is 65,504, and the factors reach 2^64."""

    @property
    def reach(self) -> float:
        """The largest |position| whose factors float32 can hold."""
        return LARGEST_EXPONENT * self.scale_base / -math.log2(0.4 / 1.4)

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns frequencies and rates of H / 2 pairs."""
        pairs = pairs_of("XPos", sizes.head_dim)
        rates = np.log2((np.arange(pairs) / pairs + 0.4) / 1.4) / self.scale_base
        return {"frequencies": exact(geometric(pairs, self.theta)), "rates": exact(2 * np.pi * rates)}

    def check(self, pos: np.ndarray) -> None:
        """Raises ValueError for positions beyond `reach`."""
        if pos.size and np.abs(pos.astype(np.float64)).max() > self.reach:
            raise ValueError(
                f"XPos(scale_base={self.scale_base}) holds positions up to {self.reach:.0f} in float32, got positions "
                f"{pos.min()}..{pos.max()}: raise scale_base or shift the positions"
            )

    def map_q(self, p: Params, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """Returns zeta^(pos/B) R(pos) q."""
        return rotate(q, angles(pos, p["frequencies"]), self.layout, self._factor(p, pos))

    def map_k(self, p: Params, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S H"]:
        """Returns zeta^(-pos/B) R(pos) k."""
        # The inverse, so that XLA computes one table for queries and keys.
        return rotate(k, angles(pos, p["frequencies"]), self.layout, 1 / self._factor(p, pos))

    def _factor(self, p: Params, pos: Num[ArrayLike, " T"]) -> Float[Array, "T pairs"]:
        factor = power_of_two(pos, p["rates"])
        near = jnp.abs(jnp.asarray(pos).astype(factor.dtype)) <= self.reach
        return jnp.where(near[:, None], factor, jnp.nan)


def power_of_two(pos: Num[ArrayLike, " T"], rates: Frequencies) -> Float[Array, "T c"]:
    """Returns 2^(pos * rate) for rates in turns, to a relative error of 3e-7 in float32 where the exponent is below 127.

    The float32 product pos * rate would lose its fraction: 4e-6 at an exponent of 64. An exponent modulo 1 is an angle
    modulo a full turn, so `angles` finds the fraction; the product is good enough for the integer that remains.

    Example:
        >>> power_of_two(np.array([0, 4]), exact(2 * np.pi * np.array([0.5]))).round(6).tolist()
        [[1.0], [4.0]]
    """
    chex.assert_rank(pos, 1)
    fraction = angles(pos, rates) / (2 * np.pi)
    per_position = jnp.asarray(rates.radians) / (2 * np.pi)
    integer = jnp.round(jnp.asarray(pos).astype(fraction.dtype)[:, None] * per_position[None, :] - fraction)
    return jnp.ldexp(jnp.exp2(fraction), integer.astype(jnp.int32))
