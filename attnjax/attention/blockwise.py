"""Blockwise attention: linear memory by tiles and an online softmax; the backward pass computes each tile again.

For each tile of t queries, the key tiles that the mask does not empty are visited in turn, carrying per row the running
maximum m, the sum l and the unnormalized output:

    m'   = max(m, max_j s_ij)
    l'   = e^(m - m') l + sum_j e^(s_ij - m')
    out' = e^(m - m') out + sum_j e^(s_ij - m') v_j

A sink of logit s_h starts the row at m = s_h, l = 1. Backward, with delta_i = dout_i . out_i - dlse_i and
p_ij = e^(s_ij - lse_i), each tile contributes

    dv_j += p_ij dout_i
    ds_ij = p_ij (dout_i . v_j - delta_i)

and `jax.vjp` of the encoding's score takes ds to q, k, positions and every learned parameter. All is summed in a fixed
order, so gradients are bitwise repeatable. No array has two axes of length T or S.

References: Milakov & Gimelshein 2018 (arXiv:1805.02867); Rabe & Staats 2021 (arXiv:2112.05682); Dao et al. 2022
(arXiv:2205.14135), Algorithms 1 and 4.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.hooks import scores
from attnjax.attention.masks import visibility
from attnjax.attention.products import queries_keys, turned, weights_queries, weights_values
from attnjax.attention.record import Call, Cols, Rows
from attnjax.attention.relative_bias import per_distance
from attnjax.attention.trees import added, as_types_of, merge, same_axes, split, zeros_of
from attnjax.config.kinds import Count, coerce
from attnjax.positions.checks import INT32
from attnjax.typing import Array, Bool, Float, Int, PyTree, compute_dtype

LONG = 1024
"""From this length on, tiles are larger: 256 x 256 take at most 9 % more of a CPU's time than 128 x 128 (a gradient at 1,024
and 2,048 tokens), of which an accelerator would run four times as many one after another."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """Tiles of `queries` x `keys`; an implementation to pass to `attend`.

    Example:
        >>> import jax.numpy as jnp
        >>> from attnjax import Tiling, attend
        >>> x = jnp.ones((1, 5, 2, 4))
        >>> attend(x, x, x, implementation=Tiling(queries=2, keys=3)).shape
        (1, 5, 2, 4)
    """

    queries: int = 128
    keys: int = 128

    def __post_init__(self) -> None:
        coerce(Count, self.queries, "Tiling.queries")
        coerce(Count, self.keys, "Tiling.keys")


Visits = Callable[[Array], tuple[Array, Array]]
"""Returns the key tiles to visit for a query tile, in order, [m], and how many of them."""


class Results(NamedTuple):
    """Output, the largest score of each row (0 where it sees nothing), and log sum_j e^(s_ij - largest).

    The last two are kept apart: their sum would round away what the weights need, where all visible scores are far below 0.
    """

    out: Float[Array, "B K G T H"]
    top: Float[Array, "B K G T"]
    log_total: Float[Array, "B K G T"]


def blockwise(call: Call, tiling: Tiling | None = None) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Returns output and log-sum-exp of every head in memory linear in T and S. `tiling`: sizes other than the default ones."""
    T = call.rows.q.shape[3]
    tiling, call = padded(call, tiling)
    floats, rest = split(call)
    out, lse = _attend(tiling, same_axes(floats, call), rest)
    return out[:, :, :, :T], lse[:, :, :, :T]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(tiling: Tiling, floats: Call, rest: Call) -> tuple[Array, Array]:
    return _attend_fwd(tiling, floats, rest)[0]


def _attend_fwd(tiling: Tiling, floats: Call, rest: Call) -> tuple[tuple[Array, Array], Any]:
    results = forward(tiling, merge(floats, rest))
    return (results.out, results.top + results.log_total), (floats, rest, results)


def _attend_bwd(tiling: Tiling, saved: Any, cotangents: tuple[Array, Array]) -> tuple[Call, None]:
    floats, rest, results = saved
    call = merge(floats, rest)
    # Tiles that no example of any device sees are left out: loops of one length serve all.
    part = functools.partial(backward, tiling, visits=_visits(tiling, call))
    return as_types_of(floats, _over_devices(part, (call, results, *cotangents), floats)), None


