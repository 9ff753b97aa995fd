"""Backward: each tile's weights once more, from the row's largest score and sum; gradients are summed in a fixed order."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from attnjax.attention.blockwise import block
from attnjax.attention.blockwise.block import Block, BlockInputs, Static, block_at, block_scores, drop, scores_at
from attnjax.attention.blockwise.schedule import BlockSchedule
from attnjax.attention.hooks import initial_carry
from attnjax.attention.inputs import Queries
from attnjax.attention.products import finite, queries_keys, turned, weights_queries, weights_values
from attnjax.positions.base import Trait
from attnjax.typing import Array, Float, PyTree


def backward(
    static: Static, inputs: BlockInputs, out, top, log_total, dout, dlse, schedule: BlockSchedule | None = None
) -> PyTree:
    """Gradients of all wanted leaves of `inputs`: query tiles outside, key tiles inside, sums in the carries."""
    rows = row_results(static, inputs, out, top, log_total, dout, dlse)
    drows, sums, _ = accumulate(static, inputs, rows, zero_sums(static, inputs), schedule=schedule)
    return as_inputs(static, inputs, rows, drows, sums)


class RowResults(NamedTuple):
    """What the backward pass needs of every row of the result: its largest score, log sum, dout, and dout . out - dlse."""

    top: Float[Array, "B K G T"]
    log_total: Float[Array, "B K G T"]
    dout: Float[Array, "B K G T H"]
    delta: Float[Array, "B K G T"]


def row_results(static: Static, inputs: BlockInputs, out, top, log_total, dout, dlse) -> RowResults:
    """From the results of the forward pass and the cotangents of output and log-sum-exp."""
    delta = (dout * out).sum(-1) - dlse
    delta = jnp.zeros_like(delta) if Trait.UNNORMALIZED in static.encoding.traits else delta
    # Rows that see nothing have no weights; e^(-inf - -inf) would be NaN.
    log_total = jnp.where(log_total == -jnp.inf, 0, log_total)
    # In the type of the values, so that products with them have operands of one type.
    return RowResults(top, log_total, dout.astype(inputs.keys.v.dtype), delta)


def zero_sums(static: Static, inputs: BlockInputs) -> tuple[PyTree, PyTree]:
    """Zeros for the gradients of the keys, and of (params, scale)."""
    wanted = block.chosen(inputs, block.wanted(static, inputs))
    return block.same_axes(block.zeros_of((wanted.keys, (wanted.params, wanted.scale))), inputs)


def as_inputs(static: Static, inputs: BlockInputs, rows: RowResults, drows: PyTree, sums: tuple) -> BlockInputs:
    """The gradients in the layout and the types of the inputs. `drows` has a leading axis of query tiles."""
    dkeys, dshares = sums
    drows = block.join_queries(drows, inputs.queries)
    wanted = block.chosen(inputs, block.wanted(static, inputs))
    dsink = None if wanted.sink is None else of_sink(wanted.sink, rows)
    gradient = BlockInputs(drows, dkeys, *dshares, dsink, None, None)
    return jax.tree.map(lambda g, x: g.astype(x.dtype), gradient, wanted)


def accumulate(
    static: Static,
    inputs: BlockInputs,
    results: RowResults,
    sums: tuple,
    *,
    carries: PyTree = None,
    dcarries: PyTree = None,
    schedule: BlockSchedule | None = None,
) -> tuple[PyTree, tuple, PyTree]:
    """Gradients of the queries, [query tiles, ...]; those of keys and (params, scale), added to `sums`; and of the carry.

    `carries`: those that these keys met, [query tiles, ...]; those before any key unless given, and then the queries and
    parameters that they were made from have their share. `dcarries`: the gradient of those that they left behind.
    `schedule`: that of more examples than these.
    """
    t, s = static.tile
    schedule = schedule or BlockSchedule.plan(static, inputs)
    wanted = block.wanted(static, inputs)

    def query_tile(sums, at):
        i, carry, dcarry = at
        rows = block.queries_at(inputs.queries, i, t)
        here = jax.tree.map(lambda x: block.slice_axis(x, i, t, 3), results)
        columns = turned(finite(rows.q)), turned(here.dout)
        order, count = schedule.of(i)
        first = carry
        if carry is None:
            first = block.same_axes(initial_carry(static.encoding, inputs.params, rows.q), inputs)
        stored = _carries(static, inputs, rows, i, order, count, first)

        def key_tile(step, state):
            # With a carry the tiles are undone in reverse, each from the carry it started with.
            step = count - 1 - step
            drows, dcarry, (dkeys, dshares) = state
            j = order[step]
            carry = jax.tree.map(lambda x: x[step], stored)
            at = block_at(static, inputs, rows, i, j)
            new = _block_vjp(static, inputs, wanted, at, carry, dcarry, columns, here)
            drows = _added(drows, new[0])
            dkeys = block.add_keys(dkeys, new[1], j, s)
            return drows, new[3], (dkeys, _added(dshares, new[2]))

        drows = block.same_axes(block.zeros_of(block.chosen(rows, wanted.queries)), inputs)
        dcarry = block.same_axes(jax.tree.map(jnp.zeros_like, first), inputs) if dcarry is None else dcarry
        drows, dcarry, sums = jax.lax.fori_loop(0, count, key_tile, (drows, dcarry, sums))
        if carry is None:
            drows, dshares = _of_start(static, inputs, wanted, rows, drows, dcarry, sums[1])
            sums = (sums[0], dshares)
        return sums, (drows, dcarry)

    tiles = jnp.arange(inputs.queries.q.shape[3] // t)
    sums, (drows, dcarries) = jax.lax.scan(query_tile, sums, (tiles, carries, dcarries))
    return drows, sums, dcarries


def _added(total: PyTree, part: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, part)


def of_sink(sink: Float[Array, "K G"], rows: RowResults) -> Float[Array, "K G"]:
    """A sink has the weight p = e^(s - lse) and no value, so that ds = -p delta, summed over examples and queries."""
    p = jnp.exp(sink[None, :, :, None] - rows.top - rows.log_total)
    return -(p * rows.delta).sum((0, 3))


def _of_start(
    static: Static,
    inputs: BlockInputs,
    wanted: BlockInputs,
    rows: Queries,
    drows: PyTree,
    dcarry: PyTree,
    dshares: PyTree,
) -> tuple[PyTree, PyTree]:
    """The gradient of the first carry, passed on to the queries and parameters that it was made from."""
    if not jax.tree.leaves(dcarry):
        return drows, dshares
    of, marks = (inputs.params, rows.q), (wanted.params, True)
    rest = block.left(of, marks)
    # Over the same axes of a mesh as the carry, which has met everything.
    start = lambda some: block.same_axes(initial_carry(static.encoding, *block.merge(some, rest)), inputs)
    dparams, dq = jax.vjp(start, block.chosen(of, marks))[1](dcarry)[0]
    return drows._replace(q=_added(drows.q, dq)), (_added(dshares[0], dparams), dshares[1])


def _carries(
    static: Static, inputs: BlockInputs, rows: Queries, i: Array, order: Array, count: Array, first: PyTree
) -> PyTree:
    """The carry that each visited key tile started with, for one query tile: [number of key tiles, ...]."""
    if not jax.tree.leaves(first):
        return first
    buffer = jax.tree.map(lambda x: jnp.zeros((order.shape[0], *x.shape), x.dtype), first)
    buffer = block.same_axes(buffer, inputs)

    def save(step, state):
        buffer, carry = state
        buffer = jax.tree.map(lambda b, c: b.at[step].set(c), buffer, carry)
        return buffer, scores_at(static, inputs, block_at(static, inputs, rows, i, order[step]), carry)[1]

    return jax.lax.fori_loop(0, count, save, (buffer, first))[0]


def _block_vjp(
    static: Static, inputs: BlockInputs, wanted: BlockInputs, at: Block, carry, dcarry, columns, here: RowResults
):
    """Gradients of one block: (queries, keys, (params, scale), carry). `columns`: q and dout, turned."""
    of = at.queries, at.keys, (inputs.params, inputs.scale)
    marks = wanted.queries, wanted.keys, (wanted.params, wanted.scale)
    rest = block.left(of, marks)
    score = lambda some, *products_carry: block_scores(static, at, *block.merge(some, rest), *products_carry)
    products = queries_keys(at.queries.q, at.keys.k)
    (logits, _), pull = jax.vjp(score, block.chosen(of, marks), products, carry)
    top, log_total, dout, delta = here
    p = jnp.where(at.seen, jnp.exp(logits - top[..., None] - log_total[..., None]), 0)
    dv = weights_queries(drop(static, inputs, p, at), columns[1])
    dp = drop(static, inputs, queries_keys(dout, at.keys.v), at)
    # Not p alone: a huge value behind the mask makes dp infinite, and 0 * inf is NaN.
    dlogits = jnp.where(at.seen, p * (dp - delta[..., None]), 0)
    (dqueries, dkeys, dshares), dproducts, dcarry = pull((dlogits, dcarry))
    dq, dk = weights_values(dproducts, finite(at.keys.k)), weights_queries(dproducts, columns[0])
    dqueries = dqueries._replace(q=dqueries.q.astype(dq.dtype) + dq)
    dkeys = dkeys._replace(k=dkeys.k.astype(dk.dtype) + dk, v=dkeys.v.astype(dv.dtype) + dv)
    return dqueries, dkeys, dshares, dcarry
