"""FIRE: functional interpolation for relative positions.

    score[i, j] = scale * q_i . k_j + f_h( psi(|i - j|) / (psi(max(i, L)) + 1e-6) )
    psi(y) = ln(|c| * y + 1),    f_h(x) = out_h . relu(hidden * x + hidden_bias) + out_bias_h

Acts through `score`, because the normaliser depends on the query position i and not only on the distance: under a
causal mask the argument of f stays in [0, 1] at any length. L = |l * threshold| with l learned keeps short distances
apart. The hidden layer is shared by all heads, so mapping over heads computes it once.

Learned: head = {"out": [N, hidden], "out_bias": [N]},
shared = {"hidden": [hidden], "hidden_bias": [hidden], "c": [], "threshold": []}.
Initial values: c = 0.1, l = 1; layers uniform in +-1/sqrt(inputs).
Reference: Li et al. 2024, arXiv:2310.04418, equations 2 and 4 and appendix A.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Tile
from attnjax.positions.checks import MOST, validate, validate_integer
from attnjax.typing import Array, Float, PyTree

HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class FIRE(PositionEncoding):
    """A small network of the distance relative to the query position, `hidden` units wide; `threshold` in positions.

    Example:
        >>> params = FIRE(hidden=8).init(jax.random.key(0), Sizes(16, 2, 2, 8))
        >>> params.head["out"].shape, params.shared["hidden"].shape
        ((2, 8), (8,))
    """

    hidden: int = 32
    threshold: float = 512.0

    def __post_init__(self) -> None:
        validate_integer("FIRE", most=MOST, hidden=self.hidden)
        validate("FIRE", threshold=self.threshold)

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """Uniform layers, c = 0.1, and a threshold factor of 1."""
        keys = jax.random.split(key, 4)
        shared = {
            "hidden": uniform(keys[0], (self.hidden,), 1),
            "hidden_bias": uniform(keys[1], (self.hidden,), 1),
            "c": jnp.array(0.1, jnp.float32),
            "threshold": jnp.array(1.0, jnp.float32),
        }
        out = uniform(keys[2], (sizes.heads, self.hidden), self.hidden)
        out_bias = uniform(keys[3], (sizes.heads,), self.hidden)
        return EncodingParams(head={"out": out, "out_bias": out_bias}, shared=shared)

    def score(self, p: EncodingParams, tile: Tile) -> Float[Array, "t s"]:
        """logits + f(psi(|n|) / (psi(max(i, L)) + 1e-6))."""
        dtype = tile.logits.dtype
        head, shared = jax.tree.map(lambda leaf: leaf.astype(dtype), (p.head, p.shared))
        x = self._relative(shared, tile)
        hidden = jax.nn.relu(x[:, :, None] * shared["hidden"][None, None, :] + shared["hidden_bias"][None, None, :])
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        return tile.logits + jnp.matmul(hidden, head["out"], precision=HIGHEST) + head["out_bias"]

    def _relative(self, shared: PyTree, tile: Tile) -> Float[Array, "t s"]:
        """psi(|n|) / (psi(max(i, L)) + 1e-6)."""
        dtype = tile.logits.dtype
        c, threshold = jnp.abs(shared["c"]), jnp.abs(shared["threshold"] * float(self.threshold))
        longest = jnp.maximum(tile.q_pos.astype(dtype), threshold)
        near = jnp.log1p(c * jnp.abs(tile.distance).astype(dtype))
        return near / (jnp.log1p(c * longest) + 1e-6)[:, None]


def uniform(key: jax.Array, shape: tuple[int, ...], inputs: int) -> Float[Array, "..."]:
    """Numbers that are uniform in +-1/sqrt(inputs), the initial values of a layer with so many inputs.

    Example:
        >>> bool((abs(uniform(jax.random.key(0), (100,), inputs=4)) <= 0.5).all())
        True
    """
    limit = 1.0 / math.sqrt(inputs)
    return jax.random.uniform(key, shape, jnp.float32, -limit, limit)
