"""What goes into which memory of a TPU: every array of an attention as blocks that the steps of a grid read.

An array gets three leading axes, of examples, key heads and the query heads of a group, with 1 where it does not run along
one; a step at (b, k, g, i, j) reads entry 0 there. The rest depends on what it is:

    a number per query or key     [..., 1, T] in VMEM, a block of it: positions, indices, segments, the sums of rows
    a vector per query or key     [..., T, h] in VMEM, a block of rows
    a number per head, or one     [...] whole in SMEM, because blocks of fewer than 8 rows are refused (`Numbers`)
    an array per head, or one     [..., m, n] whole in VMEM
    an array over all distances   [..., rows, n] whole in VMEM, of which a tile reads two rows (`Windows`)

A gradient is summed in float32 in a block of its own for each (b, k, g), and comes home as the sum over the leading axes that
the array lacks.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.attention.inputs import Keys, Queries
from attnjax.attention.pallas.distances import ByDistance
from attnjax.attention.position_axes import Positions, each
from attnjax.positions.base import EncodingParams
from attnjax.typing import Array, PyTree


class At(NamedTuple):
    """A step: example, key head, query head of its group, block of queries, block of keys, and the row of its distances."""

    b: Any
    k: Any
    g: Any
    i: Any
    j: Any
    row: Any


Place = Callable[..., At]
"""From the numbers of a step in a grid, and the two arrays of `schedule.py`, to what it works on."""


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array [b, k, g, m, n] in VMEM. `shape` is that of the leaf that it was made from, `lead` how many of its axes are
    leading ones; `block` has the sizes that a step reads of the last axes, and `along` says which blocks: "queries", "keys", or
    "" for all of it.
    """

    array: Array
    shape: tuple[int, ...]
    lead: int
    block: tuple[int, ...]
    along: str = ""

    def _index(self, at: At) -> tuple[Any, ...]:
        number = {"queries": at.i, "keys": at.j, "": 0}[self.along]
        return tuple(number if size < whole else 0 for size, whole in zip(self.block, self._tail, strict=True))

    @property
    def _tail(self) -> tuple[int, ...]:
        return self.array.shape[3:]

    @property
    def dtype(self) -> Any:
        """That of the array."""
        return self.array.dtype

    @property
    def rows(self) -> bool:
        """Whether the leaf has one axis, and the second last one here is made up."""
        return len(self.shape) - self.lead == 1

    def spec(self, place: Place) -> pl.BlockSpec:
        """Blocks of the array."""

        def index(*step: Any) -> tuple[Any, ...]:
            at = place(*step)
            return (*_where(at, self.array), *self._index(at))

        return pl.BlockSpec((1, 1, 1, *self.block), index)

    def read(self, ref: Any, at: At) -> Array:
        """What hooks see of it."""
        del at
        return ref[0, 0, 0, 0] if self.rows else ref[0, 0, 0]

    def total(self, heads: tuple[int, int, int]) -> jax.ShapeDtypeStruct:
        """The array in which its gradient is summed."""
        return jax.ShapeDtypeStruct((*heads, *self._tail), jnp.float32)

    def total_spec(self, place: Place) -> pl.BlockSpec:
        """Blocks of that array: one for each (b, k, g)."""

        def index(*step: Any) -> tuple[Any, ...]:
            at = place(*step)
            return (at.b, at.k, at.g, *self._index(at))

        return pl.BlockSpec((1, 1, 1, *self.block), index)

    def add(self, total: Any, at: At, gradient: Array) -> None:
        """Add the gradient of what `read` returned."""
        del at
        total[0, 0, 0] += gradient[None] if self.rows else gradient

    def home(self, total: Array) -> Array:
        """The gradient of the leaf."""
        missing = tuple(axis for axis in range(3) if self.array.shape[axis] == 1)
        return total.sum(missing).reshape(self.shape)


