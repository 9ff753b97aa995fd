"""One block: a tile of queries beside a tile of keys. What is static, what it is computed from, cutting it out, its scores."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.dropout import kept
from attnjax.attention.hooks import scores
from attnjax.attention.inputs import Keys, Queries
from attnjax.attention.masks import Span, visibility
from attnjax.attention.position_axes import Positions, is_positions
from attnjax.attention.products import queries_keys
from attnjax.positions.base import EncodingParams, PositionEncoding, Trait
from attnjax.typing import Array, ArrayLike, Bool, Float, PyTree, compute_dtype

QUERY_AXES = Queries(3, None, -1, -1)
"""Where T is in each field; that of positions says so itself."""

KEY_AXES = Keys(2, 2, None, -1, -1, -1)
"""Where S is in each field."""


class Static(NamedTuple):
    """What is known while tracing; hashable. `scale` is None where it is traced, and then among the inputs.

    `groups`: how many examples and key heads may be taken apart; `at_once`: how many of these pairs go together;
    `everywhere`: on every device. `wanted`: for each leaf of the inputs, whether somebody asks for its gradient; None:
    for each that has one.
    """

    encoding: PositionEncoding
    span: Span
    tile: tuple[int, int]
    scale: float | None
    rate: float
    groups: tuple[int, int]
    at_once: int | None
    everywhere: bool
    wanted: tuple[bool, ...] | None = None


class BlockInputs(NamedTuple):
    """What gradients flow to (the inexact leaves of it), on arrays padded to whole tiles."""

    queries: Queries
    keys: Keys
    params: EncodingParams
    scale: Float[Array, ""] | None
    sink: Float[Array, "K G"] | None
    allowed: ArrayLike | None
    dropout_keys: Array | None


class Block(NamedTuple):
    """Its number along queries and keys, its queries and keys, and which of them are visible."""

    i: Array
    j: Array
    queries: Queries
    keys: Keys
    seen: Bool[Array, "*B 1 1 t s"]


def axes(static: Static, inputs: BlockInputs, axis: int) -> BlockInputs:
    """Where examples (axis 0) or key heads (axis 1) run in each leaf; -1 where they do not."""
    per_example = Trait.LENGTH in static.encoding.traits
    shift = lambda tree: jax.tree.map(lambda _: axis - 1, tree)
    nowhere = lambda tree: jax.tree.map(lambda _: -1, tree)
    leading = lambda x: 0 if axis == 0 and x.ndim == 2 else -1
    at = lambda one: Positions(axis if one.lead > axis else -1, one.axes)
    pos = lambda tree: jax.tree.map(at, tree, is_leaf=is_positions)
    queries = Queries(axis, pos(inputs.queries.pos), *jax.tree.map(leading, inputs.queries[2:]))
    keys = Keys(axis, axis, pos(inputs.keys.pos), *jax.tree.map(leading, inputs.keys[3:]))
    of_head = lambda tree: jax.tree.map(lambda _: axis if per_example else axis - 1, tree)
    of_all = lambda tree: jax.tree.map(lambda _: 0 if per_example and axis == 0 else -1, tree)
    p = EncodingParams(of_head(inputs.params.head), of_head(inputs.params.kv_head), of_all(inputs.params.shared))
    allowed = jax.tree.map(lambda x: 0 if axis == 0 and x.ndim == 3 else -1, inputs.allowed)
    keys_of_dropout = jax.tree.map(lambda _: axis, inputs.dropout_keys)
    return BlockInputs(queries, keys, p, nowhere(inputs.scale), shift(inputs.sink), allowed, keys_of_dropout)


def over_fields(f: Callable[..., Any], axes: Any, *trees: Any) -> Any:
    """f(leaf, ..., axis) over the fields of `Queries` or `Keys` that are there."""

    def one(axis: int | None, *field: Any) -> Any:
        if axis is not None:
            return None if field[0] is None else f(*field, axis)
        of_array = lambda *pos: Positions(
            None if pos[0].values is None else f(*(each.values for each in pos), pos[0].along), pos[0].axes
        )
        return jax.tree.map(of_array, *field, is_leaf=is_positions)

    return type(trees[0])(*(one(*field) for field in zip(axes, *trees, strict=True)))


def pad(
    queries: Queries, keys: Keys, allowed: ArrayLike | None, tile: tuple[int, int]
) -> tuple[Queries, Keys, ArrayLike | None]:
    """Whole tiles: padded keys are invalid, padded queries are cut off from the result (and get no gradient)."""
    more_t, more_s = -queries.q.shape[3] % tile[0], -keys.k.shape[2] % tile[1]
    queries = over_fields(lambda x, axis: _pad_axis(x, axis, more_t), QUERY_AXES, queries)
    keys = over_fields(lambda x, axis: _pad_axis(x, axis, more_s), KEY_AXES, keys)
    if allowed is not None:
        allowed = _pad_axis(_pad_axis(jnp.asarray(allowed), -1, more_s), -2, more_t)
    return queries, keys, allowed


def _pad_axis(x: ArrayLike, axis: int, more: int) -> ArrayLike:
    widths = [(0, 0)] * jnp.ndim(x)
    widths[axis] = (0, more)
    # Indices repeat their last value, so that padding does not widen the bounds of the last tile.
    mode = "edge" if jnp.issubdtype(x.dtype, jnp.integer) else "constant"
    return jnp.pad(x, widths, mode=mode) if more else x


def slice_axis(x: ArrayLike, i: Array, size: int, axis: int) -> Array:
    """Tile i of an axis cut into tiles of this size."""
    return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis % x.ndim)


def queries_at(queries: Queries, i: Array, t: int) -> Queries:
    """Query tile i."""
    return over_fields(lambda x, axis: slice_axis(x, i, t, axis), QUERY_AXES, queries)


def block_at(static: Static, inputs: BlockInputs, queries: Queries, i: Array, j: Array) -> Block:
    """Key tile j beside query tile i."""
    t, s = static.tile
    keys = over_fields(lambda x, axis: slice_axis(x, j, s, axis), KEY_AXES, inputs.keys)
    allowed = inputs.allowed
    if allowed is not None:
        allowed = slice_axis(slice_axis(allowed, i, t, -2), j, s, -1)
    return Block(i, j, queries, keys, visibility(static.span, queries, keys, allowed))


def block_scores(
    static: Static, at: Block, queries: Queries, keys: Keys, shares: tuple, products: Array, carry: PyTree
) -> tuple[Float[Array, "B K G t s"], PyTree]:
    """Logits of a block, not yet masked, and the next carry. `shares`: (params, scale); `products`: q_i . k_j."""
    params, scale = shares
    scale = np.asarray(static.scale, products.dtype) if scale is None else scale
    pos = (queries.pos, keys.pos)
    return scores(static.encoding, params, scale, products, queries.q, keys.k, pos, at.seen, carry)


def scores_at(static: Static, inputs: BlockInputs, at: Block, carry: PyTree) -> tuple[Array, PyTree]:
    """`block_scores` of the inputs themselves."""
    shares = (inputs.params, inputs.scale)
    return block_scores(static, at, at.queries, at.keys, shares, queries_keys(at.queries.q, at.keys.k), carry)


def drop(static: Static, inputs: BlockInputs, p: Float[Array, "B K G t s"], at: Block) -> Float[Array, "B K G t s"]:
    """Weights after dropout; also its own transpose, since it multiplies by a constant."""
    if inputs.dropout_keys is None:
        return p
    (t, s), dtype = static.tile, p.dtype
    rows, cols = at.i * t + jnp.arange(t), at.j * s + jnp.arange(s)
    return p * kept(inputs.dropout_keys, static.rate, rows, cols, dtype)


def add_keys(total: Keys, part: Keys, j: Array, s: int) -> Keys:
    """Add the gradient of key tile j to that of all keys."""

    def add(x, y, axis):
        axis = axis % x.ndim
        return jax.lax.dynamic_update_slice_in_dim(x, slice_axis(x, j, s, axis) + y.astype(x.dtype), j * s, axis)

    return over_fields(add, KEY_AXES, total, part)


def join(x: Array) -> Array:
    """[tiles, B, K, G, t, ...] -> [B, K, G, T, ...]."""
    x = jnp.moveaxis(x, 0, 3)
    return x.reshape(*x.shape[:3], x.shape[3] * x.shape[4], *x.shape[5:])


def join_queries(parts: Any, like: Queries) -> Any:
    """Gradients of all query tiles, stacked on a leading axis, in the layout of `like`."""

    def one(whole: Array, part: Array, axis: int) -> Array:
        return jnp.moveaxis(part, 0, axis % whole.ndim).reshape(whole.shape)

    missing = lambda tree: jax.tree.map(lambda part, whole: None if part is None else whole, *tree, is_leaf=_is_none)
    return over_fields(one, QUERY_AXES, missing((parts, like)), parts)


def _is_none(x: Any) -> bool:
    return x is None


def same_axes(tree: PyTree, like: PyTree) -> PyTree:
    """`tree` plus a zero made from every leaf of `like`.

    Inside `jax.shard_map` this makes it vary over all mesh axes that `like` varies over, as loops demand of what they
    begin with; the transpose sums over devices. Elsewhere XLA drops the addition of a constant 0.
    """
    firsts = [leaf[(0,) * leaf.ndim] for leaf in jax.tree.leaves(like)]
    zero = sum((jnp.zeros_like(first, jnp.float32) for first in firsts), jnp.float32(0))
    return jax.tree.map(lambda leaf: leaf + zero.astype(leaf.dtype), tree)


def split_inexact(tree: PyTree) -> tuple[PyTree, PyTree]:
    """The leaves that have a gradient, and those that have none; the others are None in each."""
    float_or_none = lambda x: x if jnp.issubdtype(x.dtype, jnp.inexact) else None
    exact_or_none = lambda x: None if jnp.issubdtype(x.dtype, jnp.inexact) else x
    return jax.tree.map(float_or_none, tree), jax.tree.map(exact_or_none, tree)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Wanted:
    """`Static.wanted`, kept among the arrays that the backward pass needs."""

    leaves: tuple[bool, ...]


def perturbed(inexact: PyTree, exact: PyTree) -> tuple[PyTree, PyTree, Wanted]:
    """The arrays, and of which of them gradients are asked for, from what `jax.custom_vjp` passes with `symbolic_zeros`.

    Those of queries, keys and values share their work, and are always made.
    """
    values = [jax.tree.map(lambda x: x.value, tree) for tree in (inexact, exact)]
    marks = merge(jax.tree.map(lambda x: x.perturbed, inexact), jax.tree.map(lambda x: False, exact))
    marks = marks._replace(queries=marks.queries._replace(q=True), keys=marks.keys._replace(k=True, v=True))
    return values[0], values[1], Wanted(tuple(jax.tree.leaves(marks)))


def instantiated(cotangent: Any) -> Array:
    """A cotangent as an array, where nobody asked for the derivative of a result."""
    zero = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
    return jnp.zeros(cotangent.shape, cotangent.dtype) if zero else cotangent


def wanted(static: Static, inputs: BlockInputs) -> BlockInputs:
    """For each leaf, whether its gradient is asked for."""
    leaves, structure = jax.tree.flatten(inputs)
    marks = static.wanted or [jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves]
    return jax.tree.unflatten(structure, marks)


def chosen(tree: PyTree, marks: PyTree) -> PyTree:
    """The leaves of `tree` that are marked; the others are None."""
    return jax.tree.map(lambda x, mark: x if mark else None, tree, marks)


def left(tree: PyTree, marks: PyTree) -> PyTree:
    """The leaves of `tree` that are not marked; the others are None."""
    return jax.tree.map(lambda x, mark: None if mark else x, tree, marks)


def merge(inexact: PyTree, exact: PyTree) -> PyTree:
    """The inverse of `split_inexact`."""
    return jax.tree.map(lambda a, b: b if a is None else a, inexact, exact, is_leaf=_is_none)


def zeros_of(tree: PyTree) -> PyTree:
    """Zeros to sum gradients in, in float32 or float64 whatever the type of a leaf."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, compute_dtype(x)), tree)
