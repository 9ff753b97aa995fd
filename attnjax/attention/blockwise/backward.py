"""Backward: each tile's weights once more, from the row's largest score and sum; gradients are summed in a fixed order."""

import jax
import jax.numpy as jnp

from attnjax.attention.blockwise import block
from attnjax.attention.blockwise.block import Block, BlockInputs, Static, block_at, block_scores, drop, scores_at
from attnjax.attention.blockwise.schedule import BlockSchedule, visit
from attnjax.attention.hooks import initial_carry
from attnjax.attention.inputs import Queries
from attnjax.attention.products import finite, queries_keys, turned, weights_queries, weights_values
from attnjax.positions.base import Trait
from attnjax.typing import Array, PyTree


def backward(static: Static, inputs: BlockInputs, out, top, log_total, dout, dlse) -> PyTree:
    """Gradients of all inexact leaves of `inputs`: query tiles outside, key tiles inside, sums in the carries."""
    t, s = static.tile
    delta = (dout * out).sum(-1) - dlse
    delta = jnp.zeros_like(delta) if Trait.UNNORMALIZED in static.encoding.traits else delta
    # In the type of the values, so that products with them have operands of one type.
    dout = dout.astype(inputs.keys.v.dtype)
    schedule = BlockSchedule.plan(static, inputs)
    shares, _ = block.split_inexact((inputs.params, inputs.scale))
    keys, _ = block.split_inexact(inputs.keys)

    def query_tile(sums, i):
        rows = block.queries_at(inputs.queries, i, t)
        here = tuple(block.slice_axis(x, i, t, 3) for x in (top, log_total, dout, delta))
        columns = turned(finite(rows.q)), turned(here[2])
        order, count = schedule.of(i)
        carries, start = _carries(static, inputs, rows, i, order, count)

        def key_tile(step, state):
            # With a carry the tiles are undone in reverse, each from the carry it started with.
            step = count - 1 - step
            drows, dcarry, (dkeys, dshares) = state
            j = order[step]
            carry = jax.tree.map(lambda x: x[step], carries)
            at = block_at(static, inputs, rows, i, j)
            new = _block_vjp(static, inputs, at, carry, dcarry, columns, *here)
            drows = _added(drows, new[0])
            dkeys = block.add_keys(dkeys, new[1], j, s)
            return drows, new[3], (dkeys, _added(dshares, new[2]))

        inexact, _ = block.split_inexact(rows)
        drows, dcarry = block.same_axes((block.zeros_of(inexact), jax.tree.map(jnp.zeros_like, start)), inputs)
        drows, dcarry, sums = visit(static, order.shape[0], count, key_tile, (drows, dcarry, sums))
        drows, dshares = _of_start(static, inputs, rows, drows, dcarry, sums[1])
        return (sums[0], dshares), drows

    sums = block.same_axes((block.zeros_of(keys), block.zeros_of(shares)), inputs)
    (dkeys, dshares), drows = jax.lax.scan(query_tile, sums, jnp.arange(inputs.queries.q.shape[3] // t))
    drows = block.join_queries(drows, inputs.queries)
    gradient = BlockInputs(drows, dkeys, *dshares, _of_sink(inputs, top, log_total, delta), None, None)
    inexact, _ = block.split_inexact(inputs)
    return jax.tree.map(lambda g, x: g.astype(x.dtype), gradient, inexact)


def _added(total: PyTree, part: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, part)


def _of_sink(inputs: BlockInputs, top: Array, log_total: Array, delta: Array) -> Array | None:
    """A sink has the weight p = e^(s - lse) and no value, so that ds = -p delta, summed over examples and queries."""
    if inputs.sink is None:
        return None
    p = jnp.exp(inputs.sink[None, :, :, None] - top - log_total)
    return -(p * delta).sum((0, 3))


def _of_start(
    static: Static, inputs: BlockInputs, rows: Queries, drows: PyTree, dcarry: PyTree, dshares: PyTree
) -> tuple[PyTree, PyTree]:
    """The gradient of the first carry, passed on to the queries and parameters that it was made from."""
    if not jax.tree.leaves(dcarry):
        return drows, dshares
    inexact, exact = block.split_inexact((inputs.params, rows.q))
    # Over the same axes of a mesh as the carry, which has met everything.
    start = lambda inexact: block.same_axes(initial_carry(static.encoding, *block.merge(inexact, exact)), inputs)
    dparams, dq = jax.vjp(start, inexact)[1](dcarry)[0]
    return drows._replace(q=_added(drows.q, dq)), (_added(dshares[0], dparams), dshares[1])


def _carries(
    static: Static, inputs: BlockInputs, rows: Queries, i: Array, order: Array, count: Array
) -> tuple[PyTree, PyTree]:
    """The carry that each visited key tile started with, for one query tile: [number of key tiles, ...]; and the first."""
    start = block.same_axes(initial_carry(static.encoding, inputs.params, rows.q), inputs)
    if not jax.tree.leaves(start):
        return start, start
    buffer = jax.tree.map(lambda x: jnp.zeros((order.shape[0], *x.shape), x.dtype), start)
    buffer = block.same_axes(buffer, inputs)

    def save(step, state):
        buffer, carry = state
        buffer = jax.tree.map(lambda b, c: b.at[step].set(c), buffer, carry)
        return buffer, scores_at(static, inputs, block_at(static, inputs, rows, i, order[step]), carry)[1]

    return visit(static, order.shape[0], count, save, (buffer, start))[0], start


def _block_vjp(static: Static, inputs: BlockInputs, at: Block, carry, dcarry, columns, top, log_total, dout, delta):
    """Gradients of one block: (queries, keys, (params, scale), carry). `columns`: q and dout, turned."""
    inexact, exact = block.split_inexact((at.queries, at.keys, (inputs.params, inputs.scale)))
    score = lambda inexact, *products_carry: block_scores(static, at, *block.merge(inexact, exact), *products_carry)
    (logits, _), pull = jax.vjp(score, inexact, queries_keys(at.queries.q, at.keys.k), carry)
    log_total = jnp.where(log_total == -jnp.inf, 0, log_total)
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