class Numbers(Operand):
    """[b, k, g] in SMEM, whose gradient is summed in VMEM."""

    @property
    def _tail(self) -> tuple[int, ...]:
        return (1, 1)

    def spec(self, place: Place) -> pl.BlockSpec:
        del place
        return pl.BlockSpec(memory_space=pltpu.SMEM)

    def read(self, ref: Any, at: At) -> Array:
        return ref[_where(at, self.array)]

    def add(self, total: Any, at: At, gradient: Array) -> None:
        del at
        total[0, 0, 0] += jnp.full((1, 1), gradient)


@dataclasses.dataclass(frozen=True)
class Windows(Operand):
    """The tile at row r reads the rows r and r + 1, each of `size` entries."""

    size: int = 1

    def read(self, ref: Any, at: At) -> Array:
        return ref[0, 0, 0, self._two_rows(at)]

    def add(self, total: Any, at: At, gradient: Array) -> None:
        total[0, 0, 0, self._two_rows(at)] += gradient

    def _two_rows(self, at: At) -> Any:
        return pl.ds(pl.multiple_of(at.row * self.size, self.size), 2 * self.size)


def _where(at: At, array: Array) -> tuple[Any, ...]:
    """Entry 0 of the leading axes along which the array does not run."""
    return tuple(n if size > 1 else 0 for n, size in zip(at[:3], array.shape, strict=False))


def operands(static: Static, inputs: BlockInputs) -> Any:
    """The inputs with an `Operand` in place of every array."""
    queries, keys, params = inputs.queries, inputs.keys, inputs.params

    def row(x: Array | None, along: str) -> Operand | None:
        return None if x is None else rows(static, x, along)

    def positions(pos: PyTree, along: str) -> PyTree:
        return each(lambda one: Positions((vectors if one.axes else rows)(static, one.values, along), one.axes), pos)

    q = Queries(
        vectors(static, queries.q, "queries"),
        positions(queries.pos, "queries"),
        *(row(x, "queries") for x in queries[2:]),
    )
    k, v = (vectors(static, x, "keys") for x in keys[:2])
    kv = Keys(k, v, positions(keys.pos, "keys"), *(row(x, "keys") for x in keys[3:]))
    sides = zip(("KG", "K", ""), params, strict=True)
    p = EncodingParams(
        *(jax.tree.map_with_path(lambda path, x, axes=axes: _of_param(static, path, x, axes), x) for axes, x in sides)
    )
    scale, sink = (
        None if x is None else _of_param(static, (), x, axes) for x, axes in ((inputs.scale, ""), (inputs.sink, "KG"))
    )
    return BlockInputs(q, kv, p, scale, sink, None, None)


def rows(static: Static, x: Array, along: str) -> Operand:
    """A number per query or key, with any of the axes B, K and G before."""
    lead = x.ndim - 1
    array = _reshaped(x, (*x.shape[:lead], *(1,) * (3 - lead), 1, x.shape[-1]))
    return Operand(array, x.shape, lead, (1, static.tile[0]), along)


def vectors(static: Static, x: Array, along: str) -> Operand:
    """A vector per query or key, with any of the axes B, K and G before."""
    lead = x.ndim - 2
    array = _reshaped(x, (*x.shape[:lead], *(1,) * (3 - lead), *x.shape[lead:]))
    return Operand(array, x.shape, lead, (static.tile[0], x.shape[-1]), along)


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    """An array in another shape, or what stands for one that a kernel writes."""
    return jax.ShapeDtypeStruct(shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x.reshape(shape)


def _of_param(static: Static, path: Any, x: Array, axes: str) -> Operand:
    """An array that leads with these axes."""
    lead, encoding = len(axes), static.encoding
    heads, tail = (1, *x.shape[:lead], *(1,) * (2 - lead)), x.shape[lead:]
    if not tail:
        return Numbers(x.reshape(heads), x.shape, lead, (1, 1))
    array = x.reshape(*heads, *((1, *tail) if len(tail) == 1 else tail))
    if isinstance(encoding, ByDistance) and path[-1].key == encoding.window:
        return Windows(array, x.shape, lead, array.shape[3:], size=encoding.rows)
    return Operand(array, x.shape, lead, array.shape[3:])
