"""From the arguments of `attend` to one checked record that every implementation takes.

All checks of user input live here and in `position_axes.py`. The result has a fixed layout: queries [B,K,G,T,h], keys and
values [B,K,S,.], mapped by the encoding. 16-bit arrays stay 16-bit. Non-finite entries are replaced by 0, because 0 * inf
is NaN where a mask hides them; then queries and keys whose own vectors (or values) had some become NaN as a whole, so that
logits are, and derivatives leave those out. Arrays along T or S may lack the axis of the batch.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.hooks import by_head, check_widths, map_keys, map_queries
from attnjax.attention.masks import Mask, Span, check_last_query, from_first_valid
from attnjax.attention.position_axes import Positions, arrays, as_int32, as_positions, check_distances
from attnjax.attention.products import finite, materialized
from attnjax.attention.sequence_axis import SequenceAxis, indices_of_device, sequence_axis
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Trait, learns, resolve
from attnjax.positions.concrete import concrete
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, PyTree, compute_dtype

MODEL = 3 * 2**14
"""A model dimension by which sizes that depend on it are told from others: `attend` does not know the true one."""


class Queries(NamedTuple):
    """Everything that runs along the queries."""

    q: Float[Array, "B K G T h"]
    pos: PyTree
    index: Int[ArrayLike, "*B T"]
    segments: Int[ArrayLike, "*B T"] | None


class Keys(NamedTuple):
    """Everything that runs along the keys: of a caller, of a cache, and as the implementations read it.

    In `KeySource` `index` and `valid` may be None, which is all of them in order.
    """

    k: Float[Array, "B K S h"]
    v: Float[Array, "B K S H"]
    pos: PyTree
    index: Int[ArrayLike, "*B S"] | None
    segments: Int[ArrayLike, "*B S"] | None
    valid: Bool[ArrayLike, "*B S"] | None


class KeySource(NamedTuple):
    """Keys as a caller or a cache hands them over. `marks` are added after `map_k`, see `nan_marks`; `mapped`: that is done.
    `length`: that of the sequence, where the keys do not tell it. `overflown`: tokens are missing, and the whole result is NaN.
    """

    keys: Keys
    marks: Float[Array, "B K S"] | None = None
    mapped: bool = False
    length: Any = None
    overflown: Bool[Array, ""] | None = None


class AttentionInputs(NamedTuple):
    """One attention to compute. Leaves of `params.head` lead with [K, G], those of `params.kv_head` with [K], and all of them
    with B before that where the encoding has `Trait.LENGTH`. `dtype` is the type of the caller's queries. `overflown`: as in
    `KeySource`; no implementation reads it.
    """

    encoding: PositionEncoding
    span: Span
    queries: Queries
    keys: Keys
    params: EncodingParams
    scale: Float[ArrayLike, ""]
    sink: Float[Array, "K G"] | None
    allowed: Bool[ArrayLike, "*B T S"] | None
    dropout: Any
    dtype: Any
    sequence: SequenceAxis | None = None
    overflown: Bool[Array, ""] | None = None

    @property
    def compute_dtype(self) -> jnp.dtype:
        """The type of logits, softmax and sums: float32, or float64 where an input is."""
        return compute_dtype(self.queries.q, self.keys.k, self.keys.v)


def check_shapes(q: Any, k: Any, v: Any, *, mapped: bool = False) -> None:
    """Refuse arrays that are not q[B,T,N,H], k[B,S,K,H], v[B,S,K,H] of floating types with N a multiple of K."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim != 4:
            raise ValueError(f"{name} must have 4 axes [batch, length, heads, head], got shape {array.shape}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name} must be of a floating type, got {array.dtype}")
        if 0 in array.shape:
            raise ValueError(f"{name} must have at least one entry along every axis, got shape {array.shape}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"k and v must agree in batch, length and heads, got k {k.shape} and v {v.shape}")
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k must have the same batch size, got q {q.shape} and k {k.shape}")
    # The keys of a cache may be wider than they were; its values keep the head dimension.
    if q.shape[3] != (v if mapped else k).shape[3]:
        name, other = ("the cache", v) if mapped else ("k", k)
        raise ValueError(f"q and {name} must have the same head dimension, got q {q.shape} and {name} {other.shape}")
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"query heads must be a multiple of key heads, got N={q.shape[2]} and K={k.shape[2]}")


def along(name: str, array: ArrayLike | None, batch: int, length: int) -> ArrayLike | None:
    """An array that runs along T or S: [length] or [batch, length]."""
    if array is None:
        return None
    array = array if isinstance(array, jax.Array) else np.asarray(array)
    if array.shape not in ((length,), (batch, length)):
        raise ValueError(f"{name} must have shape ({length},) or ({batch}, {length}), got {array.shape}")
    return array