_attend.defvjp(_attend_fwd, _attend_bwd)


def forward(tiling: Tiling, call: Call) -> Results:
    """Returns the results of all rows: query tiles one after another, each with the key tiles that it sees."""
    visits = _visits(tiling, call)
    t, s = tiling.queries, tiling.keys

    def query_tile(i: Array) -> Results:
        """The results of the rows of query tile i."""
        rows = tile_of(call.rows, i, t)
        order, count = visits(i)

        def key_tile(step: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            """Maximum, sum and output of the rows after one more key tile."""
            top, total, out = state
            j = order[step]
            cols = tile_of(call.cols, j, s)
            seen = _seen(tiling, call, rows, cols, i, j)
            logits = scores(call, rows, cols, queries_keys(rows.q, cols.k), seen)
            logits = jnp.where(seen, logits, -jnp.inf)
            new = jnp.maximum(top, logits.max(-1))
            p = jnp.exp(logits - new[..., None])
            shrink = jnp.exp(top - new)
            return new, shrink * total + p.sum(-1), shrink[..., None] * out + weights_values(p, cols.v)

        top, total, out = jax.lax.fori_loop(0, count, key_tile, same_axes(_start(call, rows), call))
        empty = total == 0
        safe = jnp.where(empty, 1, total)
        return Results(out / safe[..., None], jnp.where(empty, 0, top), jnp.where(empty, -jnp.inf, jnp.log(safe)))

    found = jax.lax.map(query_tile, jnp.arange(call.rows.q.shape[3] // t, dtype=jnp.int32))
    return jax.tree.map(_join, found)


def _start(call: Call, rows: Rows) -> tuple[Array, Array, Array]:
    """The largest score, the sum and the output of a row before any key."""
    dtype, shape = compute_dtype(rows.q, call.cols.k), rows.q.shape[:4]
    # Not -inf: a row that sees nothing yet has e^(-inf - lowest) = 0.
    top, total = jnp.full(shape, jnp.finfo(dtype).min, dtype), jnp.zeros(shape, dtype)
    if call.sink is not None:
        # At least the lowest number: a sink of -inf has no weight, and is no score to subtract.
        top = jnp.maximum(top, call.sink)
        total = jnp.exp(call.sink - top)
    return top, total, jnp.zeros((*shape, call.cols.v.shape[-1]), dtype)


def backward(
    tiling: Tiling, call: Call, results: Results, dout: Array, dlse: Array, visits: Visits | None = None
) -> Call:
    """Returns the gradients of the floating leaves, in float32 or float64: query tiles outside, key tiles inside.

    `visits`: the tiles to visit for more examples than these.
    """
    t, s = tiling.queries, tiling.keys
    visits = visits or _visits(tiling, call)
    delta = (dout * results.out).sum(-1) - dlse
    # Rows that see nothing have no weights; e^(-inf - -inf) would be NaN.
    log_total = jnp.where(results.log_total == -jnp.inf, 0, results.log_total)
    # In the type of the values, so that products with them have operands of one type.
    row_results = (results.top, log_total, delta, dout.astype(call.cols.v.dtype))

    def query_tile(sums: tuple, i: Array) -> tuple[tuple, Rows]:
        """The sums over query tiles with tile i added, and the gradients of its rows."""
        rows = tile_of(call.rows, i, t)
        here = tile_of(row_results, i, t)
        columns = turned(rows.q), turned(here[3])
        order, count = visits(i)

        def key_tile(step: Array, state: tuple) -> tuple:
            """The gradients after one more key tile."""
            drows, dcols, dshared = state
            j = order[step]
            cols = tile_of(call.cols, j, s)
            seen = _seen(tiling, call, rows, cols, i, j)
            new = _tile_gradients(call, rows, cols, seen, here, columns)
            add_at = lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, _slice(x, j, s) + y.astype(x.dtype), j * s, 3)
            return added(drows, new[0]), jax.tree.map(add_at, dcols, new[1]), added(dshared, new[2])

        start = (same_axes(zeros_of(rows), call), *sums)
        drows, dcols, dshared = jax.lax.fori_loop(0, count, key_tile, start)
        return (dcols, dshared), drows

    shared = (call.params, call.scale)
    sums = same_axes((zeros_of(call.cols), zeros_of(shared)), call)
    numbers = jnp.arange(call.rows.q.shape[3] // t, dtype=jnp.int32)
    (dcols, (dparams, dscale)), drows = jax.lax.scan(query_tile, sums, numbers)
    dsink = None if call.sink is None else sink_gradient(call.sink, results, delta)
    found = {"rows": jax.tree.map(_join, drows), "cols": dcols, "params": dparams, "scale": dscale, "sink": dsink}
    return dataclasses.replace(split(call)[0], **found)


def _tile_gradients(
    call: Call, rows: Rows, cols: Cols, seen: Array, here: tuple, columns: tuple[Array, Array]
) -> tuple[Rows, Cols, PyTree]:
    """Gradients of one tile: of rows, cols and (params, scale). `columns`: q and dout of the rows, turned."""
    top, log_total, delta, dout = here
    floats, rest = split((rows, cols, (call.params, call.scale)))

    def score(floats: PyTree, products: Array) -> Array:
        rows, cols, (params, scale) = merge(floats, rest)
        return scores(dataclasses.replace(call, params=params, scale=scale), rows, cols, products, seen)

    logits, pull = jax.vjp(score, floats, queries_keys(rows.q, cols.k))
    p = jnp.where(seen, jnp.exp(logits - top[..., None] - log_total[..., None]), 0)
    dlogits = p * (queries_keys(dout, cols.v) - delta[..., None])
    (drows, dcols, dshared), dproducts = pull(dlogits)
    dq, dk, dv = (
        weights_values(dproducts, cols.k),
        weights_queries(dproducts, columns[0]),
        weights_queries(p, columns[1]),
    )
    drows = drows._replace(q=drows.q.astype(dq.dtype) + dq)
    return drows, dcols._replace(k=dcols.k.astype(dk.dtype) + dk, v=dcols.v.astype(dv.dtype) + dv), dshared


def sink_gradient(sink: Float[Array, "1 K G 1"], results: Results, delta: Float[Array, "B K G T"]) -> Array:
    """A sink has the weight p = e^(s - lse) and no value, so that ds = -p delta, summed over examples and queries."""
    # Rows that see nothing have no weights; with a sink of -inf, e^(-inf - -inf) would be NaN.
    log_total = jnp.where(results.log_total == -jnp.inf, 0, results.log_total)
    return -(jnp.exp(sink - results.top - log_total) * delta).sum((0, 3), keepdims=True)


def _seen(tiling: Tiling, call: Call, rows: Rows, cols: Cols, i: Array, j: Array) -> Bool[Array, "b 1 1 t s"]:
    allowed = call.allowed
    if allowed is not None:
        t, s = tiling.queries, tiling.keys
        allowed = jax.lax.dynamic_slice_in_dim(_slice(allowed, i, t), j * s, s, 4)
    return visibility(call.span, rows.index, cols.index, rows.segments, cols.segments, cols.valid, allowed)


def _visits(tiling: Tiling, call: Call) -> Visits:
    """The key tiles to visit for query tile i, in order, and how many. Tiles that are left out are empty under the mask."""
    t, s, span, rows, cols = tiling.queries, tiling.keys, call.span, call.rows, call.cols
    everyone = jnp.ones((1, 1, 1, rows.index.shape[3]), bool)
    row_index, col_index = _bounds(rows.index, t, everyone), _bounds(cols.index, s, cols.valid)
    some_valid = cols.valid.reshape(-1, cols.valid.shape[3] // s, s).any((0, 2))
    packed = rows.segments is not None and cols.segments is not None
    segments = (_bounds(rows.segments, t, everyone), _bounds(cols.segments, s, cols.valid)) if packed else None

    def of(i: Array) -> tuple[Array, Array]:
        """The key tiles that are visited for query tile i, before all others, and how many these are."""
        useful = some_valid
        low, high = (x[i] for x in row_index)
        # Clipped first, because an index at the end of int32 would wrap around and hide a visible tile.
        if span.right is not None:
            useful &= col_index[0] <= jnp.minimum(high, INT32.max - span.right) + span.right
        if span.left is not None:
            near = col_index[1] >= jnp.maximum(low, INT32.min + span.left) - span.left
            useful &= near | (col_index[0] < span.first) if span.first else near
        if segments is not None:
            low, high = (x[i] for x in segments[0])
            useful &= (segments[1][0] <= high) & (segments[1][1] >= low)
        number = jnp.arange(useful.shape[0], dtype=jnp.int32)
        return jnp.argsort(jnp.where(useful, number, useful.shape[0])), useful.sum(dtype=jnp.int32)

    return of


def _bounds(x: Int[Array, "b 1 1 n"], size: int, valid: Bool[Array, "b 1 1 n"]) -> tuple[Array, Array]:
    """Smallest and largest value in each tile, over the batch, of valid entries only."""
    x, valid = jnp.broadcast_arrays(x, valid)
    tiles = lambda y: y.reshape(y.shape[0], -1, size)
    low, high = jnp.where(valid, x, INT32.max), jnp.where(valid, x, INT32.min)
    return tiles(low).min((0, 2)), tiles(high).max((0, 2))


def padded(call: Call, tiling: Tiling | None) -> tuple[Tiling, Call]:
    """Returns sizes of tiles, and the call with arrays in whole tiles: padded keys are invalid, padded queries are cut off."""
    T, S = call.rows.q.shape[3], call.cols.k.shape[3]
    if tiling is None:
        # A score of an encoding's own may hold many numbers for each entry (FIRE: one per hidden unit).
        general = any(part.has("score") for part in call.encodings)
        side = 64 if max(T, S) < LONG else 128 if general else 256
        tiling = Tiling(side, side)
    t, s = min(tiling.queries, T), min(tiling.keys, S)
    call = per_distance(call, (t, s))
    whole = {
        "rows": jax.tree.map(lambda x: _pad(x, -T % t, 3), call.rows),
        "cols": jax.tree.map(lambda x: _pad(x, -S % s, 3), call.cols),
        "allowed": None if call.allowed is None else _pad(_pad(call.allowed, -T % t, 3), -S % s, 4),
    }
    return Tiling(t, s), jax.tree.map(jnp.asarray, dataclasses.replace(call, **whole))


def _over_devices(run: Callable[..., Any], inputs: tuple, like: PyTree) -> Any:
    """`run` on the examples of each device: each sums over its own, in loops too, and one sum over devices follows.

    Leaves of the result that belong to a leaf of `like` which all examples share are summed.
    """
    B = inputs[0].rows.q.shape[0]
    meshes = [jax.sharding.get_abstract_mesh(), *(jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(inputs))]
    parts = math.gcd(B, max(map(_devices_of, meshes)))
    if parts == 1:
        return run(*inputs)
    by_example = lambda x: np.ndim(x) > 1 and x.shape[0] == B
    axes = jax.tree.map(lambda x: 0 if by_example(x) else None, inputs)
    split_up = lambda x: x.reshape(parts, -1, *x.shape[1:]) if by_example(x) else x
    found = jax.vmap(run, in_axes=axes)(*jax.tree.map(split_up, inputs))
    join = lambda x, one: x.reshape(B, *x.shape[2:]) if by_example(one) else x.sum(0)
    return jax.tree.map(join, found, like)


def _devices_of(mesh: Any) -> int:
    """Devices over which the compiler may spread an axis; 1 without a mesh and inside `jax.shard_map`."""
    manual = jax.sharding.AxisType.Manual
    return math.prod(size for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True) if kind != manual)


def _slice(x: Array, i: Array, size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, i * size, size, 3)


def tile_of(tree: PyTree, i: Array, size: int) -> PyTree:
    """Returns tile i of arrays whose tokens lie on axis 3."""
    return jax.tree.map(lambda x: _slice(x, i, size), tree)


def _pad(x: Array, more: int, axis: int) -> Array:
    widths = [(0, more if i == axis else 0) for i in range(x.ndim)]
    # Indices repeat their last value, so that padding does not widen the bounds of the last tile.
    return jnp.pad(x, widths, mode="edge" if jnp.issubdtype(x.dtype, jnp.integer) else "constant") if more else x


def _join(x: Array) -> Array:
    """[tiles, b, k, g, t, ...] -> [b, k, g, T, ...]."""
    x = jnp.moveaxis(x, 0, 3)
    return x.reshape(*x.shape[:3], x.shape[3] * x.shape[4], *x.shape[5:])
