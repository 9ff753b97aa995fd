"""From the arguments of `attend` to one checked problem that every implementation solves.

All checks of user input live here. The result has a fixed layout: queries [B,K,G,T,h], keys and values [B,K,S,.],
mapped by the encoding, in float32 (or float64), with non-finite entries replaced by 0 and remembered in `bad`, so that
a NaN or Inf reaches exactly the rows that see it. Arrays along T or S may lack the batch axis; they stay without it.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.masks import Mask, Span
from attnjax.attention.products import once
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.concrete import concrete
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, Num, PyTree, compute_dtype

INT32 = np.iinfo(np.int32)


class Rows(NamedTuple):
    """Everything that runs along the queries."""

    q: Float[Array, "B K G T h"]
    bad: Bool[Array, "B K G T"]
    pos: Num[ArrayLike, "*B T"]
    index: Int[ArrayLike, "*B T"]
    segments: Int[ArrayLike, "*B T"] | None


class Cols(NamedTuple):
    """Everything that runs along the keys."""

    k: Float[Array, "B K S h"]
    v: Float[Array, "B K S H"]
    bad: Bool[Array, "B K S"]
    pos: Num[ArrayLike, "*B S"]
    index: Int[ArrayLike, "*B S"]
    segments: Int[ArrayLike, "*B S"] | None
    valid: Bool[ArrayLike, "*B S"]


class Problem(NamedTuple):
    """One attention to compute. `head` leaves lead with [K, G]; `dtype` is that of the caller's queries."""

    encoding: PositionEncoding
    span: Span
    rows: Rows
    cols: Cols
    head: PyTree
    shared: PyTree
    scale: Float[ArrayLike, ""]
    allowed: Bool[ArrayLike, "*B T S"] | None
    dropout: Any
    dtype: Any


class Keys(NamedTuple):
    """Keys and values with what the mask needs to know about them: as they come from the caller, [B,S,K,H], or from a cache,
    finite and in the layout of `Cols`, with the flags `bad`. `lost`: tokens are missing, and every row becomes NaN.
    """

    k: Float[Array, "B S K H"] | Float[Array, "B K S h"]
    v: Float[Array, "B S K H"] | Float[Array, "B K S H"]
    pos: ArrayLike | None
    index: ArrayLike | None
    valid: ArrayLike | None
    bad: Bool[Array, "B K S"] | None = None
    mapped: bool = False
    length: Any = None
    lost: Bool[Array, ""] | None = None

    def as_given(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Types and shapes of keys and values in the caller's order of axes."""
        ours = lambda x: x.shape if self.bad is None else (x.shape[0], x.shape[2], x.shape[1], x.shape[3])
        k, v = (jax.ShapeDtypeStruct(ours(x), x.dtype) for x in (self.k, self.v))
        return k, v


def check_shapes(q: Array, k: Array, v: Array, *, mapped: bool = False) -> None:
    """Refuse arrays that are not q[B,T,N,H], k[B,S,K,H], v[B,S,K,H] of one floating type with N a multiple of K."""
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


def positions(name: str, pos: ArrayLike | None, default: ArrayLike, batch: int, length: int) -> ArrayLike:
    """Positions as int32 or float32, [length] or [batch, length]. NumPy stays NumPy: its values are known.

    Raises ValueError for a wrong shape, for integers beyond int32, and for 16-bit floats, in which positions collide.
    """
    pos = along(name, default if pos is None else pos, batch, length)
    assert pos is not None
    if jnp.issubdtype(pos.dtype, jnp.integer):
        return _int32(name, pos)
    if pos.dtype in (jnp.bfloat16, jnp.float16) or not jnp.issubdtype(pos.dtype, jnp.floating):
        raise ValueError(f"{name} must be integers or float32 (16-bit floats collide past 256), got {pos.dtype}")
    if isinstance(pos, np.ndarray) and not np.all(np.abs(pos) < 2.0**31):
        raise ValueError(f"{name} must be finite and fit int32 (|position| < 2^31), got {pos}")
    return pos.astype(np.float32)


def integers(name: str, array: ArrayLike | None, batch: int, length: int) -> ArrayLike | None:
    """Indices and segments as int32, [length] or [batch, length]. Raises ValueError for other types and values."""
    array = along(name, array, batch, length)
    return None if array is None else _int32(name, array)


def _int32(name: str, array: ArrayLike) -> ArrayLike:
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"{name} must be integers, got {array.dtype}")
    values = None if array.dtype == np.int32 else concrete(array)
    if values is not None and not INT32.min <= values.min() <= values.max() <= INT32.max:
        raise ValueError(f"{name} must fit int32 (|value| < 2^31), got values {values.min()}..{values.max()}")
    return array.astype(np.int32)


