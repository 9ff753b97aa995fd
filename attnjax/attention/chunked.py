"""Linear memory for every encoding: tiles, online softmax, and a backward pass that recomputes each tile.

For each tile of t queries, the key tiles that the mask does not empty are visited in turn, carrying per row the running
maximum m, the sum l and the unnormalised output:

    m'   = max(m, max_j s_ij)
    l'   = e^(m - m') l + sum_j e^(s_ij - m')
    out' = e^(m - m') out + sum_j e^(s_ij - m') v_j

Backward, with delta_i = dout_i . out_i - dlse_i and p_ij = e^(s_ij - lse_i), each tile contributes

    dv_j += p_ij dout_i
    ds_ij = p_ij (dout_i . v_j - delta_i)

and `jax.vjp` of the encoding's score takes ds to q, k, positions and every learned parameter. All is summed in a fixed
order, so gradients are bitwise repeatable. No array has two axes of length T or S. Forward-mode
differentiation is not defined here (`custom_vjp`): use the dense implementation for it.

References: Milakov & Gimelshein 2018 (arXiv:1805.02867); Rabe & Staats 2021 (arXiv:2112.05682); Dao et al. 2022
(arXiv:2205.14135), Algorithms 1 and 4.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention import tiles
from attnjax.attention.masks import Span
from attnjax.attention.problem import Cols, Problem, Rows
from attnjax.attention.tile import head_keys, initial_carry, keep, poison, scores, visibility
from attnjax.positions.base import PositionEncoding
from attnjax.typing import Array, ArrayLike, Float, PyTree

TILE = (128, 128)


class Static(NamedTuple):
    """What is known while tracing; hashable."""

    encoding: PositionEncoding
    span: Span
    tile: tuple[int, int]
    rate: float
    key_impl: Any


class Inputs(NamedTuple):
    """What gradients flow to (the inexact leaves of it), on arrays padded to whole tiles."""

    rows: Rows
    cols: Cols
    head: PyTree
    shared: PyTree
    scale: Float[Array, ""]
    allowed: ArrayLike | None
    keys: Array | None


def chunked(
    problem: Problem, tile: tuple[int, int] = TILE
) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Output and log-sum-exp of every head in memory linear in T and S. `tile` is (queries, keys) of one tile."""
    T, S = problem.rows.q.shape[3], problem.cols.k.shape[2]
    tile = (min(tile[0], T), min(tile[1], S))
    dropout = problem.dropout
    static = Static(
        problem.encoding,
        problem.span,
        tile,
        0.0 if dropout is None else dropout.rate,
        None if dropout is None else jax.random.key_impl(dropout.key),
    )
    keys = None if dropout is None else head_keys(dropout, problem.rows.q.shape[:3])
    rows, cols, allowed = tiles.pad(problem.rows, problem.cols, problem.allowed, tile)
    inputs = Inputs(rows, cols, problem.head, problem.shared, problem.scale, allowed, keys)
    inputs = jax.tree.map(jnp.asarray, inputs)
    inexact, exact = tiles.split_inexact(inputs)
    # Replicated parameters meet sharded queries here, outside of the custom gradient, so that theirs is summed over devices.
    out, lse = _attend(static, tiles.same_axes(inexact, (inexact, exact)), exact)
    return out[:, :, :, :T], lse[:, :, :, :T]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: Static, inexact: PyTree, exact: PyTree) -> tuple[Array, Array]:
    out, top, log_total = _forward(static, tiles.merge(inexact, exact))
    return out, top + log_total


def _attend_fwd(static: Static, inexact: PyTree, exact: PyTree) -> tuple[tuple[Array, Array], Any]:
    # Their sum would round away what the weights need, where all visible scores are far below zero.
    out, top, log_total = _forward(static, tiles.merge(inexact, exact))
    return (out, top + log_total), (inexact, exact, out, top, log_total)


def _attend_bwd(static: Static, saved: Any, cotangents: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
    inexact, exact, out, top, log_total = saved
    gradient = _backward(static, tiles.merge(inexact, exact), out, top, log_total, *cotangents)
    return gradient, jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), exact)


_attend.defvjp(_attend_fwd, _attend_bwd)


