"""Cutting rows and columns into tiles: padding, slicing, which tiles a mask leaves, and putting results together."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnjax.attention.problem import INT32, Cols, Rows
from attnjax.typing import Array, ArrayLike, Bool, Int, PyTree

ROW_AXES = (3, 3, -1, -1, -1)
"""Where T is in each field of `Rows`."""

COL_AXES = (2, 2, 2, -1, -1, -1, -1)
"""Where S is in each field of `Cols`."""


def over(f: Any, axes: tuple[int, ...], *trees: Any) -> Any:
    """f(leaf, ..., axis) over the fields of `Rows` or `Cols` that are there."""
    fields = zip(*trees, axes, strict=True)
    return type(trees[0])(*(None if field[0] is None else f(*field) for field in fields))


def pad(
    rows: Rows, cols: Cols, allowed: ArrayLike | None, tile: tuple[int, int]
) -> tuple[Rows, Cols, ArrayLike | None]:
    """Whole tiles: padded keys are invalid, padded queries are cut off from the result (and get no gradient)."""
    more_t, more_s = -rows.q.shape[3] % tile[0], -cols.k.shape[2] % tile[1]
    rows = over(lambda x, axis: _pad_axis(x, axis, more_t), ROW_AXES, rows)
    cols = over(lambda x, axis: _pad_axis(x, axis, more_s), COL_AXES, cols)
    if allowed is not None:
        allowed = _pad_axis(_pad_axis(jnp.asarray(allowed), -1, more_s), -2, more_t)
    return rows, cols, allowed


def _pad_axis(x: Array, axis: int, more: int) -> Array:
    widths = [(0, 0)] * jnp.ndim(x)
    widths[axis] = (0, more)
    # Indices repeat their last value, so that padding does not widen the bounds of the last tile.
    mode = "edge" if jnp.issubdtype(x.dtype, jnp.integer) else "constant"
    return jnp.pad(x, widths, mode=mode) if more else x


def slice_axis(x: ArrayLike, i: Array, size: int, axis: int) -> Array:
    """Tile i of an axis cut into tiles of this size."""
    return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis % x.ndim)


def rows_at(rows: Rows, i: Array, t: int) -> Rows:
    """Query tile i."""
    return over(lambda x, axis: slice_axis(x, i, t, axis), ROW_AXES, rows)


def cols_at(cols: Cols, j: Array, s: int) -> Cols:
    """Key tile j."""
    return over(lambda x, axis: slice_axis(x, j, s, axis), COL_AXES, cols)


def allowed_at(allowed: ArrayLike | None, i: Array, j: Array, tile: tuple[int, int]) -> Array | None:
    """Tile (i, j) of an explicit mask."""
    if allowed is None:
        return None
    return slice_axis(slice_axis(allowed, i, tile[0], -2), j, tile[1], -1)


def add_cols(total: Cols, part: Cols, j: Array, s: int) -> Cols:
    """Add the gradient of key tile j to that of all keys."""

    def add(x, y, axis):
        axis = axis % x.ndim
        return jax.lax.dynamic_update_slice_in_dim(x, slice_axis(x, j, s, axis) + y, j * s, axis)

    return over(add, COL_AXES, total, part)


def join(x: Array) -> Array:
    """[tiles, B, K, G, t, ...] -> [B, K, G, T, ...]."""
    x = jnp.moveaxis(x, 0, 3)
    return x.reshape(*x.shape[:3], x.shape[3] * x.shape[4], *x.shape[5:])


def join_rows(parts: Any, like: Rows) -> Any:
    """Gradients of all query tiles, stacked on a leading axis, in the layout of `like`."""

    def one(part, whole):
        return part if part is None else jnp.moveaxis(part, 0, -2).reshape(whole.shape)

    joined = [one(part, whole) for part, whole in zip(parts[1:], like[1:], strict=True)]
    return Rows(join(parts.q), *joined)


def same_axes(tree: PyTree, like: PyTree) -> PyTree:
    """`tree` plus a zero made from every leaf of `like`.

    Inside `jax.shard_map` this makes it vary over all mesh axes that `like` varies over, as loops demand of what they
    begin with; the transpose sums over devices. Elsewhere XLA drops the addition of a constant 0.
    """
    firsts = [leaf[(0,) * leaf.ndim] for leaf in jax.tree.leaves(like)]
    zero = sum((jnp.zeros_like(first, jnp.float32) for first in firsts), jnp.float32(0))
    return jax.tree.map(lambda leaf: leaf + zero.astype(leaf.dtype), tree)


def split_inexact(tree: PyTree) -> tuple[PyTree, PyTree]:
    """The leaves that have a gradient, and those that have none; the others are None in each."""
    float_or_none = lambda x: x if jnp.issubdtype(x.dtype, jnp.inexact) else None
    exact_or_none = lambda x: None if jnp.issubdtype(x.dtype, jnp.inexact) else x
    return jax.tree.map(float_or_none, tree), jax.tree.map(exact_or_none, tree)


def merge(inexact: PyTree, exact: PyTree) -> PyTree:
    """The inverse of `split_inexact`."""
    return jax.tree.map(lambda a, b: b if a is None else a, inexact, exact, is_leaf=lambda x: x is None)


class Visits(NamedTuple):
    """Bounds of index and segment in each tile, from which the key tiles worth a visit follow."""

    row_index: tuple[Int[Array, " n"], Int[Array, " n"]]
    col_index: tuple[Int[Array, " m"], Int[Array, " m"]]
    row_segments: tuple[Int[Array, " n"], Int[Array, " n"]] | None
    col_segments: tuple[Int[Array, " m"], Int[Array, " m"]] | None
    some_valid: Bool[Array, " m"]
    span: Any
    backwards: bool

    @classmethod
    def plan(cls, static: Any, inputs: Any) -> "Visits":
        """Summarise every tile, over the whole batch."""
        rows, cols, (t, s) = inputs.rows, inputs.cols, static.tile
        everyone = jnp.ones(rows.index.shape[-1:], bool)
        return cls(
            _bounds(rows.index, t, everyone),
            _bounds(cols.index, s, cols.valid),
            None if rows.segments is None else _bounds(rows.segments, t, everyone),
            None if cols.segments is None else _bounds(cols.segments, s, cols.valid),
            cols.valid.reshape(-1, cols.valid.shape[-1] // s, s).any((0, 2)),
            static.span,
            static.encoding.has("carry"),
        )

    def of(self, i: Array) -> tuple[Int[Array, " m"], Int[Array, ""]]:
        """Key tiles to visit for query tile i, in order, and how many. A tile left out is empty under the mask."""
        useful = self.some_valid
        low, high = (x[i] for x in self.row_index)
        # Clipped first, because an index at the end of int32 would wrap around and hide what is visible.
        if self.span.right is not None:
            useful &= self.col_index[0] <= jnp.minimum(high, INT32.max - self.span.right) + self.span.right
        if self.span.left is not None:
            useful &= self.col_index[1] >= jnp.maximum(low, INT32.min + self.span.left) - self.span.left
        if self.row_segments is not None and self.col_segments is not None:
            low, high = (x[i] for x in self.row_segments)
            useful &= (self.col_segments[0] <= high) & (self.col_segments[1] >= low)
        number = jnp.arange(useful.shape[0], dtype=jnp.int32)
        rank = jnp.where(useful, -number if self.backwards else number, useful.shape[0])
        return jnp.argsort(rank), useful.sum(dtype=jnp.int32)


def _bounds(x: Int[Array, "*B n"], size: int, valid: Bool[Array, "*B n"]) -> tuple[Array, Array]:
    """Smallest and largest value in each tile, over the batch, of valid entries only."""
    x, valid = jnp.broadcast_arrays(jnp.atleast_2d(x), jnp.atleast_2d(valid))
    info = jnp.iinfo(x.dtype)
    tiles = lambda y: y.reshape(y.shape[0], -1, size)
    low, high = jnp.where(valid, x, info.max), jnp.where(valid, x, info.min)
    return tiles(low).min((0, 2)), tiles(high).max((0, 2))
