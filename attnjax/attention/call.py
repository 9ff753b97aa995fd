"""From the arguments of `attend` to one checked record that every implementation takes.

Checks of user input are here. In the record every array leads with [B or 1, K or 1, G or 1], and an axis of size 1 serves all
examples or heads; tokens lie on axis 3. 16-bit arrays stay so. Queries and keys are mapped by the encoding, and of its parts
those that act on logits remain.
"""

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.call_positions import check_positions, of_parts
from attnjax.attention.hooks import by_head, mapped, of_keys
from attnjax.attention.masks import Mask, Span, from_first_valid
from attnjax.positions.base import PositionEncoding, Sizes, resolve
from attnjax.positions.checks import concrete, is_array, validate_range
from attnjax.positions.compose import each, parts_of
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, Key, compute_dtype


class Rows(NamedTuple):
    """The arrays that run along the queries; `pos` has one entry for each part that acts on logits."""

    q: Float[Array, "B K G T h"]
    pos: tuple[ArrayLike, ...]
    index: Int[ArrayLike, "b 1 1 T"]
    segments: Int[ArrayLike, "b 1 1 T"] | None


class Cols(NamedTuple):
    """The arrays that run along the keys."""

    k: Float[Array, "B K 1 S h"]
    v: Float[Array, "B K 1 S H"]
    pos: tuple[ArrayLike, ...]
    index: Int[ArrayLike, "b 1 1 S"]
    segments: Int[ArrayLike, "b 1 1 S"] | None
    valid: Bool[ArrayLike, "b 1 1 S"]


class Ring(NamedTuple):
    """A mesh axis of `size` devices with `keys` keys each. Indices, positions and validity of keys are not sent where they
    follow from the number of a device.
    """

    name: str
    size: int
    keys: int
    default_index: bool
    default_pos: bool
    all_valid: bool


class Call(NamedTuple):
    """One attention to compute. `encodings` are the parts that act on logits; `dtype` is the type of the caller's queries, and
    `compute_dtype` that of logits, softmax and sums: float32, or float64 where an input is.
    """

    encodings: tuple[PositionEncoding, ...]
    params: tuple[dict, ...]
    rows: Rows
    cols: Cols
    span: Span
    scale: Float[ArrayLike, ""]
    sink: Float[Array, "1 K G 1"] | None
    allowed: Bool[ArrayLike, "b 1 1 T S"] | None
    dropout: "Dropout | None"
    dtype: Any
    compute_dtype: Any
    ring: Ring | None
    overflown: Bool[Array, ""] | None


class Source(NamedTuple):
    """Keys as a caller or a cache hands them over, and where the queries stand among them.

    `pos`, `q_pos`: positions of a cache, one entry per part in the layout of `Call`; None for keys that are not mapped yet.
    `overflown`: whether a cache has lost tokens, so that the result is NaN.
    """

    k: Float[Array, "B K 1 S h"]
    v: Float[Array, "B K 1 S H"]
    index: Int[ArrayLike, " S"]
    q_index: Int[ArrayLike, " T"]
    valid: Bool[ArrayLike, "*B S"] | None = None
    pos: tuple[ArrayLike, ...] | None = None
    q_pos: tuple[ArrayLike, ...] | None = None
    overflown: Bool[Array, ""] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """Drops attention weights with probability `rate`; the dense implementation serves it.

    Raises ValueError unless 0 <= rate < 1 and `key` is a typed PRNG key.

    Example:
        >>> from attnjax import Dropout
        >>> Dropout(jax.random.key(0), rate=0.1).rate
        0.1
    """

    key: Key[Array, ""]
    rate: float = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        if not isinstance(self.rate, int | float) or not 0 <= self.rate < 1:
            raise ValueError(f"Dropout: rate must be in [0, 1), got {self.rate!r}")
        # JAX rebuilds a tree with objects that are no arrays in place of the key.
        if (is_array(self.key) and not jnp.issubdtype(self.key.dtype, jax.dtypes.prng_key)) or isinstance(
            self.key, int
        ):
            raise ValueError(f"Dropout: key must be a typed PRNG key, jax.random.key(seed), got {self.key!r}")