def _forward(static: Static, inputs: Inputs) -> tuple[Array, Array, Array]:
    """Output, largest score of each row (0 where it sees nothing), and log sum_j e^(s_ij - largest)."""
    t, _ = static.tile
    queries, width = inputs.rows.q.shape[3], inputs.cols.v.shape[-1]
    visits = tiles.Visits.plan(static, inputs)

    def query_tile(i):
        rows = tiles.rows_at(inputs.rows, i, t)
        empty = rows.q[..., 0]
        state = (jnp.full_like(empty, -jnp.inf), jnp.zeros_like(empty), jnp.zeros((*empty.shape, width), empty.dtype))
        state, carry = tiles.same_axes((state, initial_carry(static.encoding, rows.q)), inputs)
        order, count = visits.of(i)

        def key_tile(step, carried):
            (top, total, out), carry = carried
            logits, seen, carry, cols = _tile(static, inputs, rows, i, order[step], carry)
            logits = jnp.where(seen, logits, -jnp.inf)
            new = jnp.maximum(top, logits.max(-1))
            base = jnp.where(new == -jnp.inf, 0, new)
            p = jnp.exp(logits - base[..., None])
            shrink = jnp.exp(top - base)
            total = shrink * total + p.sum(-1)
            p = _drop(static, inputs, p, i, order[step])
            out = shrink[..., None] * out + jnp.einsum("bkgts,bksh->bkgth", p, cols.v)
            return (new, total, out), carry

        (top, total, out), _ = jax.lax.fori_loop(0, count, key_tile, (state, carry))
        empty = total == 0
        safe = jnp.where(empty, 1, total)
        return out / safe[..., None], jnp.where(empty, 0, top), jnp.where(empty, -jnp.inf, jnp.log(safe))

    out, top, log_total = jax.lax.map(query_tile, jnp.arange(queries // t))
    return tiles.join(out), tiles.join(top), tiles.join(log_total)


def _tile(static: Static, inputs: Inputs, rows: Rows, i: Array, j: Array, carry: PyTree):
    """Poisoned logits of tile (i, j), what is seen there, the next carry, and the columns."""
    cols = tiles.cols_at(inputs.cols, j, static.tile[1])
    seen = visibility(static.span, rows, cols, tiles.allowed_at(inputs.allowed, i, j, static.tile))
    position = (rows.pos, cols.pos)
    logits, carry = scores(
        static.encoding, inputs.head, inputs.shared, inputs.scale, rows.q, cols.k, position, seen, carry
    )
    return poison(logits, rows, cols), seen, carry, cols


def _drop(static: Static, inputs: Inputs, p: Array, i: Array, j: Array) -> Array:
    """Weights after dropout; also its own transpose, since it multiplies by a constant."""
    if inputs.keys is None:
        return p
    (t, s), dtype = static.tile, p.dtype
    return p * keep(inputs.keys, static.key_impl, static.rate, i * t + jnp.arange(t), j * s + jnp.arange(s), dtype)


def _backward(static: Static, inputs: Inputs, out, top, log_total, dout, dlse) -> PyTree:
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
        order, count = visits.of(i)
        carries = _carries(static, inputs, rows, i, order, count)

        def key_tile(step, state):
            # With a carry the tiles are undone in reverse, each from the carry it started with.
            step = count - 1 - step
            drows, dcarry, (dcols, dshares) = state
            j = order[step]
            carry = jax.tree.map(lambda x: x[step], carries)
            new = _tile_vjp(static, inputs, rows, i, j, carry, dcarry, *here)
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
        return buffer, _tile(static, inputs, rows, i, order[step], carry)[2]

    return jax.lax.fori_loop(0, count, visit, (buffer, start))[0]


def _tile_vjp(static: Static, inputs: Inputs, rows: Rows, i, j, carry, dcarry, top, log_total, dout, delta):
    """Gradients of one tile with respect to (rows, cols, (head, shared, scale), carry)."""
    cols = tiles.cols_at(inputs.cols, j, static.tile[1])
    seen = visibility(static.span, rows, cols, tiles.allowed_at(inputs.allowed, i, j, static.tile))
    inexact, exact = tiles.split_inexact((rows, cols, (inputs.head, inputs.shared, inputs.scale)))

    def score(inexact, carry):
        rows, cols, shares = tiles.merge(inexact, exact)
        head, shared, scale = shares
        return scores(static.encoding, head, shared, scale, rows.q, cols.k, (rows.pos, cols.pos), seen, carry)

    (logits, _), pull = jax.vjp(score, inexact, carry)
    logits = poison(logits, rows, cols)
    log_total = jnp.where(log_total == -jnp.inf, 0, log_total)
    p = jnp.where(seen, jnp.exp(logits - top[..., None] - log_total[..., None]), 0)
    dv = jnp.einsum("bkgts,bkgth->bksh", _drop(static, inputs, p, i, j), dout)
    dp = _drop(static, inputs, jnp.einsum("bkgth,bksh->bkgts", dout, cols.v), i, j)
    # Not p alone: a huge value behind the mask makes dp infinite, and 0 * inf is NaN.
    dlogits = jnp.where(seen, p * (dp - delta[..., None]), 0)
    (drows, dcols, dshares), dcarry = pull((dlogits, dcarry))
    return drows, dcols._replace(v=dcols.v + dv), dshares, dcarry
