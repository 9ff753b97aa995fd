"""From the arguments of `attend` to one checked record that every implementation takes.

Checks of user input are here. 16-bit arrays stay so. Queries and keys are mapped by the encoding, and of its parts those that
act on logits remain.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.cache import KVCache
from attnjax.attention.call_positions import check_positions, indices_of_device, of_parts
from attnjax.attention.hooks import by_head, mapped, of_keys
from attnjax.attention.masks import Mask, all_true, check_mask, from_first_valid
from attnjax.attention.record import Call, Cols, Dropout, Rows, Source
from attnjax.positions.base import IN_ATTENTION, NoPE, PositionEncoding, Sizes, resolve, validate_encoding
from attnjax.positions.checks import concrete, validate_array, validate_range
from attnjax.positions.compose import each, joined, parts_of
from attnjax.typing import Array, ArrayLike, Bool, Float, PyTree, compute_dtype


def prepare(  # noqa: PLR0913, the keywords of attend that say what is computed
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    *,
    encoding: PositionEncoding = NoPE(),
    params: PyTree = None,
    q_pos: PyTree = None,
    k_pos: PyTree = None,
    mask: Mask = Mask(),
    scale: Any = None,
    sink: Array | None = None,
    cache: KVCache | None = None,
    dropout: Dropout | None = None,
    axis_name: str | None = None,
    length: int | None = None,
) -> Call:
    """Returns the record of a call of `attend`: all checked, arrays laid out, queries and keys mapped by the encoding."""
    validate_encoding("encoding", encoding)
    check_mask(mask)
    if not (dropout is None or isinstance(dropout, Dropout)):
        raise ValueError(f"dropout must be Dropout(key, rate) or None, got {dropout!r}")
    if cache is None:
        devices = 1 if axis_name is None else _devices(axis_name, mask, default_pos=k_pos is None)
        source = _of_arrays(q, k, v, mask, axis_name)
    else:
        _check_cached(cache, encoding, axis_name, (k, v, k_pos))
        source, devices, length = cache.read(q, mask), 1, cache.length if length is None else length
        # A single query at the end of the cache has no key ahead of it: its mask is causal whether or not it says so.
        if q.shape[1] == 1 and mask.q_index is None and mask.k_index is None:
            mask = dataclasses.replace(mask, causal=True)
    (B, T, N, H), (K, S) = q.shape, (source.k.shape[1], source.k.shape[3])
    sizes, dtype = Sizes(model=N * H, heads=N, kv_heads=K, head_dim=H), compute_dtype(q, source.k, source.v)
    length = check_length(length, S * devices, encoding, mask)
    rows, cols = _laid_out(q, source, mask, dtype)
    at_rows = of_parts("q_pos", q_pos, source.q_pos, encoding, rows.index, rows.segments, sizes, B)
    at_cols = of_parts("k_pos", k_pos, source.pos, encoding, cols.index, cols.segments, sizes, B)
    if mask.span.first and mask.k_index is None and not all_true(cols.valid):
        start = from_first_valid(cols.index, cols.valid, axis_name)
        rows, cols = rows._replace(index=rows.index - start), cols._replace(index=cols.index - start)
    call = Call(
        rows=rows._replace(pos=at_rows),
        cols=cols._replace(pos=at_cols),
        params=each("params", encoding, params),
        scale=as_scale(scale, H, dtype),
        sink=_sink(sink, N, K, dtype),
        allowed=_allowed(mask, B, T, S),
        dropout=dropout,
        overflown=source.overflown,
        encodings=parts_of(encoding),
        span=mask.span,
        dtype=q.dtype,
        compute_dtype=dtype,
        axis_name=axis_name,
    )
    return _encoded(call, sizes, length, cached=cache is not None)


def _of_arrays(q: Any, k: Any, v: Any, mask: Mask, axis_name: str | None) -> Source:
    """Keys and values of the caller, which are those of this device where the tokens are spread over devices."""
    if k is None or v is None:
        raise ValueError("attend needs k and v, or a cache")
    check_shapes(q, k, v)
    T, S = q.shape[1], k.shape[1]
    if axis_name is None:
        check_alignment(mask, T, S)
    k, v = (x.transpose(0, 2, 1, 3)[:, :, None] for x in (k, v))
    return Source(k, v, indices_of_device(axis_name, S), indices_of_device(axis_name, T))


def _check_cached(cache: KVCache, encoding: PositionEncoding, axis_name: str | None, given: tuple) -> None:
    if axis_name is not None:
        raise ValueError("a cache holds the keys of one device: attend without axis_name, or pass k and v")
    if any(one is not None for one in given):
        raise ValueError("with a cache, k, v and k_pos come from it: append them, and pass only the cache")
    if cache.encoding != encoding:
        raise ValueError(f"the cache holds keys for {cache.encoding}, attend got encoding={encoding}")


def _devices(axis_name: Any, mask: Mask, *, default_pos: bool) -> int:
    """The devices over which an axis of the mesh spreads the tokens. Raises ValueError for calls that cannot be spread."""
    if not isinstance(axis_name, str):
        raise ValueError(f"axis_name must be the name of one axis of a mesh, got {axis_name!r}")
    if mask.allowed is not None:
        raise ValueError("mask.allowed is a table of all queries and keys, which no device holds with axis_name")
    if mask.k_segments is not None and default_pos:
        raise ValueError("positions restart at each document, which may begin on another device: pass q_pos and k_pos")
    try:
        return jax.lax.axis_size(axis_name)
    except NameError:
        raise ValueError(
            f"axis_name={axis_name!r} is no axis of a mesh here: call attend inside jax.shard_map over that axis"
        ) from None


def _laid_out(q: Float[Array, "B T N H"], source: Source, mask: Mask, dtype: Any) -> tuple[Rows, Cols]:
    """The arrays of queries and keys in the layout of the record, still without positions."""
    (B, T, N, H), (K, S) = q.shape, (source.k.shape[1], source.k.shape[3])
    chex.assert_shape([source.k, source.v], (B, K, 1, S, None))
    q, k, v = (x.astype(dtype) if dtype == jnp.float64 else x for x in (q, source.k, source.v))
    valid = _valid(mask, source, B, S)
    if mask.k_valid is not None:
        # 0 * NaN would reach the rows that do not see a hidden key.
        k, v = (jnp.where(jnp.asarray(valid)[..., None], x, jnp.zeros((), x.dtype)) for x in (k, v))
    rows = Rows(
        q=q.reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4),
        pos=(),
        index=along("mask.q_index", source.q_index if mask.q_index is None else mask.q_index, B, T),
        segments=along("mask.q_segments", mask.q_segments, B, T),
    )
    cols = Cols(
        k=k,
        v=v,
        pos=(),
        index=along("mask.k_index", source.index if mask.k_index is None else mask.k_index, B, S),
        segments=along("mask.k_segments", mask.k_segments, B, S),
        valid=valid,
    )
    return rows, cols


def _encoded(call: Call, sizes: Sizes, length: int, *, cached: bool) -> Call:
    """The call with queries and keys mapped by every part, and of the parts those that act on logits.

    Keys that are `cached` have been mapped.
    """
    q, k, acting, turned = call.rows.q, call.cols.k, [], False
    for part, own, q_pos, k_pos in zip(call.encodings, call.params, call.rows.pos, call.cols.pos, strict=True):
        if not part.has(*IN_ATTENTION):
            if part.has("embed") and len(call.encodings) == 1:
                raise ValueError(
                    f"{part} acts on the embeddings alone: add it to the input of the model with attnjax.embed"
                )
            continue
        if part.causal_only and not call.span.causal:
            raise ValueError(f"{part} {part.causal_only}, so it needs a causal mask; pass Mask(causal=True)")
        if q.dtype == jnp.float16 and not part.float16:
            raise ValueError(f"{part} makes queries and keys that float16 does not hold; use bfloat16 or float32")
        check_positions(part, q_pos, q_pos if cached else k_pos)
        p = by_head(part, resolve(part, own, sizes, length), sizes, call.compute_dtype)
        if part.has("angle", "map_q"):
            q, turned = mapped(part, "map_q", p, q, q_pos, call.compute_dtype), True
        if part.has("angle", "map_k") and not cached:
            if k_pos.shape[2] > 1:
                rows_of = f"a row for each of {sizes.heads} query heads"
                raise ValueError(
                    f"k_pos of {part} has {rows_of}, but keys are mapped once per key head: "
                    f"pass [B, {sizes.kv_heads}, {k_pos.shape[3]}]"
                )
            k, turned = mapped(part, "map_k", of_keys(part, p), k, k_pos, call.compute_dtype), True
        if part.has("bias", "score"):
            acting.append((part, p, q_pos, k_pos))
    if q.shape[-1] != k.shape[-1]:
        widths = f"{q.shape[-1]} and {k.shape[-1]}"
        raise ValueError(
            f"{joined(call.encodings)}: map_q and map_k must return the same number of channels, got {widths}"
        )
    if turned:
        # Without a barrier XLA:CPU fuses the maps into each product that reads their result, and computes them again there.
        q, k = jax.lax.optimization_barrier((q, k))
    encodings, params, of_rows, of_cols = zip(*acting, strict=True) if acting else ((), (), (), ())
    rows, cols = call.rows._replace(q=q, pos=of_rows), call.cols._replace(k=k, pos=of_cols)
    return dataclasses.replace(call, rows=rows, cols=cols, encodings=encodings, params=params)


def check_shapes(q: Any, k: Any, v: Any) -> None:
    """Raises ValueError unless arrays are q[B,T,N,H], k[B,S,K,H], v[B,S,K,*] of floating types with N a multiple of K."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim != 4:
            raise ValueError(f"{name} must have 4 axes [batch, length, heads, head], got shape {array.shape}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name} must be of a floating type, got {array.dtype}")
        if 0 in array.shape:
            raise ValueError(f"{name} must have at least one entry along every axis, got shape {array.shape}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"k and v must agree in batch, length and heads, got k {k.shape} and v {v.shape}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must agree in batch and head dimension, got q {q.shape} and k {k.shape}")
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"query heads must be a multiple of key heads, got N={q.shape[2]} and K={k.shape[2]}")


