"""One tile of the chunked implementation: what is static, what it is computed from, and its scores."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from attnjax.attention import tiles
from attnjax.attention.masks import Span
from attnjax.attention.problem import Cols, Rows
from attnjax.attention.products import queries_keys
from attnjax.attention.tile import keep, poison, scores, visibility
from attnjax.positions.base import PositionEncoding
from attnjax.typing import Array, ArrayLike, Bool, Float, PyTree


class Static(NamedTuple):
    """What is known while tracing; hashable. `scale` is None where it is traced, and then among the inputs."""

    encoding: PositionEncoding
    span: Span
    tile: tuple[int, int]
    scale: float | None
    rate: float
    key_impl: Any


class Inputs(NamedTuple):
    """What gradients flow to (the inexact leaves of it), on arrays padded to whole tiles."""

    rows: Rows
    cols: Cols
    head: PyTree
    shared: PyTree
    scale: Float[Array, ""] | None
    allowed: ArrayLike | None
    keys: Array | None


class Place(NamedTuple):
    """A tile: its number along queries and keys, its rows and columns, and what is seen there."""

    i: Array
    j: Array
    rows: Rows
    cols: Cols
    seen: Bool[Array, "*B 1 1 t s"]


def place(static: Static, inputs: Inputs, rows: Rows, i: Array, j: Array) -> Place:
    """Key tile j beside the rows of query tile i."""
    cols = tiles.cols_at(inputs.cols, j, static.tile[1])
    seen = visibility(static.span, rows, cols, tiles.allowed_at(inputs.allowed, i, j, static.tile))
    return Place(i, j, rows, cols, seen)


def tile_scores(static: Static, at: Place, rows: Rows, cols: Cols, shares: tuple, products: Array, carry: PyTree):
    """Logits of a tile [B,K,G,t,s], not yet masked, and the next carry. `shares`: (head, shared, scale); `products`: the
    q_i . k_j of the tile.
    """
    head, shared, scale = shares
    scale = np.asarray(static.scale, rows.q.dtype) if scale is None else scale
    position = (rows.pos, cols.pos)
    return scores(static.encoding, head, shared, scale, products, rows.q, cols.k, position, at.seen, carry)


def poisoned(static: Static, inputs: Inputs, at: Place, carry: PyTree) -> tuple[Float[Array, "B K G t s"], PyTree]:
    """`tile_scores` with NaN where a query or a key had a non-finite entry."""
    shares = (inputs.head, inputs.shared, inputs.scale)
    products = queries_keys(at.rows.q, at.cols.k)
    logits, carry = tile_scores(static, at, at.rows, at.cols, shares, products, carry)
    return poison(logits, at.rows, at.cols), carry


def drop(static: Static, inputs: Inputs, p: Float[Array, "B K G t s"], at: Place) -> Float[Array, "B K G t s"]:
    """Weights after dropout; also its own transpose, since it multiplies by a constant."""
    if inputs.keys is None:
        return p
    (t, s), dtype = static.tile, p.dtype
    rows, cols = at.i * t + jnp.arange(t), at.j * s + jnp.arange(s)
    return p * keep(inputs.keys, static.key_impl, static.rate, rows, cols, dtype)
