"""Backward: each tile's weights once more, from the row's largest score and sum; gradients are summed in a fixed order."""

import functools

import jax
import jax.numpy as jnp

from attnjax.attention import tiles
from attnjax.attention.chunked_tile import Inputs, Place, Static, drop, place, poisoned, tile_scores
from attnjax.attention.problem import Rows
from attnjax.attention.products import queries_keys, turned, weights_queries, weights_values
from attnjax.attention.tile import initial_carry, poison
from attnjax.typing import Array, PyTree


def backward(static: Static, inputs: Inputs, out, top, log_total, dout, dlse) -> PyTree:
    """Gradients of all inexact leaves of `inputs`: query tiles outside, key tiles inside, sums in the carries."""
    t, s = static.tile
    delta = (dout * out).sum(-1) - dlse
    visits = tiles.Visits.plan(static, inputs)
    shares, _ = tiles.split_inexact((inputs.head, inputs.shared, inputs.scale))
    cols, _ = tiles.split_inexact(inputs.cols)
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)

    def query_tile(sums, i):
        rows = tiles.rows_at(inputs.rows, i, t)
        here = tuple(tiles.slice_axis(x, i, t, 3) for x in (top, log_total, dout, delta))
        columns = turned(rows.q), turned(here[2])
        order, count = visits.of(i)
        carries = _carries(static, inputs, rows, i, order, count)

        def key_tile(step, state):
            # With a carry the tiles are undone in reverse, each from the carry it started with.
            step = count - 1 - step
            drows, dcarry, (dcols, dshares) = state
            j = order[step]
            carry = jax.tree.map(lambda x: x[step], carries)
            at = place(static, inputs, rows, i, j)
            new = _tile_vjp(static, inputs, at, carry, dcarry, columns, *here)
            drows = jax.tree.map(jnp.add, drows, new[0])
            dcols = tiles.add_cols(dcols, new[1], j, s)
            return drows, new[3], (dcols, jax.tree.map(jnp.add, dshares, new[2]))

        drows, _ = tiles.split_inexact(zeros(rows))
        drows, dcarry = tiles.same_axes((drows, zeros(initial_carry(static.encoding, rows.q))), inputs)
        drows, _, sums = jax.lax.fori_loop(0, count, key_tile, (drows, dcarry, sums))
        return sums, drows

    sums = tiles.same_axes((zeros(cols), zeros(shares)), inputs)
    (dcols, dshares), drows = jax.lax.scan(query_tile, sums, jnp.arange(inputs.rows.q.shape[3] // t))
    drows = tiles.join_rows(drows, inputs.rows)
    return Inputs(drows, dcols, *dshares, allowed=None, keys=None)


def _carries(static: Static, inputs: Inputs, rows: Rows, i: Array, order: Array, count: Array) -> PyTree:
    """The carry that each visited key tile started with, for one query tile: [number of key tiles, ...]."""
    start = tiles.same_axes(initial_carry(static.encoding, rows.q), inputs)
    if not jax.tree.leaves(start):
        return start
    buffer = jax.tree.map(lambda x: jnp.zeros((order.shape[0], *x.shape), x.dtype), start)
    buffer = tiles.same_axes(buffer, inputs)

    def visit(step, state):
        buffer, carry = state
        buffer = jax.tree.map(lambda b, c: b.at[step].set(c), buffer, carry)
        return buffer, poisoned(static, inputs, place(static, inputs, rows, i, order[step]), carry)[1]

    return jax.lax.fori_loop(0, count, visit, (buffer, start))[0]


def _tile_vjp(static: Static, inputs: Inputs, at: Place, carry, dcarry, columns, top, log_total, dout, delta):
    """Gradients of one tile with respect to (rows, cols, (head, shared, scale), carry); `columns`: q and dout, turned."""
    inexact, exact = tiles.split_inexact((at.rows, at.cols, (inputs.head, inputs.shared, inputs.scale)))
    score = lambda inexact, *products_carry: tile_scores(static, at, *tiles.merge(inexact, exact), *products_carry)
    (logits, _), pull = jax.vjp(score, inexact, queries_keys(at.rows.q, at.cols.k), carry)
    logits = poison(logits, at.rows, at.cols)
    log_total = jnp.where(log_total == -jnp.inf, 0, log_total)
    p = jnp.where(at.seen, jnp.exp(logits - top[..., None] - log_total[..., None]), 0)
    dv = weights_queries(drop(static, inputs, p, at), columns[1])
    dp = drop(static, inputs, queries_keys(dout, at.cols.v), at)
    # Not p alone: a huge value behind the mask makes dp infinite, and 0 * inf is NaN.
    dlogits = jnp.where(at.seen, p * (dp - delta[..., None]), 0)
    (drows, dcols, dshares), dproducts, dcarry = pull((dlogits, dcarry))
    drows = drows._replace(q=drows.q + weights_values(dproducts, at.cols.k))
    dcols = dcols._replace(k=dcols.k + weights_queries(dproducts, columns[0]), v=dcols.v + dv)
    return drows, dcols, dshares, dcarry