def check_alignment(mask: Mask, T: int, S: int) -> None:
    """Raises ValueError for fewer queries than keys where indices decide and do not say which keys are those of the queries."""
    if T < S and not mask.span.unlimited and mask.q_index is None:
        raise ValueError(
            f"{T} queries and {S} keys under a causal mask or a window: by their indices, 0..{T - 1}, the queries would see "
            f"the first keys, and q_pos does not move the mask. Pass Mask(q_index=), for the last {T} tokens "
            f"arange({S - T}, {S}), or decode with KVCache"
        )


def check_length(length: Any, default: int, encoding: PositionEncoding, mask: Mask) -> int:
    """Returns the number of positions by which encodings choose their constants: the keys of the call unless given.

    Raises ValueError for anything but a positive int, and for packed rows, in which each document has a length of its own.
    """
    if length is None:
        by_length = [part for part in parts_of(encoding) if part.by_length]
        if by_length and mask.k_segments is not None:
            raise ValueError(
                f"{by_length[0]} depends on the length, and packed documents have one each: pass length=, one for all"
            )
        return default
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
        raise ValueError(f"length must be a whole number of at least 1 that is known while tracing, got {length!r}")
    return int(length)


def along(name: str, array: Any, B: int, n: int) -> ArrayLike | None:
    """Returns integers [n] or [B, n] as int32 [b, 1, 1, n]. Raises ValueError for other shapes and types."""
    if array is None:
        return None
    array = validate_array(name, array, np.integer, (n,), (B, n))
    validate_range(name, array)
    return array.astype(np.int32).reshape(-1, 1, 1, n)


