"""CoPE: contextual position encoding, which counts the keys that a query finds worth counting.

    g_ij = sigmoid(logit_ij) where the mask allows j, else 0
    p_ij = min( sum_{m >= j} g_im, max_position - 1 )
    score[i, j] = logit_ij + (1 - w) * q_i . e[floor(p_ij)] + w * q_i . e[ceil(p_ij)],    w = p_ij - floor(p_ij)

Acts through `score`. A position is a sum over all visible keys from the last back to j (in the order of the keys, not
of their positions), so key tiles are visited from the last to the first, and the running sum of gates is the carry.

The gate sees the scaled logit, and q . e is not scaled, as in x-transformers (class CoPE, called after scaling and
masking, with queries that are not scaled themselves).

The gradient jumps where p_ij passes a whole number. On a GPU that shortens the operands of float32 products, single entries
were therefore wrong by a fifth of the largest; `jax.default_matmul_precision("highest")` prevents it.

Learned: shared = {"table": [max_position, H]}, zero at first, shared by all heads.
Reference: Golovneva, Wang, Weston, Sukhbaatar 2024, arXiv:2405.18719, equations 3 to 7 and appendix B.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, SequentialScore, Sizes, Tile
from attnjax.positions.checks import MOST, validate_integer
from attnjax.positions.interpolation import interpolate
from attnjax.typing import Array, Float

HIGHEST = jax.lax.Precision.HIGHEST
BLOCK = 32
"""Columns whose sums are one product: 64 takes 1.1 times as long on a CPU, 16 the same."""


@dataclasses.dataclass(frozen=True)
class CoPE(SequentialScore):
    """Counted positions 0 .. `max_position` - 1, with embeddings interpolated between whole numbers.

    Example:
        >>> from attnjax import Sizes
        >>> CoPE(max_position=4).init(jax.random.key(0), Sizes(8, 1, 1, 8)).shared["table"].shape
        (4, 8)
    """

    max_position: int = 16

    def __post_init__(self) -> None:
        validate_integer("CoPE", most=MOST, max_position=self.max_position)

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """A table of zeros [max_position, H]: at first, attention without position."""
        del key
        return EncodingParams(shared={"table": jnp.zeros((self.max_position, sizes.head_dim), jnp.float32)})

    def score(
        self, p: EncodingParams, tile: Tile, carry: Float[Array, " t"] | None = None
    ) -> tuple[Float[Array, "t s"], Float[Array, " t"]]:
        """(logits + interpolated q . e[p], the sum of gates of this tile and of all to its right).

        Without a carry the tile is taken to hold the last keys of the rows.
        """
        counted = self.carry(p, tile.q) if carry is None else carry
        dtype = tile.logits.dtype
        gates = jnp.where(tile.visible, jax.nn.sigmoid(tile.logits), 0.0)
        total = sums_from_the_right(gates) + counted.astype(dtype)[:, None]
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        by_position = jnp.matmul(tile.q, p.shared["table"].astype(dtype).T, precision=HIGHEST)
        logits = tile.logits + interpolate(by_position, jnp.minimum(total, self.max_position - 1))
        return logits, total[:, 0].astype(counted.dtype)


def sums_from_the_right(x: Float[Array, "t s"]) -> Float[Array, "t s"]:
    """sum_{m >= j} x_im, as a product with ones inside blocks of `BLOCK` columns and another over the blocks.

    On a CPU this takes half the time of `jax.lax.cumsum`, which adds one number after another.

    Example:
        >>> sums_from_the_right(jnp.array([[1.0, 2.0, 4.0]])).tolist()
        [[7.0, 6.0, 4.0]]
    """
    chex.assert_rank(x, 2)
    t, s = x.shape
    blocks = jnp.pad(x, ((0, 0), (0, -s % BLOCK))).reshape(t, -1, BLOCK)
    inside = jnp.matmul(blocks, jnp.tril(jnp.ones((BLOCK, BLOCK), x.dtype)), precision=HIGHEST)
    if inside.shape[1] == 1:
        return inside[:, 0, :s]
    count = inside.shape[1]
    after = jnp.matmul(inside[:, :, 0], jnp.tril(jnp.ones((count, count), x.dtype), -1), precision=HIGHEST)
    return (inside + after[:, :, None]).reshape(t, -1)[:, :s]
