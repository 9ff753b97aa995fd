"""One tile of one head inside a kernel: its products, which of its entries are visible, and its scores by the encoding's hooks.

    s_ij = score(scale * q_i . k_j)        or scale * q_i . k_j + bias(q_pos_i - k_pos_j)

The hooks are traced here as everywhere else, on arrays of a block, so that `jax.vjp` of this function is the backward pass of
any of them.
"""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.attention.hooks import score_of_head
from attnjax.attention.masks import visible
from attnjax.attention.position_axes import arrays
from attnjax.positions.base import EncodingParams, Tile, Trait
from attnjax.typing import Array, Bool, Float


@runtime_checkable
class HasKernelScore(Protocol):
    """An encoding whose `score` has another form that the compiler of kernels takes."""

    def kernel_score(self, p: EncodingParams, tile: Tile) -> Float[Array, "t s"]:
        """What `score` returns."""
        ...


HIGHEST = jax.lax.Precision.HIGHEST


def seen_of(static: Static, tile: BlockInputs) -> Bool[Array, "t s"]:
    """The mask."""
    queries, keys = tile.queries, tile.keys
    return visible(static.span, queries.index, keys.index, queries.segments, keys.segments, keys.valid)


def product(a: Array, b: Array, axes: tuple[int, int]) -> Float[Array, "m n"]:
    """Two matrices summed over these axes, in float32; operands of 16 bits stay so, and others keep all of their bits."""
    dtype = a.dtype if a.dtype == b.dtype else jnp.float32
    precision = HIGHEST if dtype == jnp.float32 else None
    contract = (((axes[0],), (axes[1],)), ((), ()))
    a, b = a.astype(dtype), b.astype(dtype)
    return jax.lax.dot_general(a, b, contract, precision=precision, preferred_element_type=jnp.float32)


def scores(
    static: Static, tile: BlockInputs, products: Float[Array, "t s"], seen: Bool[Array, "t s"]
) -> Float[Array, "t s"]:
    """Scores that are not masked yet. What is hidden has no product: see `hooks.scores`."""
    encoding, queries, keys = static.encoding, tile.queries, tile.keys
    scale = np.float32(static.scale) if tile.scale is None else tile.scale
    logits = scale * jnp.where(seen, products, 0.0)
    if not encoding.traits & Trait.ON_SCORES:
        return logits
    q, k = (finite32(x) for x in (queries.q, keys.k))
    whole = Tile(logits, q, k, queries.pos, keys.pos, seen, scale)
    if isinstance(encoding, HasKernelScore):
        logits = encoding.kernel_score(tile.params, whole._replace(q_pos=arrays(queries.pos), k_pos=arrays(keys.pos)))
    else:
        logits, _ = score_of_head(encoding, tile.params, whole, ())
    # A hook may leave out the logits that it is given; a query or key that is NaN must not be lost.
    return logits if Trait.SCORE not in encoding.traits else jnp.where(jnp.isnan(products), products, logits)


def finite32(x: Array) -> Float[Array, "n h"]:
    """x in float32, with non-finite numbers set to 0."""
    x = x.astype(jnp.float32)
    return jnp.where(jnp.isfinite(x), x, 0.0)