def _valid(mask: Mask, source: Source, B: int, S: int) -> Bool[ArrayLike, "b 1 1 S"]:
    valid = np.ones((1, 1, 1, S), bool) if source.valid is None else source.valid.reshape(-1, 1, 1, S)
    if mask.k_valid is None:
        return valid
    return valid & validate_array("mask.k_valid", mask.k_valid, np.bool_, (S,), (B, S)).reshape(-1, 1, 1, S)


def _allowed(mask: Mask, B: int, T: int, S: int) -> Bool[ArrayLike, "b 1 1 T S"] | None:
    if mask.allowed is None:
        return None
    return validate_array("mask.allowed", mask.allowed, np.bool_, (T, S), (B, T, S)).reshape(-1, 1, 1, T, S)


def _sink(sink: Any, N: int, K: int, dtype: jnp.dtype) -> Float[Array, "1 K G 1"] | None:
    if sink is None:
        return None
    return jnp.asarray(validate_array("sink", sink, np.floating, (N,)), dtype).reshape(1, K, N // K, 1)


def as_scale(scale: Any, head: int, dtype: jnp.dtype) -> Float[ArrayLike, ""]:
    """Returns 1/sqrt(H) unless given; NumPy where it is known, so that nothing is differentiated for it.

    Raises ValueError for anything but a finite number or a scalar array.
    """
    if scale is None:
        return np.asarray(head**-0.5, dtype)
    number = scale if isinstance(scale, jax.Array) else np.asarray(scale)
    if number.shape != () or not jnp.issubdtype(number.dtype, jnp.number):
        raise ValueError(f"scale must be a number or a scalar array, got {scale!r}")
    known = concrete(number)
    if known is None:
        return jnp.asarray(number, dtype)
    if not np.isfinite(known):
        raise ValueError(f"scale must be finite, got {scale}")
    return np.asarray(known, dtype)
