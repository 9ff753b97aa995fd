"""Polar coordinate positions (PoPE): content in the length, position in the angle.

    score(i, j) = scale * sum_k softplus(q_ik) softplus(k_jk) cos(n theta_k - delta_k)
    n = i - j,    theta_k = theta^(-k/d)

for k = 0 .. d-1: every channel has a frequency of its own, twice as many as RoPE. Acts on queries and keys (`map_q`,
`map_k`), which become twice as wide: q[T,H], pos[T] -> [T,2H], cosines first. Hyper-parameter: `theta` (10,000).

Learned: head={"delta": [N,H]}, initially 0. The key's phase is moved to the query's side, with the sign of
x-transformers: q at the angle i theta_k - delta_k meets k at j theta_k. The cosine is periodic, so delta needs no
bounds. `scale` is 1/sqrt(H) of the head dimension before the lifting.

Reference: Gopalakrishnan et al. 2025 (arXiv:2509.10534).
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.angles import angles, exact, geometric, given_or
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, validate
from attnjax.positions.waves import sine_cosine
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree, compute_dtype


@dataclasses.dataclass(frozen=True)
class PoPE(PositionEncoding):
    """Polar positions: the magnitude of a channel is its content, the phase its position."""

    theta: float = 10_000.0

    def __post_init__(self) -> None:
        validate("PoPE", theta=self.theta)

    @property
    def learns(self) -> bool:
        """True: the phases delta."""
        return True

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """head={"delta": [N,H]}, all 0."""
        del key
        return EncodingParams(head={"delta": jnp.zeros((sizes.heads, sizes.head), jnp.float32)})

    def as_data(self, sizes: Sizes) -> tuple[PositionEncoding, EncodingParams]:
        """The base is the frequencies."""
        frequencies = exact(geometric(sizes.head, self.theta, 2 * sizes.head))
        return PoPE(), EncodingParams(shared={"frequencies": frequencies})

    def map_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]
    ) -> Float[Array, "T 2*H"]:
        """softplus(q) at the angles pos * theta_k - delta_k."""
        angle = self._angles(shared, q, pos)
        return _polar(q, angle - head["delta"].astype(angle.dtype)[None, :])

    def map_k(self, shared: PyTree, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S 2*H"]:
        """softplus(k) at the angles pos * theta_k."""
        return _polar(k, self._angles(shared, k, pos))

    def _angles(self, shared: PyTree, x: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        width = x.shape[-1]
        return angles(pos, given_or(shared, geometric(width, self.theta, 2 * width)), compute_dtype(x))


def _polar(x: Float[Array, "T H"], angle: Float[Array, "T H"]) -> Float[Array, "T 2*H"]:
    length = jax.nn.softplus(x.astype(angle.dtype))
    sin, cos = sine_cosine(angle)
    return jnp.concatenate([length * cos, length * sin], axis=-1).astype(x.dtype)
