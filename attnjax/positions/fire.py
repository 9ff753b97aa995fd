"""FIRE: functional interpolation for relative positions.

    score[i, j] = scale * q_i . k_j + f_h( psi(|i - j|) / (psi(max(i, L)) + 1e-6) )
    psi(y) = ln(|c| * y + 1),    f_h(x) = out_h . relu(hidden * x + hidden_bias) + out_bias_h

Acts through `score`, because the normaliser depends on the query position i and not only on the distance: under a
causal mask the argument of f stays in [0, 1] at any length. L = |l * threshold| with l learned keeps short distances
apart. The hidden layer is shared by all heads, so mapping over heads computes it once.

Learned: out [N, hidden], out_bias [N], and for all heads hidden [hidden], hidden_bias [hidden], c [] and threshold [] (l).
Initial values: c = 0.1, l = 1; layers uniform in +-1/sqrt(inputs).
Reference: Li et al. 2024, arXiv:2310.04418, equations 2 and 4 and appendix A.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from attnjax.config.kinds import Positive
from attnjax.positions.base import Params, PositionEncoding, Sizes, Tile
from attnjax.positions.checks import Rows
from attnjax.positions.projection import HIGHEST
from attnjax.typing import Array, Float


@dataclasses.dataclass(frozen=True)
class FIRE(PositionEncoding):
    """A small network of the distance relative to the query position, `hidden` units wide; `threshold` in positions.

    Example:
        >>> p = FIRE(hidden=8).init(jax.random.key(0), Sizes(16, 2, 2, 8))
        >>> p["out"].shape, p["hidden"].shape
        ((2, 8), (8,))
    """

    hidden: Rows = 32
    threshold: Positive = 512.0

    per_head = ("out", "out_bias")

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns uniform layers, c = 0.1, and a threshold factor of 1."""
        keys = jax.random.split(key, 4)
        return {
            "out": uniform(keys[2], (sizes.heads, self.hidden), self.hidden),
            "out_bias": uniform(keys[3], (sizes.heads,), self.hidden),
            "hidden": uniform(keys[0], (self.hidden,), 1),
            "hidden_bias": uniform(keys[1], (self.hidden,), 1),
            "c": jnp.array(0.1, jnp.float32),
            "threshold": jnp.array(1.0, jnp.float32),
        }

    def score(self, p: Params, tile: Tile) -> Float[Array, "t s"]:
        """Returns logits + f(psi(|n|) / (psi(max(i, L)) + 1e-6))."""
        psi = lambda y: jnp.log1p(jnp.abs(p["c"]) * y)
        longest = jnp.maximum(tile.q_pos.astype(tile.logits.dtype), jnp.abs(p["threshold"] * self.threshold))
        x = psi(jnp.abs(tile.distance)) / (psi(longest) + 1e-6)[:, None]
        hidden = jax.nn.relu(x[:, :, None] * p["hidden"][None, None] + p["hidden_bias"][None, None])
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        return tile.logits + jnp.matmul(hidden, p["out"], precision=HIGHEST) + p["out_bias"]


def uniform(key: jax.Array, shape: tuple[int, ...], inputs: int) -> Float[Array, "..."]:
    """Returns numbers that are uniform in +-1/sqrt(inputs), the initial values of a layer with so many inputs.

    Example:
        >>> bool((abs(uniform(jax.random.key(0), (100,), inputs=4)) <= 0.5).all())
        True
    """
    limit = 1.0 / math.sqrt(inputs)
    return jax.random.uniform(key, shape, jnp.float32, -limit, limit)
