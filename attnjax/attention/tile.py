"""The arithmetic of one tile: scores of all heads from the hooks of one, and where a row may look.

The dense implementation has one tile, the whole; the chunked one has many. Both call these functions, so an encoding
that is right in one is right in the other.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.attention.masks import Span, visible
from attnjax.attention.problem import Cols, Rows, batch_axis
from attnjax.positions.base import PositionEncoding, Tile
from attnjax.typing import Array, ArrayLike, Bool, Float, Key, PyTree, UInt32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """Drop attention weights with probability `rate`. The same key drops the same (query, key) pairs in every
    implementation, whatever its tiles. Raises ValueError unless 0 <= rate < 1 and `key` is a typed PRNG key.
    """

    key: Key[Array, ""]
    rate: float = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        if not 0 <= self.rate < 1:
            raise ValueError(f"Dropout: rate must be in [0, 1), got {self.rate!r}")
        if isinstance(self.key, jax.Array) and not jnp.issubdtype(self.key.dtype, jax.dtypes.prng_key):
            raise ValueError(f"Dropout: key must be a typed PRNG key, jax.random.key(seed), got dtype {self.key.dtype}")


def visibility(span: Span, rows: Rows, cols: Cols, allowed: ArrayLike | None) -> Bool[Array, "*B 1 1 t s"]:
    """Which keys each query sees, to broadcast against [B,K,G,t,s]; the batch axis is 1 where nothing depends on it."""
    parts = jax.tree.map(jnp.asarray, (rows.index, cols.index, rows.segments, cols.segments, cols.valid))
    axes = tuple(batch_axis(part, 2) for part in parts)
    one = lambda *parts: visible(span, *parts)
    seen = jax.vmap(one, in_axes=axes)(*parts) if 0 in axes else one(*parts)[None]
    if allowed is not None:
        seen = seen & (allowed if jnp.ndim(allowed) == 3 else jnp.asarray(allowed)[None])
    return seen[:, None, None]


def scores(
    encoding: PositionEncoding,
    head: PyTree,
    shared: PyTree,
    scale: Float[ArrayLike, ""],
    products: Float[Array, "B K G t s"],
    q: Float[Array, "B K G t h"],
    k: Float[Array, "B K s h"],
    pos: tuple[ArrayLike, ArrayLike],
    seen: Bool[Array, "*B 1 1 t s"],
    carry: PyTree,
) -> tuple[Float[Array, "B K G t s"], PyTree]:
    """Logits of all heads after the encoding's `score`, before masking, and the carry. `products`: q_i . k_j.
    `scale`: NumPy where it is known.
    """
    # A product behind the mask may overflow; its share in the gradient of a scale or of a score would be 0 * inf.
    linear = not isinstance(scale, jax.Array) and not encoding.has("score")
    scale = jnp.asarray(scale, products.dtype)
    logits = scale * (products if linear else jnp.where(seen, products, 0))
    if not encoding.has("bias", "score"):
        return logits, carry

    def one(head, logits, q, k, q_pos, k_pos, seen, carry):
        tile = Tile(logits, q, k, jnp.asarray(q_pos), jnp.asarray(k_pos), seen, scale)
        if encoding.has("carry"):
            return encoding.score(head, shared, tile, carry)
        return encoding.score(head, shared, tile), carry

    seen = seen[:, 0, 0]
    seen_axis = None if seen.shape[0] == 1 else 0
    seen = seen[0] if seen_axis is None else seen
    group = jax.vmap(one, in_axes=(0, 0, 0, None, None, None, None, 0))
    heads = jax.vmap(group, in_axes=(0, 0, 0, 0, None, None, None, 0))
    axes = (None, 0, 0, 0, batch_axis(pos[0], 2), batch_axis(pos[1], 2), seen_axis, 0)
    return jax.vmap(heads, in_axes=axes)(head, logits, q, k, *pos, seen, carry)


def initial_carry(encoding: PositionEncoding, q: Float[Array, "B K G t h"]) -> PyTree:
    """The encoding's carry for every row of every head."""
    one = encoding.carry(q.shape[3])
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*q.shape[:3], *leaf.shape)).astype(q.dtype), one)


def poison(scores: Float[Array, "B K G t s"], rows: Rows, cols: Cols) -> Float[Array, "B K G t s"]:
    """NaN where the query or the key had a non-finite entry, so that exactly the rows that see it become NaN."""
    # The NaN is computed, because on a CPU XLA folds the exponential of a constant one into an arbitrary number.
    zero_or_nan = lambda bad: 0 * jnp.sqrt(-bad.astype(scores.dtype))
    by_row, by_col = rows.bad[..., :, None], cols.bad[:, :, None, None, :]
    return jnp.where(by_row | by_col, zero_or_nan(by_row) + zero_or_nan(by_col), scores)


def keep(
    keys: UInt32[Array, "B K G d"], like: Any, rate: float, rows: Array, cols: Array, dtype: jnp.dtype
) -> Float[Array, "B K G t s"]:
    """0 or 1/(1 - rate) for each query row and key column: a pure function of (key, batch, head, row, column)."""

    def pair(data, i, j):
        key = jax.random.wrap_key_data(data, impl=like)
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, i), j))

    over = jax.vmap(jax.vmap(pair, in_axes=(None, None, 0)), in_axes=(None, 0, None))
    for _ in range(3):
        over = jax.vmap(over, in_axes=(0, None, None))
    return (over(keys, rows, cols) >= rate).astype(dtype) / jnp.asarray(1 - rate, dtype)


def head_keys(dropout: Dropout, shape: tuple[int, ...]) -> UInt32[Array, "B K G d"]:
    """One key per example and query head, as raw words."""
    return jax.random.key_data(jax.random.split(dropout.key, shape))