def prepare(
    q: Float[Array, "B T N H"],
    source: Source,
    encoding: PositionEncoding,
    params: Any,
    q_pos: Any,
    k_pos: Any,
    mask: Mask,
    scale: Any,
    sink: Any,
    dropout: Dropout | None,
    ring: Ring | None,
    length: int | None,
) -> Call:
    """Returns the record of a call: everything checked, queries and keys mapped by the encoding, arrays laid out."""
    (B, T, N, H), (K, S) = q.shape, (source.k.shape[1], source.k.shape[3])
    sizes = Sizes(model=N * H, heads=N, kv_heads=K, head_dim=H)
    chex.assert_shape([source.k, source.v], (B, K, 1, S, None))
    dtype = compute_dtype(q, source.k, source.v)
    rows = Rows(
        q=q.astype(dtype if dtype == jnp.float64 else q.dtype).reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4),
        pos=(),
        index=along("mask.q_index", source.q_index if mask.q_index is None else mask.q_index, B, T),
        segments=along("mask.q_segments", mask.q_segments, B, T),
    )
    cols = Cols(
        k=source.k if dtype == jnp.float32 else source.k.astype(dtype),
        v=source.v if dtype == jnp.float32 else source.v.astype(dtype),
        pos=(),
        index=along("mask.k_index", source.index if mask.k_index is None else mask.k_index, B, S),
        segments=along("mask.k_segments", mask.k_segments, B, S),
        valid=_valid(mask, source, B, S),
    )
    if mask.k_valid is not None:
        # 0 * NaN would reach the rows that do not see a hidden key.
        k, v = (jnp.where(jnp.asarray(cols.valid)[..., None], x, jnp.zeros((), x.dtype)) for x in (cols.k, cols.v))
        cols = cols._replace(k=k, v=v)
    pos = (
        of_parts("q_pos", q_pos, source.q_pos, encoding, rows.index, rows.segments, sizes, B),
        of_parts("k_pos", k_pos, source.pos, encoding, cols.index, cols.segments, sizes, B),
    )
    length = check_length(length, S if ring is None else S * ring.size, encoding, mask)
    rows, cols, encodings, own = _encoded(
        encoding, params, pos, rows, cols, mask, sizes, length, cached=source.pos is not None
    )
    if mask.span.first and mask.k_index is None and not all_true(cols.valid):
        start = from_first_valid(cols.index, cols.valid, None if ring is None else ring.name)
        rows, cols = rows._replace(index=rows.index - start), cols._replace(index=cols.index - start)
    return Call(
        encodings,
        own,
        rows,
        cols,
        mask.span,
        as_scale(scale, H, dtype),
        _sink(sink, N, K, dtype),
        _allowed(mask, B, T, S),
        dropout,
        q.dtype,
        dtype,
        ring,
        source.overflown,
    )


