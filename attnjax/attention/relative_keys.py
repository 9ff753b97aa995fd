"""Relative-position keys of Transformer-XL, computed once per distance and aligned by `rel_shift`.

    score[i, j] = logits[i, j] + scale * (u . k_j + (q_i + v) . r_(i-j))

Consecutive positions have T + S - 1 different distances, so r holds that many vectors of H numbers, in the order of
falling distance. `BLOCK` queries and s keys of a tile have BLOCK + s - 1 distances; their product y with the vectors of
these is aligned by moving each row of it one place further to the left than the row below,

    out[a, b] = y[a, b + BLOCK - 1 - a]

as Dai et al. 2019 (arXiv:1901.02860, appendix B) do for all queries at once; the smaller a block, the fewer products are
thrown away.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.inputs import AttentionInputs
from attnjax.positions.base import EncodingParams, PositionEncoding, Tile
from attnjax.typing import Array, Float, Num

HIGHEST = jax.lax.Precision.HIGHEST
BLOCK = 32
"""Queries that share one list of distances: for 128 keys as many products as 160 keys would take. On a CPU 16 takes
the same time, 64 and 128 more."""


@runtime_checkable
class HasRelativeKeys(Protocol):
    """An encoding whose score is that of the module's text."""

    def relative_keys(
        self, p: EncodingParams, n: Num[Array, " m"]
    ) -> tuple[Float[Array, "m H"], Float[Array, " H"], Float[Array, " H"]]:
        """(r_n, u, v) of one head for distances n, in the type of its parameters."""
        ...


@dataclasses.dataclass(frozen=True)
class RelativeKeys(PositionEncoding):
    """Stands in for an encoding: `p.head` holds u, v, and r of distances `highest`, `highest` - 1, ..."""

    highest: int

    def score(self, p: EncodingParams, tile: Tile) -> Float[Array, "t s"]:
        """logits + scale * (u . k + (q + v) . r), of a tile of consecutive positions."""
        t, s = tile.logits.shape
        rows = t + -t % BLOCK
        first = self.highest - (tile.q_pos[0] - tile.k_pos[0] + rows - 1)
        r = jax.lax.dynamic_slice_in_dim(p.head["r"], first, rows + s)
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        content = jnp.matmul(tile.k, p.head["u"], precision=HIGHEST)
        queries = jnp.pad(tile.q + p.head["v"][None, :], ((0, rows - t), (0, 0)))
        return tile.logits + tile.scale * (content[None, :] + _products(queries, r)[:t])


def _products(q: Float[Array, "t h"], r: Float[Array, "t+s h"]) -> Float[Array, "t s"]:
    """q_a . r[b + t - 1 - a], block by block of the queries."""
    t, blocks = q.shape[0], q.shape[0] // BLOCK
    starts = range(t - BLOCK, -1, -BLOCK)
    near = jnp.stack([r[start : start + r.shape[0] - t + BLOCK] for start in starts])
    products = jnp.einsum("bth,bmh->btm", q.reshape(blocks, BLOCK, -1), near, precision=HIGHEST)
    return rel_shift(products).reshape(t, -1)


def rel_shift(y: Float[Array, "b t t+s"]) -> Float[Array, "b t s"]:
    """y[:, a, b + t - 1 - a]: rows of a matrix one column narrower follow each other shifted by one."""
    blocks, t, width = y.shape
    flat = y.reshape(blocks, -1)[:, t - 1 : t - 1 + t * (width - 1)]
    return flat.reshape(blocks, t, width - 1)[:, :, : width - t]


def with_relative_keys(inputs: AttentionInputs, lowest: int, highest: int) -> AttentionInputs:
    """The inputs with the keys of distances from `highest` down to `lowest` in place of the encoding; the inputs themselves
    where there are so few scores that the encoding makes them with less work.
    """
    B, K, G, T, H = inputs.queries.q.shape
    S, dtype, encoding = inputs.keys.k.shape[2], inputs.compute_dtype, inputs.encoding
    assert isinstance(encoding, HasRelativeKeys)
    if B * T * S < (T + S) * H:
        return inputs
    # Queries are filled up to whole blocks, which reach further up; and the last vector of a block is never read.
    highest = highest + BLOCK - 1
    n = jnp.asarray(np.arange(highest, lowest - 2, -1, dtype=np.int32))
    p = inputs.params._replace(head=jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), inputs.params.head))

    # What the keys are made from (sinusoids as wide as the model) is made again for the gradient, and not held meanwhile.
    @jax.checkpoint
    def one(head: Any, kv_head: Any, shared: Any) -> dict[str, Array]:
        r, u, v = encoding.relative_keys(EncodingParams(head, kv_head, shared), n)
        return {"r": r, "u": u, "v": v}

    groups = jax.vmap(one, (0, None, None), axis_size=G)
    heads = jax.vmap(groups, (0, 0, None), axis_size=K)(p.head, p.kv_head, p.shared)
    return inputs._replace(encoding=RelativeKeys(highest), params=EncodingParams(head=heads))
