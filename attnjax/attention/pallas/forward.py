"""Forward kernel: the blocks of keys of a block of queries in turn, with maximum, sum and output of each row in scratch memory.

With m, l and o of a row in VMEM, a visited tile does what `blockwise/__init__.py` writes:

    m' = max(m, max_j s_ij),    l' = e^(m - m') l + sum_j e^(s_ij - m'),    o' = e^(m - m') o + sum_j e^(s_ij - m') v_j
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.attention.pallas.grid import Grid, Output, run
from attnjax.attention.pallas.layout import At, operands, rows, vectors
from attnjax.attention.pallas.schedule import bounds
from attnjax.attention.pallas.tile import product, scores, seen_of
from attnjax.typing import Array

LOWEST = float(jnp.finfo(jnp.float32).min)


def forward(static: Static, inputs: BlockInputs, *, interpret: bool) -> tuple[Array, Array, Array]:
    """Output, largest score of each row (0 where it sees nothing), and log sum_j e^(s_ij - largest)."""
    grid = Grid.of(static, inputs, bounds(static, inputs).of_queries, by_keys=False)
    shape, width, t = inputs.queries.q.shape[:4], inputs.keys.v.shape[-1], static.tile[0]
    empty = lambda *last: jax.ShapeDtypeStruct((*shape, *last), jnp.float32)
    results = [vectors(static, empty(width), "queries"), *(rows(static, empty(), "queries") for _ in range(2))]

    def body(at: At, visited: Any, read: Any, outputs: Any, scratch: Any) -> None:
        top, total, out = scratch

        @pl.when(at.j == 0)
        def _() -> None:
            sink = read(lambda inputs: inputs.sink)
            # A sink of -inf is none: it has no weight, and -inf is no score to subtract.
            top[...] = jnp.full(top.shape, LOWEST if sink is None else jnp.maximum(sink, LOWEST))
            total[...] = jnp.full(total.shape, 0.0 if sink is None else jnp.where(sink < LOWEST, 0.0, 1.0))
            out[...] = jnp.zeros(out.shape)

        @pl.when(visited)
        def _() -> None:
            tile = read()
            seen = seen_of(static, tile)
            logits = scores(static, tile, product(tile.queries.q, tile.keys.k, (1, 1)), seen)
            logits = jnp.where(seen, logits, -jnp.inf)
            new = jnp.maximum(top[...], logits.max(1, keepdims=True))
            p, shrink = jnp.exp(logits - new), jnp.exp(top[...] - new)
            top[...] = new
            total[...] = shrink * total[...] + p.sum(1, keepdims=True)
            out[...] = shrink * out[...] + product(p.astype(tile.keys.v.dtype), tile.keys.v, (1, 0))

        @pl.when(at.j == grid.keys - 1)
        def _() -> None:
            empty = total[...] == 0
            safe = jnp.where(empty, 1.0, total[...])
            outputs[0][0, 0, 0] = out[...] / safe
            outputs[1][0, 0, 0, 0] = jnp.where(empty, 0.0, top[...])[:, 0]
            outputs[2][0, 0, 0, 0] = jnp.where(empty, -jnp.inf, jnp.log(safe))[:, 0]

    written = [Output(one.array, one.spec(grid.copied)) for one in results]
    found = run(grid, body, operands(static, inputs), written, [(t, 1), (t, 1), (t, width)], interpret=interpret)
    out, top, log_total = (x.reshape(one.shape) for x, one in zip(found, results, strict=True))
    return out, top, log_total
