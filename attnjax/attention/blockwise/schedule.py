"""Which key tiles a query tile visits, and in what order."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.positions.base import Trait
from attnjax.positions.checks import INT32
from attnjax.typing import Array, Bool, Int


class BlockSchedule(NamedTuple):
    """Bounds of index and segment in each tile, from which the key tiles worth a visit follow."""

    row_index: tuple[Int[Array, " n"], Int[Array, " n"]]
    col_index: tuple[Int[Array, " m"], Int[Array, " m"]]
    row_segments: tuple[Int[Array, " n"], Int[Array, " n"]] | None
    col_segments: tuple[Int[Array, " m"], Int[Array, " m"]] | None
    some_valid: Bool[Array, " m"]
    span: Any
    backwards: bool

    @classmethod
    def plan(cls, static: Static, inputs: BlockInputs) -> "BlockSchedule":
        """Summarize every tile, over the whole batch."""
        queries, keys, (t, s) = inputs.queries, inputs.keys, static.tile
        assert keys.index is not None and keys.valid is not None
        everyone = jnp.ones(queries.index.shape[-1:], bool)
        return cls(
            _bounds(queries.index, t, everyone),
            _bounds(keys.index, s, keys.valid),
            None if queries.segments is None else _bounds(queries.segments, t, everyone),
            None if keys.segments is None else _bounds(keys.segments, s, keys.valid),
            keys.valid.reshape(-1, keys.valid.shape[-1] // s, s).any((0, 2)),
            static.span,
            Trait.CARRY in static.encoding.traits,
        )

    def of(self, i: Array) -> tuple[Int[Array, " m"], Int[Array, ""]]:
        """Key tiles to visit for query tile i, in order, and how many. A tile left out is empty under the mask."""
        useful = self.some_valid
        low, high = (x[i] for x in self.row_index)
        # Clipped first, because an index at the end of int32 would wrap around and hide what is visible.
        if self.span.right is not None:
            useful &= self.col_index[0] <= jnp.minimum(high, INT32.max - self.span.right) + self.span.right
        if self.span.left is not None:
            near = self.col_index[1] >= jnp.maximum(low, INT32.min + self.span.left) - self.span.left
            useful &= near | (self.col_index[0] < self.span.first) if self.span.first else near
        if self.row_segments is not None and self.col_segments is not None:
            low, high = (x[i] for x in self.row_segments)
            useful &= (self.col_segments[0] <= high) & (self.col_segments[1] >= low)
        number = jnp.arange(useful.shape[0], dtype=jnp.int32)
        rank = jnp.where(useful, -number if self.backwards else number, useful.shape[0])
        return jnp.argsort(rank), useful.sum(dtype=jnp.int32)


def _bounds(x: Int[Array, "*#B n"], size: int, valid: Bool[Array, "*#B n"]) -> tuple[Array, Array]:
    """Smallest and largest value in each tile, over the batch, of valid entries only."""
    x, valid = jnp.broadcast_arrays(jnp.atleast_2d(x), jnp.atleast_2d(valid))
    info = jnp.iinfo(x.dtype)
    tiles = lambda y: y.reshape(y.shape[0], -1, size)
    low, high = jnp.where(valid, x, info.max), jnp.where(valid, x, info.min)
    return tiles(low).min((0, 2)), tiles(high).max((0, 2))