def _encoded(
    encoding: PositionEncoding,
    params: Any,
    pos: tuple[tuple[ArrayLike, ...], tuple[ArrayLike, ...]],
    rows: Rows,
    cols: Cols,
    mask: Mask,
    sizes: Sizes,
    length: int,
    *,
    cached: bool,
) -> tuple[Rows, Cols, tuple[PositionEncoding, ...], tuple[dict, ...]]:
    """Queries and keys after the maps of every part, and the parts that act on logits with their parameters and positions.

    `pos` are the positions of queries and of keys, for each part; keys that are `cached` have been mapped.
    """
    dtype, parts = compute_dtype(rows.q, cols.k, cols.v), parts_of(encoding)
    found, turned = [], False
    for part, own, q_at, k_at in zip(parts, each("params", encoding, params), *pos, strict=True):
        if not part.has("angle", "map_q", "map_k", "bias", "score"):
            if part.has("embed") and len(parts) == 1:
                raise ValueError(
                    f"{part} acts on the embeddings alone: add it to the input of the model with attnjax.embed"
                )
            continue
        if part.causal_only and not mask.span.causal:
            raise ValueError(f"{part} {part.causal_only}, so it needs a causal mask; pass Mask(causal=True)")
        if rows.q.dtype == jnp.float16 and not part.float16:
            raise ValueError(f"{part} makes queries and keys that float16 does not hold; use bfloat16 or float32")
        check_positions(part, q_at, q_at if cached else k_at)
        p = by_head(part, resolve(part, own, sizes, length), sizes, dtype)
        if part.has("angle", "map_q"):
            rows, turned = rows._replace(q=mapped(part, "map_q", p, rows.q, q_at, dtype)), True
        if part.has("angle", "map_k") and not cached:
            if k_at.shape[2] > 1:
                rows_of = f"a row for each of {sizes.heads} query heads"
                raise ValueError(
                    f"k_pos of {part} has {rows_of}, but keys are mapped once per key head: "
                    f"pass [B, {sizes.kv_heads}, {k_at.shape[3]}]"
                )
            cols, turned = cols._replace(k=mapped(part, "map_k", of_keys(part, p), cols.k, k_at, dtype)), True
        if part.has("bias", "score"):
            found.append((part, p, q_at, k_at))
    if rows.q.shape[-1] != cols.k.shape[-1]:
        widths = f"{rows.q.shape[-1]} and {cols.k.shape[-1]}"
        raise ValueError(f"{encoding}: map_q and map_k must return the same number of channels, got {widths}")
    if turned:
        # Without a barrier XLA:CPU fuses the maps into each product that reads their result, and computes them again there.
        q, k = jax.lax.optimization_barrier((rows.q, cols.k))
        rows, cols = rows._replace(q=q), cols._replace(k=k)
    encodings, own, of_rows, of_cols = zip(*found, strict=True) if found else ((), (), (), ())
    return rows._replace(pos=of_rows), cols._replace(pos=of_cols), encodings, own


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
    array = array if is_array(array) else np.asarray(array)
    if array.shape not in ((n,), (B, n)):
        raise ValueError(f"{name} must have shape ({n},) or ({B}, {n}), got {array.shape}")
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"{name} must be integers, got {array.dtype}")
    validate_range(name, array)
    return array.astype(np.int32).reshape(-1, 1, 1, n)


def all_true(valid: ArrayLike) -> bool:
    """Returns whether every key is known to be valid."""
    return isinstance(valid, np.ndarray) and bool(valid.all())


def _valid(mask: Mask, source: Source, B: int, S: int) -> Bool[ArrayLike, "b 1 1 S"]:
    ours = mask.k_valid if mask.k_valid is None or is_array(mask.k_valid) else np.asarray(mask.k_valid)
    if ours is not None and (ours.shape not in ((S,), (B, S)) or ours.dtype != bool):
        raise ValueError(f"mask.k_valid must be boolean ({S},) or ({B}, {S}), got {ours.dtype}{ours.shape}")
    both = [x.reshape(-1, 1, 1, S) for x in (ours, source.valid) if x is not None]
    return both[0] & both[1] if len(both) == 2 else both[0] if both else np.ones((1, 1, 1, S), bool)


def _allowed(mask: Mask, B: int, T: int, S: int) -> Bool[ArrayLike, "b 1 1 T S"] | None:
    if mask.allowed is None:
        return None
    allowed = mask.allowed if is_array(mask.allowed) else np.asarray(mask.allowed)
    if allowed.shape not in ((T, S), (B, T, S)) or allowed.dtype != bool:
        raise ValueError(f"mask.allowed must be boolean {(T, S)} or {(B, T, S)}, got {allowed.dtype}{allowed.shape}")
    return allowed.reshape(-1, 1, 1, T, S)


def _sink(sink: Any, N: int, K: int, dtype: jnp.dtype) -> Float[Array, "1 K G 1"] | None:
    """The logits of the sinks. Raises ValueError unless there is one floating number per query head."""
    if sink is None:
        return None
    shape, kind = jnp.shape(sink), getattr(sink, "dtype", None)
    if shape != (N,) or kind is None or not jnp.issubdtype(kind, jnp.floating):
        raise ValueError(f"sink must be floating numbers ({N},), one logit per query head, got {kind}{list(shape)}")
    return jnp.asarray(sink, dtype).reshape(1, K, N // K, 1)


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
