"""CoPE: contextual position encoding, which counts the keys that a query finds worth counting.

    g_ij = sigmoid(logit_ij) where the mask allows j, else 0
    p_ij = min( sum_{m >= j} g_im, max_position - 1 )
    score[i, j] = logit_ij + (1 - w) * q_i . e[floor(p_ij)] + w * q_i . e[ceil(p_ij)],    w = p_ij - floor(p_ij)

Acts through `score`. A position is a sum over all visible keys from the last back to j (in the order of the keys, not
of their positions), so key tiles are visited from the last to the first, and the running sum of gates is the carry.

The gate sees the scaled logit, and q . e is not scaled, as in x-transformers (class CoPE, called after scaling and
masking, with queries that are not scaled themselves).

Learned: shared = {"table": [max_position, H]}, zero at first, shared by all heads.
Reference: Golovneva, Wang, Weston, Sukhbaatar 2024, arXiv:2405.18719, equations 3 to 7 and appendix B.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Tile
from attnjax.positions.checks import validate_integer
from attnjax.typing import Array, Float, PyTree


@dataclasses.dataclass(frozen=True)
class CoPE(PositionEncoding):
    """Counted positions 0 .. `max_position` - 1, with embeddings interpolated between whole numbers."""

    max_position: int = 16

    def __post_init__(self) -> None:
        validate_integer("CoPE", max_position=self.max_position)

    @property
    def learns(self) -> bool:
        """True: the table of position embeddings."""
        return True

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """A table of zeros [max_position, H]: at first, attention without position."""
        del key
        return EncodingParams(shared={"table": jnp.zeros((self.max_position, sizes.head), jnp.float32)})

    def carry(self, t: int) -> Float[Array, " t"]:
        """The sum of gates to the right of the last tile: zero."""
        return jnp.zeros((t,), jnp.float32)

    def score(
        self, head: PyTree, shared: PyTree, tile: Tile, carry: PyTree = ()
    ) -> tuple[Float[Array, "t s"], Float[Array, " t"]]:
        """(logits + interpolated q . e[p], the sum of gates of this tile and of all to its right).

        Without a carry the tile is taken to hold the last keys of the rows.
        """
        del head
        counted = self.carry(tile.q.shape[0]) if isinstance(carry, tuple) else carry
        dtype = tile.logits.dtype
        gates = jnp.where(tile.visible, jax.nn.sigmoid(tile.logits), 0.0)
        total = jax.lax.cumsum(gates, axis=1, reverse=True) + counted.astype(dtype)[:, None]
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        by_position = jnp.matmul(tile.q, shared["table"].astype(dtype).T, precision=jax.lax.Precision.HIGHEST)
        logits = tile.logits + _interpolate(by_position, jnp.minimum(total, self.max_position - 1))
        return logits, total[:, 0].astype(counted.dtype)


def _interpolate(values: Float[Array, "t p"], position: Float[Array, "t s"]) -> Float[Array, "t s"]:
    """values[i, position[i, j]], linear between neighbours; the weight carries the gradient to the position."""
    whole = jnp.floor(position)
    weight = position - whole
    below = whole.astype(jnp.int32)
    above = jnp.minimum(below + 1, values.shape[1] - 1)
    at_below = jnp.take_along_axis(values, below, axis=1, mode="promise_in_bounds")
    at_above = jnp.take_along_axis(values, above, axis=1, mode="promise_in_bounds")
    return (1.0 - weight) * at_below + weight * at_above
