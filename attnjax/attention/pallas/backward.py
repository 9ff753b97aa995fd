"""Backward kernels: each tile's weights once more, and `jax.vjp` of its scores in the kernel.

With delta_i = dout_i . out_i - dlse_i and p_ij = e^(s_ij - lse_i), as in `blockwise/__init__.py`,

    ds_ij = p_ij (dout_i . v_j - delta_i),    dv_j = sum_i p_ij dout_i

One kernel goes by queries and sums the gradients of the queries, of their positions and of everything learned; the other goes
by keys and sums those of keys, values and positions of the keys. Every sum has a fixed order. Hooks are differentiated by what
each kernel sums alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attnjax.attention.blockwise import block
from attnjax.attention.blockwise.backward import RowResults, of_sink, row_results
from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.attention.inputs import Keys, Queries
from attnjax.attention.pallas.grid import Grid, Output, run
from attnjax.attention.pallas.layout import At, Operand, operands, rows, vectors
from attnjax.attention.pallas.schedule import bounds
from attnjax.attention.pallas.tile import finite32, product, scores, seen_of
from attnjax.typing import Array, Bool, Float, PyTree


def backward(
    static: Static,
    inputs: BlockInputs,
    out: Array,
    top: Array,
    log_total: Array,
    dout: Array,
    dlse: Array,
    *,
    interpret: bool,
) -> BlockInputs:
    """Gradients of all inexact leaves of the inputs, in float32."""
    results, visits = row_results(static, inputs, out, top, log_total, dout, dlse), bounds(static, inputs)
    row = lambda x: rows(static, x, "queries")
    given = (
        operands(static, inputs),
        RowResults(
            row(results.top), row(results.log_total), vectors(static, results.dout, "queries"), row(results.delta)
        ),
    )
    by_queries = Grid.of(static, inputs, visits.of_queries, by_keys=False)
    by_keys = Grid.of(static, inputs, visits.of_keys, by_keys=True)
    dq, of_queries, params, scale = _of_queries(static, by_queries, *given, interpret=interpret)
    dk, dv, of_keys = _of_keys(static, by_keys, *given, interpret=interpret)
    queries, keys = Queries(dq, of_queries, None, None), Keys(dk, dv, of_keys, None, None, None)
    dsink = None if inputs.sink is None else of_sink(inputs.sink, results)
    return BlockInputs(queries, keys, params, scale, dsink, None, None)


def _of_queries(static: Static, grid: Grid, given: Any, results: Any, *, interpret: bool) -> tuple:
    """Gradients of queries, positions of queries, params and scale."""
    q = given.queries.q
    shares, _ = block.split_inexact((given.queries.pos, given.params, given.scale))
    summed, structure = jax.tree.flatten(shares)

    def body(at: At, visited: Any, read: Any, outputs: Any, scratch: Any) -> None:
        (dq,), (to_q, *totals) = scratch, outputs
        _zeros(at.j == 0, [dq, *(total for one, total in zip(summed, totals, strict=True) if one.along)])
        first = (at.i == 0) & (at.j == 0)
        _zeros(first, [total for one, total in zip(summed, totals, strict=True) if not one.along])

        @pl.when(visited)
        def _() -> None:
            tile, rows = read()
            shares, exact = block.split_inexact((tile.queries.pos, tile.params, tile.scale))

            def of(q: Array, shares: PyTree) -> BlockInputs:
                pos, params, scale = block.merge(shares, exact)
                queries = tile.queries._replace(q=q, pos=pos)
                return tile._replace(queries=queries, params=params, scale=scale)

            _, (dhook, dshares, dproducts) = _tile(static, tile, rows, of, (finite32(tile.queries.q), shares))
            k = tile.keys.k
            dq[...] += dhook + product(dproducts.astype(k.dtype), finite32(k).astype(k.dtype), (1, 0))
            for one, total, gradient in zip(summed, totals, jax.tree.leaves(dshares), strict=True):
                one.add(total, at, gradient)

        @pl.when(at.j == grid.keys - 1)
        def _() -> None:
            to_q[0, 0, 0] = dq[...].astype(to_q.dtype)

    written = [Output(_struct(q), q.spec(grid.copied)), *_totals(grid, summed)]
    dq, *totals = run(grid, body, (given, results), written, [q.block], interpret=interpret)
    return dq.reshape(q.shape), *structure.unflatten([one.home(x) for one, x in zip(summed, totals, strict=True)])


def _of_keys(static: Static, grid: Grid, given: Any, results: Any, *, interpret: bool) -> tuple:
    """Gradients of keys, values and positions of keys."""
    k, v = given.keys[:2]
    summed, structure = jax.tree.flatten(block.split_inexact(given.keys.pos)[0])

    def body(at: At, visited: Any, read: Any, outputs: Any, scratch: Any) -> None:
        (dk, dv), (to_k, to_v, *totals) = scratch, outputs
        _zeros((at.g == 0) & (at.i == 0), [dk, dv])
        _zeros(at.i == 0, totals)

        @pl.when(visited)
        def _() -> None:
            tile, rows = read()
            pos, exact = block.split_inexact(tile.keys.pos)

            def of(k: Array, pos: PyTree) -> BlockInputs:
                return tile._replace(keys=tile.keys._replace(k=k, pos=block.merge(pos, exact)))

            p, (dhook, dpos, dproducts) = _tile(static, tile, rows, of, (finite32(tile.keys.k), pos))
            q = tile.queries.q
            dv[...] += product(p.astype(rows.dout.dtype), rows.dout, (0, 0))
            dk[...] += dhook + product(dproducts.astype(q.dtype), finite32(q).astype(q.dtype), (0, 0))
            for one, total, gradient in zip(summed, totals, jax.tree.leaves(dpos), strict=True):
                one.add(total, at, gradient)

        @pl.when((at.g == grid.heads[2] - 1) & (at.i == grid.queries - 1))
        def _() -> None:
            to_k[0, 0, 0] = dk[...].astype(to_k.dtype)
            to_v[0, 0, 0] = dv[...].astype(to_v.dtype)

    written = [*(Output(_struct(one), one.spec(grid.copied)) for one in (k, v)), *_totals(grid, summed)]
    dk, dv, *totals = run(grid, body, (given, results), written, [k.block, v.block], interpret=interpret)
    dpos = structure.unflatten([one.home(x) for one, x in zip(summed, totals, strict=True)])
    return dk.reshape(k.shape), dv.reshape(v.shape), dpos


def _tile(
    static: Static, tile: BlockInputs, rows: RowResults, of: Callable[..., BlockInputs], arguments: tuple
) -> tuple[Float[Array, "t s"], tuple]:
    """Weights of a tile, and the gradients of the arguments of `of`, which makes the tile from them, and of the products."""
    seen = seen_of(static, tile)
    score = lambda *arguments: scores(static, of(*arguments[:-1]), arguments[-1], seen)
    logits, pull = jax.vjp(score, *arguments, product(tile.queries.q, tile.keys.k, (1, 1)))
    p = jnp.where(seen, jnp.exp(logits - rows.top[:, None] - rows.log_total[:, None]), 0.0)
    # Not p alone: a huge value behind the mask makes the product infinite, and 0 * inf is NaN.
    ds = jnp.where(seen, p * (product(rows.dout, tile.keys.v, (1, 1)) - rows.delta[:, None]), 0.0)
    return p, pull(ds)


def _zeros(when: Bool[Array, ""], totals: Sequence[Any]) -> None:
    @pl.when(when)
    def _() -> None:
        for total in totals:
            total[...] = jnp.zeros(total.shape, total.dtype)


def _totals(grid: Grid, summed: list[Operand]) -> list[Output]:
    return [Output(one.total(grid.heads), one.total_spec(grid.copied)) for one in summed]


def _struct(one: Operand) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(one.array.shape, one.array.dtype)