def prepare(
    q: Array, keys: Keys, encoding: PositionEncoding, params: EncodingParams | None, q_pos, mask: Mask, scale, dropout
) -> Problem:
    """Check everything, map queries and keys by the encoding, and lay the arrays out."""
    k, v = keys.as_given()
    check_shapes(q, k, v, mapped=keys.mapped)
    (B, T, N, H), (S, K) = q.shape, k.shape[1:3]
    sizes = Sizes(model=N * H, heads=N, kv_heads=K, head=H)
    encoding.check(sizes, causal=mask.span.causal)
    params = check_params(encoding, params, sizes)
    q_index = integers("mask.q_index", np.arange(T) if mask.q_index is None else mask.q_index, B, T)
    k_index = np.arange(S) if keys.index is None else keys.index
    k_index = integers("mask.k_index", k_index if mask.k_index is None else mask.k_index, B, S)
    q_pos = positions("q_pos", q_pos, q_index, B, T)
    k_pos = positions("k_pos", keys.pos, k_index, B, S)
    if encoding.has("map_q", "map_k"):
        encoding.check_positions(q_pos)
        encoding.check_positions(k_pos)
    valid = _valid(mask, keys, B, S)
    dtype = compute_dtype(q, keys.k, keys.v)
    (q_mapped, bad_q), (k, v, bad_k) = _map(q, keys, encoding, params, q_pos, k_pos, valid, dtype)
    # What no hook of scores reads (a table of embeddings) must not travel through the loops over tiles.
    bound = encoding.bind(params, N, None) if encoding.has("bias", "score") else EncodingParams()
    bad_q = bad_q if keys.lost is None else bad_q | keys.lost
    rows = Rows(q_mapped, bad_q, q_pos, q_index, integers("mask.q_segments", mask.q_segments, B, T))
    segments = integers("mask.k_segments", mask.k_segments, B, S)
    cols = Cols(k, v, bad_k, k_pos, k_index, segments, np.ones(S, bool) if valid is None else valid)
    chex.assert_shape(rows.q, (B, K, N // K, T, None))
    head = jax.tree.map(lambda leaf: jnp.reshape(leaf, (K, N // K, *leaf.shape[1:])), bound.head)
    scale, allowed = as_scale(scale, H, dtype), _allowed(mask, B, T, S)
    return Problem(encoding, mask.span, rows, cols, head, bound.shared, scale, allowed, dropout, q.dtype)


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
    """The parameters, or empty ones where nothing is learned.

    Raises ValueError where they are missing, or of other shapes than `init` makes; the model dimension is not known here.
    """
    if params is None:
        if encoding.learns:
            raise ValueError(f"{encoding} learns parameters: pass params=encoding.init(key, sizes), got params=None")
        return EncodingParams()
    if not isinstance(params, EncodingParams):
        raise ValueError(f"{encoding}: params must be EncodingParams as made by init, got {type(params).__name__}")
    if encoding.learns or jax.tree.leaves(params):
        for side, given, made in zip(params._fields, params, _shapes(encoding, sizes), strict=True):
            got = [jnp.shape(leaf) for leaf in jax.tree.leaves(given)]
            if len(got) != len(made) or not all(map(_fits, got, made)):
                raise ValueError(f"{encoding}: the leaves of params.{side} must have shapes {made}, got {got}")
    return params


def _shapes(encoding: PositionEncoding, sizes: Sizes) -> tuple[list[tuple[int | str, ...]], ...]:
    """Shapes of the leaves of `head` and of `shared`, with "D" for what depends on the model dimension."""
    make = lambda width: jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes._replace(model=width)))
    two_widths = zip(make(2 * sizes.model), make(4 * sizes.model), strict=True)
    one = lambda a, b: tuple(m if m == n else "D" for m, n in zip(a.shape, b.shape, strict=True))
    return tuple(list(map(one, jax.tree.leaves(a), jax.tree.leaves(b))) for a, b in two_widths)


def _fits(got: tuple[int, ...], made: tuple[int | str, ...]) -> bool:
    return len(got) == len(made) and all(m in (n, "D") for n, m in zip(got, made, strict=True))


def _allowed(mask: Mask, B: int, T: int, S: int) -> ArrayLike | None:
    if mask.allowed is None:
        return None
    allowed = mask.allowed if isinstance(mask.allowed, jax.Array) else np.asarray(mask.allowed)
    if allowed.shape not in ((T, S), (B, T, S)):
        raise ValueError(f"mask.allowed must have shape {(T, S)} or {(B, T, S)}, got {allowed.shape}")
    if allowed.dtype != bool:
        raise ValueError(f"mask.allowed must be boolean, got {allowed.dtype}")
    return allowed


def _valid(mask: Mask, keys: Keys, B: int, S: int) -> ArrayLike | None:
    ours, theirs = along("mask.k_valid", mask.k_valid, B, S), keys.valid
    if ours is not None and ours.dtype != bool:
        raise ValueError(f"mask.k_valid must be boolean, got {ours.dtype}")
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    return jnp.broadcast_to(ours, (B, S)) & jnp.broadcast_to(theirs, (B, S))


def _map(q, keys: Keys, encoding, params, q_pos, k_pos, valid, dtype) -> tuple[tuple, tuple]:
    """Apply map_q and map_k: ((q, bad), (k, v, bad)) in the layout of `Rows` and `Cols`."""
    B, T, N, H = q.shape
    k, v = keys.k.astype(dtype), keys.v.astype(dtype)
    # What was given and what the encoding makes of it are asked together: each question reads everything once.
    asked_k, bad_k = [], keys.bad
    if bad_k is None:
        asked_k = [k, v] = [x.transpose(0, 2, 1, 3) for x in (k, v)]
        k, v = finite(k), finite(v)
    K = k.shape[1]
    asked_q = [q.reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4).astype(dtype)]
    q = finite(asked_q[0])
    if encoding.has("map_q", "map_k"):
        length = _length(k_pos, valid, keys.length) if encoding.length_dependent else None
        q, k = _map_heads(encoding, params, N, q, k, q_pos, k_pos, length, keys.mapped)
        asked_q.append(once(q))
        q = finite(asked_q[-1])
    if encoding.has("map_k") and not keys.mapped:
        asked_k.append(once(k))
        k = finite(asked_k[-1])
    if asked_k:
        bad_k = flawed(*asked_k) if bad_k is None else bad_k | flawed(*asked_k)
    return (q, flawed(*asked_q)), (k, v, bad_k)


def _map_heads(encoding, params, heads, q, k, q_pos, k_pos, length, mapped):
    """The maps of one head of one example, over groups, key heads and batch."""

    def example(q, k, q_pos, k_pos, length):
        bound = encoding.bind(params, heads, length)
        head = jax.tree.map(lambda leaf: jnp.reshape(leaf, (*q.shape[:2], *leaf.shape[1:])), bound.head)
        one = jax.vmap(jax.vmap(lambda head, q: encoding.map_q(head, bound.shared, q, q_pos)))
        return one(head, q), k if mapped else jax.vmap(lambda k: encoding.map_k(bound.shared, k, k_pos))(k)

    axes = (0, 0, batch_axis(q_pos, 2), batch_axis(k_pos, 2), batch_axis(length, 1))
    return jax.vmap(example, in_axes=axes)(q, k, q_pos, k_pos, length)


def _length(k_pos: ArrayLike, valid: ArrayLike | None, known: Any = None) -> Any:
    """max(position of a valid key) + 1, per example; a NumPy scalar where everything is known."""
    if known is not None:
        return known
    if valid is None and isinstance(k_pos, np.ndarray):
        return k_pos.max(-1) + 1
    k_pos = jnp.asarray(k_pos)
    if valid is not None:
        shape = jnp.broadcast_shapes(k_pos.shape, valid.shape)
        hidden = jnp.asarray(0, k_pos.dtype)
        k_pos = jnp.where(jnp.broadcast_to(valid, shape), jnp.broadcast_to(k_pos, shape), hidden)
    return k_pos.max(-1) + 1


def batch_axis(array: Any, ndim: int) -> int | None:
    """The `in_axes` of an array that may lack its batch axis."""
    return None if array is None or np.ndim(array) < ndim else 0


def finite(x: Float[Array, "*axes H"]) -> Float[Array, "*axes H"]:
    """x with non-finite numbers set to 0."""
    return jnp.where(jnp.isfinite(x), x, jnp.zeros((), x.dtype))


def flawed(*arrays: Float[Array, "*axes H"]) -> Bool[Array, "*axes"]:
    """Which vectors have a number that is not finite, in any of the arrays, which may differ in H."""
    widths: dict[int, Array] = {}
    for x in arrays:
        fine = jnp.isfinite(x)
        widths[x.shape[-1]] = widths[x.shape[-1]] & fine if x.shape[-1] in widths else fine
    return functools.reduce(jnp.logical_or, (~fine.all(-1) for fine in widths.values()))
