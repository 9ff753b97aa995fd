"""Polar coordinate positions (PoPE): content in the length, position in the angle.

    score(i, j) = scale * sum_k softplus(q_ik) softplus(k_jk) cos(n theta_k - delta_k)
    n = i - j,    theta_k = theta^(-k/d)

for k = 0 .. d-1: every channel has a frequency of its own, twice as many as RoPE. Acts on queries and keys (`map_q`,
`map_k`), which become twice as wide: q[T,H], pos[T] -> [T,2H], cosines first. Hyper-parameter: `theta` (10,000).

Learned: delta [N,H], initially 0. The key's phase is moved to the query's side, with the sign of x-transformers: q at the
angle i theta_k - delta_k is multiplied by k at j theta_k. The cosine is periodic, so delta needs no bounds. `scale` is
1/sqrt(H) of the head dimension before the lifting.

Reference: Gopalakrishnan et al. 2025 (arXiv:2509.10534).
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from attnjax.config.kinds import Positive
from attnjax.positions.angles import angles, exact, geometric, sine_cosine
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.population import numeric
from attnjax.typing import Array, ArrayLike, Float, Num


@dataclasses.dataclass(frozen=True)
class PoPE(PositionEncoding):
    """Polar positions: the magnitude of a channel is its content, the phase its position.

    Example:
        >>> p = PoPE().constants(Sizes(16, 2, 2, 8))
        >>> PoPE().map_k(p, jnp.ones((3, 8)), jnp.arange(3)).shape
        (3, 16)
    """

    theta: Positive = numeric(10_000.0)

    per_head = ("delta",)

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns delta [N,H], all 0."""
        return {"delta": jnp.zeros((sizes.heads, sizes.head_dim), jnp.float32)}

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns the frequencies theta_k of H channels."""
        return {"frequencies": exact(geometric(sizes.head_dim, self.theta, 2 * sizes.head_dim))}

    def map_q(self, p: Params, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T 2*H"]:
        """Returns softplus(q) at the angles pos * theta_k - delta_k."""
        return _polar(q, angles(pos, p["frequencies"]) - p["delta"][None, :])

    def map_k(self, p: Params, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S 2*H"]:
        """Returns softplus(k) at the angles pos * theta_k."""
        return _polar(k, angles(pos, p["frequencies"]))


def _polar(x: Float[Array, "T H"], angle: Float[Array, "T H"]) -> Float[Array, "T 2*H"]:
    chex.assert_equal_shape([x, angle])
    length = jax.nn.softplus(x)
    sin, cos = sine_cosine(angle)
    return jnp.concatenate([length * cos, length * sin], axis=-1)
