"""One kernel over a grid: which tile each step works on, whether the mask leaves something of it, and the call of Pallas.

By queries the grid is (B, K, G, blocks of queries, blocks of keys), and by keys (B, K, blocks of keys, G, blocks of queries).
The last runs fastest, so that what is summed over it stays in the scratch memory of a core.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.attention.pallas.layout import At
from attnjax.typing import Array, Int, PyTree

VMEM_BYTES = 64 * 2**20
"""Of the 128 MiB of a v5e or v6e; the compiler itself takes 16."""


class Grid(NamedTuple):
    """Sizes of the axes B, K, G, and of blocks of queries and of keys; which of the two is the outer loop; and the bounds of
    the inner one for each block of the outer one, [2, n].
    """

    heads: tuple[int, int, int]
    queries: int
    keys: int
    by_keys: bool
    bounds: Int[Array, "2 n"]

    @classmethod
    def of(cls, static: Static, inputs: BlockInputs, bounds: Int[Array, "2 n"], *, by_keys: bool) -> "Grid":
        """Of arrays that are padded to whole blocks."""
        (B, K, G, T, _), (t, s) = inputs.queries.q.shape, static.tile
        return cls((B, K, G), T // t, inputs.keys.k.shape[2] // s, by_keys, bounds)

    @property
    def sizes(self) -> tuple[int, ...]:
        """In the order of the loops."""
        B, K, G = self.heads
        return (B, K, self.keys, G, self.queries) if self.by_keys else (B, K, G, self.queries, self.keys)

    def at(self, *step: Any) -> At:
        """What a step works on."""
        b, k, g, i, j = (step[n] for n in ((0, 1, 3, 4, 2) if self.by_keys else (0, 1, 2, 3, 4)))
        return At(b, k, g, i, j, self.queries - 1 - i + j)

    def visited(self, at: At, bounds: Any) -> Array:
        """Whether the mask leaves something of the tile, or may."""
        outer, inner = (at.j, at.i) if self.by_keys else (at.i, at.j)
        return (inner >= bounds[0, outer]) & (inner <= bounds[1, outer])

    def copied(self, *step_bounds: Any) -> At:
        """Whose blocks are in memory during a step: those of the nearest tile that is visited."""
        *step, bounds = step_bounds
        at = self.at(*step)
        near = lambda inner, outer: jnp.maximum(jnp.minimum(inner, bounds[1, outer]), bounds[0, outer])
        return at._replace(i=near(at.i, at.j)) if self.by_keys else at._replace(j=near(at.j, at.i))


class Output(NamedTuple):
    """An array that a kernel writes, and the blocks of it."""

    shape: jax.ShapeDtypeStruct
    spec: pl.BlockSpec


Body = Callable[..., None]
"""(at, visited, read, outputs, scratch); `read(of)` gives a part of the operands of a step as hooks see them, or all."""


def run(
    grid: Grid,
    body: Body,
    operands: PyTree,
    outputs: Sequence[Output],
    scratch: Sequence[tuple[int, int]],
    *,
    interpret: bool,
) -> list[Array]:
    """The outputs, after a call of the body for each step. Scratch arrays are float32 in VMEM."""
    given, structure = jax.tree.flatten(operands)

    def kernel(bounds: Any, *refs: Any) -> None:
        at = grid.at(*(pl.program_id(axis) for axis in range(5)))
        ins, outs, kept = refs[: len(given)], refs[len(given) :][: len(outputs)], refs[len(given) + len(outputs) :]

        def read(of: Callable[[PyTree], PyTree] = lambda whole: whole) -> PyTree:
            picked = of(structure.unflatten(range(len(given))))
            return jax.tree.map(lambda n: given[n].read(ins[n], at), picked)

        body(at, grid.visited(at, bounds), read, outs, kept)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=grid.sizes,
        in_specs=[one.spec(grid.copied) for one in given],
        out_specs=[one.spec for one in outputs],
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
    )
    # Over which axes of a mesh the results vary: those of the queries, which `same_axes` made vary over all.
    varying = jax.typeof(given[0].array).manual_axis_type
    semantics = ("parallel", "parallel", *("arbitrary" for _ in range(3)))
    call = pl.pallas_call(
        kernel,
        grid_spec=spec,
        out_shape=[jax.ShapeDtypeStruct(one.shape.shape, one.shape.dtype, manual_axis_type=varying) for one in outputs],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=VMEM_BYTES),
        interpret=interpret,
    )
    return call(grid.bounds, *(one.array for one in given))
