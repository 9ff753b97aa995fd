"""Vectors of the distance that meet the query, made once per distance where positions are consecutive.

    score[i, j] = logits[i, j] + scale * (u . k_j + (q_i + v) . r_(i-j))

Consecutive positions have T + S - 1 different distances, so r holds that many vectors of H numbers, in the order of
falling distance. `BLOCK` queries and s keys of a tile have BLOCK + s - 1 distances; their product y with the vectors of
these is laid out by moving each row of it one place further to the left than the row below,

    out[a, b] = y[a, b + BLOCK - 1 - a]

The move is that of Transformer-XL (Dai et al. 2019, arXiv:1901.02860, appendix B), which takes all queries at once; the
smaller a block, the fewer products are thrown away.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.problem import Problem
from attnjax.positions.base import PositionEncoding, Tile, Vectors
from attnjax.typing import Array, Float, PyTree

HIGHEST = jax.lax.Precision.HIGHEST
BLOCK = 32
"""Queries that meet one list of distances: for 128 keys as many products as 160 keys would take. On a CPU 16 takes
the same time, 64 and 128 more."""


@dataclasses.dataclass(frozen=True)
class Meeting(PositionEncoding):
    """What stands in for an encoding inside a problem: head holds the `Vectors` of distances `highest`, `highest` - 1, ..."""

    highest: int

    def score(self, head: PyTree, shared: PyTree, tile: Tile, carry: PyTree = ()) -> Float[Array, "t s"]:
        """logits + scale * (u . k + (q + v) . r), of a tile of consecutive positions."""
        del shared, carry
        t, s = tile.logits.shape
        rows = t + -t % BLOCK
        first = self.highest - (tile.q_pos[0] - tile.k_pos[0] + rows - 1)
        r = jax.lax.dynamic_slice_in_dim(head.r, first, rows + s)
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        content = jnp.matmul(tile.k, head.u, precision=HIGHEST)
        queries = jnp.pad(tile.q + head.v[None, :], ((0, rows - t), (0, 0)))
        return tile.logits + tile.scale * (content[None, :] + _met(queries, r)[:t])


def _met(q: Float[Array, "t h"], r: Float[Array, "t+s h"]) -> Float[Array, "t s"]:
    """q_a . r[b + t - 1 - a], block by block of the queries."""
    t, blocks = q.shape[0], q.shape[0] // BLOCK
    starts = range(t - BLOCK, -1, -BLOCK)
    near = jnp.stack([r[start : start + r.shape[0] - t + BLOCK] for start in starts])
    products = jnp.einsum("bth,bmh->btm", q.reshape(blocks, BLOCK, -1), near, precision=HIGHEST)
    return _moved(products).reshape(t, -1)


def _moved(y: Float[Array, "b t t+s"]) -> Float[Array, "b t s"]:
    """y[:, a, b + t - 1 - a]: rows of a matrix one column narrower follow each other shifted by one."""
    blocks, t, width = y.shape
    flat = y.reshape(blocks, -1)[:, t - 1 : t - 1 + t * (width - 1)]
    return flat.reshape(blocks, t, width - 1)[:, :, : width - t]


def meeting(problem: Problem, lowest: int, highest: int) -> Problem:
    """The problem with the vectors of distances from `highest` down to `lowest` in place of its encoding; the problem itself
    where there are so few scores that its encoding makes them with less work.
    """
    B, K, G, T, H = problem.rows.q.shape
    S, dtype = problem.cols.k.shape[2], problem.rows.q.dtype
    if B * T * S < (T + S) * H:
        return problem
    # Queries are filled up to whole blocks, which reach further up; and the last vector of a block is never read.
    highest = highest + BLOCK - 1
    n = np.arange(highest, lowest - 2, -1, dtype=np.int32)
    head = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), problem.head)
    # What vectors are made from (waves as wide as the model) is made again for the gradient, and not held meanwhile.
    one = jax.checkpoint(lambda head, shared: Vectors(*problem.encoding.vectors(head, shared, jnp.asarray(n))))
    heads = jax.vmap(jax.vmap(one, (0, None), axis_size=G), (0, None), axis_size=K)
    return problem._replace(encoding=Meeting(highest), head=heads(head, problem.shared), shared=())