def integers(name: str, array: ArrayLike | None, batch: int, length: int) -> ArrayLike | None:
    """Indices and segments as int32, [length] or [batch, length]. Raises ValueError for other types and values."""
    array = along(name, array, batch, length)
    return None if array is None else as_int32(name, array)


def from_caller(q: Array, k: Array, v: Array, k_pos: Any) -> KeySource:
    """Keys and values [B,S,K,H] of a caller, in the layout of `Keys`. Raises ValueError for shapes that do not fit."""
    check_shapes(q, k, v)
    marks = nan_marks(k, v).transpose(0, 2, 1)
    k, v = (finite(x.transpose(0, 2, 1, 3)) for x in (k, v))
    return KeySource(Keys(k, v, k_pos, None, None, None), marks)


def prepare(
    q: Array,
    source: KeySource,
    encoding: PositionEncoding,
    params: EncodingParams | None,
    q_pos: Any,
    mask: Mask,
    scale: Any,
    sink: Any,
    dropout: Any,
    axis_name: str | None = None,
) -> AttentionInputs:
    """Check everything, map queries and keys by the encoding, and lay the arrays out.

    `axis_name`: of the mesh axis over which the sequence is spread; indices then go on from device to device.
    """
    # The cache checked positions when they came, and its slots that nobody wrote hold none.
    keys, cached = source.keys, source.keys.index is not None
    k, v = (jax.ShapeDtypeStruct((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype) for x in keys[:2])
    check_shapes(q, k, v, mapped=source.mapped)
    (B, T, N, H), (S, K) = q.shape, k.shape[1:3]
    sizes = Sizes(model=N * H, heads=N, kv_heads=K, head_dim=H)
    refuse_embedding(encoding, "attend without it")
    encoding.check(sizes=sizes._replace(model=MODEL), causal=mask.span.causal)
    params = check_params(encoding, params, sizes)
    sequence = None
    if axis_name is not None:
        sequence = sequence_axis(axis_name, encoding, mask, S, default_pos=keys.pos is None, drops=dropout is not None)
        keys = keys._replace(index=indices_of_device(axis_name, S))
    q_index = _index(mask.q_index, indices_of_device(axis_name, T), "mask.q_index", B, T)
    q_pos = as_positions("q_pos", q_pos, encoding, q_index, B, T, N, K)
    keys = _with_mask(keys, mask, B, S)
    keys = keys._replace(pos=as_positions("k_pos", keys.pos, encoding, keys.index, B, S, N, K))
    encoding.check(pos=arrays(q_pos))
    if not cached:
        encoding.check(pos=arrays(keys.pos))
        check_distances(encoding, q_pos, keys.pos, keys.valid)
        if axis_name is None:
            check_last_query(mask, T, S)
    if mask.span.first and mask.k_index is None:
        q_index, k_index = from_first_valid(q_index, keys.index, keys.valid, axis_name)
        keys = keys._replace(index=k_index)
    length = length_of(keys, source.length) if Trait.LENGTH in encoding.traits else None
    length = length if sequence is None or length is None else jax.lax.pmax(length, sequence.name)
    dtype = compute_dtype(q, k, v)
    keys = keys if dtype == jnp.float32 else keys._replace(k=keys.k.astype(dtype), v=keys.v.astype(dtype))
    resolved = functools.partial(resolve, encoding, params, sizes)
    q_mapped, keys = _mapped(encoding, resolved, q, q_pos, keys, source, length, dtype)
    chex.assert_shape(q_mapped, (B, K, N // K, T, None))
    return AttentionInputs(
        encoding=encoding,
        span=mask.span,
        queries=Queries(q_mapped, q_pos, q_index, integers("mask.q_segments", mask.q_segments, B, T)),
        keys=keys._replace(valid=np.ones(S, bool) if keys.valid is None else keys.valid),
        # What no hook of scores reads, such as a table of embeddings, must not travel through the loops over tiles.
        params=_for_scores(encoding, resolved, length, B, K) if Trait.ON_SCORES & encoding.traits else EncodingParams(),
        scale=as_scale(scale, H, dtype),
        sink=_sink(sink, N, K, dtype),
        allowed=_allowed(mask, B, T, S),
        dropout=dropout,
        dtype=q.dtype,
        sequence=sequence,
        overflown=source.overflown,
    )


def _mapped(
    encoding: PositionEncoding,
    resolved: Callable[[Any], EncodingParams],
    q: Float[Array, "B T N H"],
    q_pos: PyTree,
    keys: Keys,
    source: KeySource,
    length: Any,
    dtype: jnp.dtype,
) -> tuple[Float[Array, "B K G T h"], Keys]:
    """Queries [B,K,G,T,h] and keys as the encoding maps them, NaN as a whole where an entry of theirs was not finite."""
    (B, T, N, H), K = q.shape, keys.k.shape[1]
    # In the caller's layout, where the sums run along memory.
    marks = nan_marks(q).reshape(B, T, K, N // K).transpose(0, 2, 3, 1)
    q_mapped = finite(q.astype(_kept(q, dtype)).reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4))
    if Trait.MAP_Q in encoding.traits:
        q_mapped = materialized(map_queries(encoding, resolved, q_mapped, q_pos, length))
    if Trait.MAP_K in encoding.traits and not source.mapped:
        keys = keys._replace(k=materialized(map_keys(encoding, resolved, keys.k, keys.pos, length)))
    q_mapped = marked(q_mapped, marks)
    keys = keys if source.marks is None else keys._replace(k=marked(keys.k, source.marks))
    check_widths(encoding, q_mapped, keys.k)
    return q_mapped, keys


def refuse_embedding(encoding: PositionEncoding, otherwise: str) -> None:
    """Raise ValueError, with what to do otherwise, for an encoding that attention has no part in."""
    if encoding.traits == Trait.EMBED:
        raise ValueError(
            f"{encoding} acts on the embeddings alone: add it to the input of the model with attnjax.embed, and {otherwise}"
        )


def _kept(x: Array, dtype: jnp.dtype) -> jnp.dtype:
    """The type in which an array enters products: its own, or float64 beside another that is."""
    return dtype if dtype == jnp.float64 else x.dtype


def _for_scores(encoding: PositionEncoding, params: Any, length: Any, B: int, K: int) -> EncodingParams:
    """Parameters for the hooks of scores; with an axis of examples where they depend on the length of each."""
    if Trait.LENGTH not in encoding.traits:
        return by_head(params(None), K)
    lengths = jnp.broadcast_to(jnp.asarray(length), (B,))
    return jax.vmap(lambda length: jax.tree.map(jnp.asarray, by_head(params(length), K)))(lengths)


def _index(given: ArrayLike | None, default: ArrayLike | None, name: str, B: int, n: int) -> ArrayLike:
    index = integers(name, given, B, n)
    index = default if index is None else index
    return np.arange(n, dtype=np.int32) if index is None else index


def _with_mask(keys: Keys, mask: Mask, B: int, S: int) -> Keys:
    """The keys with what the mask says of them: index, segments and validity."""
    index = _index(mask.k_index, keys.index, "mask.k_index", B, S)
    segments = integers("mask.k_segments", mask.k_segments, B, S)
    ours, theirs = along("mask.k_valid", mask.k_valid, B, S), keys.valid
    if ours is not None and ours.dtype != bool:
        raise ValueError(f"mask.k_valid must be boolean, got {ours.dtype}")
    valid = theirs if ours is None else ours
    if ours is not None and theirs is not None:
        valid = jnp.broadcast_to(ours, (B, S)) & jnp.broadcast_to(theirs, (B, S))
    return keys._replace(index=index, segments=segments, valid=valid)


def _sink(sink: Any, N: int, K: int, dtype: jnp.dtype) -> Float[Array, "K G"] | None:
    """The logits of the sinks by key head. Raises ValueError unless there is one floating number per query head."""
    if sink is None:
        return None
    shape, kind = jnp.shape(sink), getattr(sink, "dtype", None)
    if shape != (N,) or kind is None or not jnp.issubdtype(kind, jnp.floating):
        raise ValueError(
            f"sink must be floating numbers of shape ({N},), one logit per query head, got {kind}{list(shape)}"
        )
    return jnp.reshape(jnp.asarray(sink, dtype), (K, N // K))


def as_scale(scale: Any, head: int, dtype: jnp.dtype) -> Float[ArrayLike, ""]:
    """1/sqrt(H) unless given; a number or a scalar array. NumPy where it is known, so that nothing is differentiated for it.

    Raises ValueError for anything else.
    """
    if scale is None:
        return np.asarray(head**-0.5, dtype)
    number = scale if isinstance(scale, jax.Array) else np.asarray(scale)
    real = jnp.issubdtype(number.dtype, jnp.floating) or jnp.issubdtype(number.dtype, jnp.integer)
    if number.shape != () or not real:
        raise ValueError(f"scale must be a number or a scalar array, got {scale!r}")
    known = concrete(number)
    if known is None:
        return jnp.asarray(number, dtype)
    if not np.isfinite(known):
        raise ValueError(f"scale must be finite, got {scale}")
    return np.asarray(known, dtype)


def check_params(encoding: PositionEncoding, params: EncodingParams | None, sizes: Sizes) -> EncodingParams:
    """The parameters, or empty ones where nothing is learned; constants among them are taken as they are.

    Raises ValueError where learned ones are missing, or of other shapes than `init` makes; the model dimension is not
    known here.
    """
    if params is None:
        if learns(encoding):
            raise ValueError(f"{encoding} learns parameters: pass params=encoding.init(key, sizes), got params=None")
        return EncodingParams()
    if not isinstance(params, EncodingParams):
        raise ValueError(f"{encoding}: params must be EncodingParams as made by init, got {type(params).__name__}")
    if learns(encoding) or jax.tree.leaves(params):
        learned = jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes._replace(model=MODEL)))
        constants = encoding.constants(sizes, None if Trait.LENGTH not in encoding.traits else 1)
        for side, given, of_init, constant in zip(params._fields, params, learned, constants, strict=True):
            _check_side(encoding, side, given, of_init, constant)
    return params


def _check_side(encoding: PositionEncoding, side: str, given: PyTree, learned: PyTree, constants: PyTree) -> None:
    """Refuse a side of the parameters that lacks a learned leaf, has one too many, or one of another shape."""
    got, made, known = (_shapes_by_path(tree) for tree in (given, learned, constants))
    wrong = [path for path in got if not _fits(got[path], made.get(path, known.get(path)))]
    if wrong or made.keys() - got.keys():
        shapes = [tuple("D" if _is_model(n) else n for n in shape) for shape in made.values()]
        names = f" (at {', '.join(got)} in place of {', '.join(made)})" if shapes == [*got.values()] else ""
        raise ValueError(
            f"{encoding}: the leaves of params.{side} must have shapes {shapes}, got {[*got.values()]}{names}"
        )


def _shapes_by_path(tree: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): tuple(jnp.shape(leaf)) for path, leaf in leaves}


def _is_model(n: int) -> bool:
    return n % (MODEL // 8) == 0 and n > 0


def _fits(got: tuple[int, ...], made: tuple[int, ...] | None) -> bool:
    return (
        made is not None
        and len(got) == len(made)
        and all(n == m or _is_model(m) for n, m in zip(got, made, strict=True))
    )


def _allowed(mask: Mask, B: int, T: int, S: int) -> ArrayLike | None:
    if mask.allowed is None:
        return None
    allowed = mask.allowed if isinstance(mask.allowed, jax.Array) else np.asarray(mask.allowed)
    if allowed.shape not in ((T, S), (B, T, S)):
        raise ValueError(f"mask.allowed must have shape {(T, S)} or {(B, T, S)}, got {allowed.shape}")
    if allowed.dtype != bool:
        raise ValueError(f"mask.allowed must be boolean, got {allowed.dtype}")
    return allowed


def length_of(keys: Keys, given: Any = None) -> Any:
    """The length that was given, or max(position of a valid key) + 1, per example; a NumPy scalar where everything is known.

    Raises ValueError for positions with several axes, or with a row for each part of a composition or each head.
    """
    if not isinstance(keys.pos, Positions) or keys.pos.lead > 1 or keys.pos.axes:
        raise ValueError("an encoding that depends on the length needs positions [S] or [B, S], with one axis")
    if given is not None:
        return given
    k_pos = keys.pos.values
    if keys.valid is None and isinstance(k_pos, np.ndarray):
        return k_pos.max(-1) + 1
    k_pos = jnp.asarray(k_pos)
    if keys.valid is not None:
        shape = jnp.broadcast_shapes(k_pos.shape, keys.valid.shape)
        hidden = jnp.asarray(0, k_pos.dtype)
        k_pos = jnp.where(jnp.broadcast_to(keys.valid, shape), jnp.broadcast_to(k_pos, shape), hidden)
    return k_pos.max(-1) + 1


def nan_marks(*arrays: Float[Array, "*axes _"]) -> Float[Array, "*axes"]:
    """0, or NaN where a vector has a number that is not finite in any of the arrays: sums of x - x, which compile to vector
    instructions where booleans do not.
    """
    dtype = compute_dtype(*arrays)
    rows = (jax.lax.stop_gradient(x).astype(dtype) for x in arrays)
    return functools.reduce(jnp.add, ((x - x).sum(-1) for x in rows))


def marked(x: Float[Array, "*axes H"], marks: Float[Array, "*axes"]) -> Float[Array, "*axes H"]:
    """x, or NaN as a whole where a vector is marked."""
    return x + marks[..., None].astype(x.dtype)


def nan_where(flags: Bool[Array, "*axes"], dtype: jnp.dtype) -> Float[Array, "*axes"]:
    """NaN where a flag is set, and 0 elsewhere."""
    # The NaN is computed, because on a CPU XLA folds the exponential of a constant one into an arbitrary number.
    return 0 * jnp.sqrt(-flags.astype(dtype))
