"""Inkling's bias: learned curves of the distance, mixed by the token of the query.

    score[i, j] = scale * q_i . k_j + sum_c (w_hc . x_i + b_hc) * curve_c(i - j)    for 0 <= i - j < reach, otherwise + 0

Acts through `context`, which makes (pos, mixture) [T, 1 + C] of each token, and `score`. All heads read the same curves; a
distance between whole numbers is rounded down. Keys at `reach` or beyond have no position.

Learned: w [N, C, D] and b [N, C], uniform in +-1/sqrt(D), and for all heads curves [C, reach] ~ N(0, 0.02^2).

Reference: the Inkling model of Thinking Machines 2026, of which no paper is known to us; formula and initial values are those
of x-transformers (`RelativeProjPositionalBias`), written by others.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import Params, PositionEncoding, Sizes, Tile
from attnjax.positions.checks import Rows
from attnjax.positions.contextual import Past
from attnjax.positions.fire import uniform
from attnjax.positions.projection import HIGHEST, project
from attnjax.typing import Array, ArrayLike, Float, Num


@dataclasses.dataclass(frozen=True)
class Inkling(PositionEncoding):
    """`curves` learned curves over the distances 0 .. `reach` - 1, mixed by a linear map of the query's token.

    Example:
        >>> from attnjax import Sizes, context_positions
        >>> encoding, sizes = Inkling(curves=3), Sizes(model=8, heads=2, kv_heads=1, head_dim=4)
        >>> params = encoding.init(jax.random.key(0), sizes)
        >>> context_positions(encoding, params, jnp.ones((1, 5, 8)), jnp.arange(5), sizes)[0, 0, :, 0].tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0]
    """

    curves: Rows = 16
    reach: Rows = 1024

    per_head = ("w", "b")

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns w [N, C, D], b [N, C] and curves [C, reach]."""
        keys, shape = jax.random.split(key, 3), (sizes.heads, self.curves)
        curves = 0.02 * jax.random.normal(keys[2], (self.curves, self.reach), jnp.float32)
        w = uniform(keys[0], (*shape, sizes.model), sizes.model)
        return {"w": w, "b": uniform(keys[1], shape, sizes.model), "curves": curves}

    def features(self, sizes: Sizes) -> tuple[int, ...]:
        """Returns (1 + C,)."""
        return (1 + self.curves,)

    def context(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], past: Past) -> Float[Array, "T F"]:
        """Returns the position of every token, and its mixture of curves."""
        mixture = project(x, p["w"].T) + p["b"][None]
        return jnp.concatenate([jnp.asarray(pos).astype(mixture.dtype)[:, None], mixture], axis=1)

    def score(self, p: Params, tile: Tile) -> Float[Array, "t s"]:
        """Returns logits + the mixture of curves at the distance."""
        n = (tile.q_pos[:, None, 0] - tile.k_pos[None, :, 0]).astype(tile.logits.dtype)
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        mixed = jnp.matmul(tile.q_pos[:, 1:].astype(n.dtype), p["curves"], precision=HIGHEST)
        at = jnp.clip(n, 0, self.reach - 1).astype(jnp.int32)
        bias = jnp.take_along_axis(mixed, at, axis=1)
        return tile.logits + jnp.where((n >= 0) & (n < self.reach), bias, jnp.zeros((), n.dtype))
