"""Decoding: keys and values of the past in arrays of fixed shape, so that nothing recompiles from token to token.

A cache is a plain pytree. `append` writes values, and keys mapped by the encoding; `attend(q, cache=cache)` reads them:

    cache = KVCache.create(batch, capacity, kv_heads, head_dim, encoding=encoding)
    cache = cache.append(k, v, k_pos)                 # one token or a chunk
    out = attend(q, cache=cache, encoding=encoding, mask=Mask(causal=True))

The queries are the last T tokens appended. With a window the cache is a ring: slot = index mod capacity, and a
capacity of window + chunk serves a sequence of any length. Encodings that compute positions from content have them cached with
the keys:

    pos = context_positions(encoding, params, x, pos, sizes, before=cache.last_positions())
    cache = cache.append(k, v, pos)

Arrays lie as attention reads them, so that a decoding step copies nothing as large as the cache: its cost is one pass over the
slots.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.call_positions import check_positions, of_parts
from attnjax.attention.hooks import by_head, mapped, of_keys
from attnjax.attention.masks import Mask, Span
from attnjax.attention.record import Source
from attnjax.positions.base import NoPE, PositionEncoding, Sizes, resolve, validate_encoding
from attnjax.positions.checks import validate_array, validate_integer
from attnjax.positions.compose import Compose, each, parts_of
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, PyTree, compute_dtype


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Mapped keys, values, positions of every part, validity, and how many tokens there were.

    Slots not yet written are not visible. A sequence longer than the capacity of a cache without window is a ValueError
    where the count is known, and NaN where it is traced: never a silently forgotten token. `index` is a NumPy number
    until a transformation traces it, so that eager decoding waits for no device. `length` is the one by which DynamicNTK and
    LongRoPE choose their frequencies.

    Example:
        >>> from attnjax import KVCache, Mask, RoPE, attend
        >>> cache = KVCache.create(batch=1, capacity=8, kv_heads=2, head_dim=4, encoding=RoPE())
        >>> x = jnp.ones((1, 3, 2, 4))
        >>> attend(x, cache=cache.append(x, x), encoding=RoPE(), mask=Mask(causal=True)).shape
        (1, 3, 2, 4)
    """

    k: Float[Array, "B K 1 C h"]
    v: Float[Array, "B K 1 C H"]
    k_pos: tuple[Array, ...]
    valid: Bool[Array, "B C"]
    index: Int[ArrayLike, ""]
    encoding: PositionEncoding = dataclasses.field(metadata={"static": True})
    heads: int = dataclasses.field(metadata={"static": True})
    window: int | tuple[int | None, int | None] | None = dataclasses.field(metadata={"static": True})
    length: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def create(
        cls,
        batch: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        dtype: Any = jnp.float32,
        *,
        heads: int | None = None,
        encoding: PositionEncoding = NoPE(),
        window: int | tuple[int | None, int | None] | None = None,
        length: int | None = None,
    ) -> Self:
        """Returns an empty cache of `capacity` slots for keys and values [batch, ., kv_heads, head_dim].

        `heads`: the query heads, `kv_heads` unless given. `length`: the number of positions that the sequence will have, the
        capacity unless given. Raises ValueError for sizes below 1, a type that cannot hold keys, a ring without room for the
        window and one token, and a ring for an encoding that scores all keys in their order.
        """
        N = kv_heads if heads is None else heads
        length = capacity if length is None else length
        sizes = {"batch": batch, "capacity": capacity, "kv_heads": kv_heads, "head_dim": head_dim, "heads": N}
        validate_integer("KVCache", **sizes, length=length)
        validate_encoding("KVCache: encoding", encoding)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"KVCache: dtype must be a floating type, got {np.dtype(dtype)}")
        if N % kv_heads:
            raise ValueError(f"KVCache: heads must be a multiple of kv_heads={kv_heads}, got {N}")
        left = Mask(window=window).span.left
        whole = [part for part in parts_of(encoding) if part.whole_table]
        if left is not None and whole:
            raise ValueError(
                f"KVCache: {whole[0]} scores all keys in their order, which a ring does not keep: leave window out"
            )
        if left is not None and capacity < left + 1:
            raise ValueError(f"KVCache: a window of {left} needs a capacity of at least {left + 1}, got {capacity}")
        of = Sizes(model=N * head_dim, heads=N, kv_heads=kv_heads, head_dim=head_dim)
        pos = tuple(_empty(part, of, batch, capacity, dtype) for part in parts_of(encoding))
        k = jax.ShapeDtypeStruct((batch, kv_heads, 1, capacity, head_dim), dtype)
        drawn = lambda: encoding.init(jax.random.key(0), of)
        k = jax.eval_shape(lambda k: _mapped(encoding, drawn(), k, pos, of, length), k)
        return cls(
            k=jnp.zeros(k.shape, k.dtype),
            v=jnp.zeros((batch, kv_heads, 1, capacity, head_dim), dtype),
            k_pos=pos,
            valid=jnp.zeros((batch, capacity), bool),
            index=np.zeros((), np.int32),
            encoding=encoding,
            heads=N,
            window=window,
            length=length,
        )

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self.k.shape[3]

    @property
    def span(self) -> Span:
        """The window as (left, right)."""
        return Mask(window=self.window).span

    def append(
        self,
        k: Float[Array, "B T K H"],
        v: Float[Array, "B T K H"],
        k_pos: PyTree = None,
        *,
        params: PyTree = None,
        valid: ArrayLike | None = None,
    ) -> Self:
        """Returns the cache with T more tokens. `k_pos` defaults to the running index; `valid=False` marks padding.

        `params` are the encoding's, needed where `map_k` learns, or reads a constant that they replace. Raises ValueError where
        shapes do not fit, where the tokens exceed the capacity, or where a chunk is too long for the window to survive it in
        the ring.
        """
        B, T = self._check(k, v)
        sizes = Sizes(self.heads * self.v.shape[-1], self.heads, self.v.shape[1], self.v.shape[-1])
        index = self.index + np.arange(T, dtype=np.int32)
        pos = self._new_positions(k_pos, index, sizes, B, T)
        shown = np.ones(T, bool) if valid is None else validate_array("valid", valid, np.bool_, (T,), (B, T))
        shown = jnp.broadcast_to(shown, (B, T))
        k, v = (x.transpose(0, 2, 1, 3)[:, :, None] for x in (k, v))
        if valid is not None:
            # 0 * NaN would reach the rows that do not see a hidden key.
            k, v = (jnp.where(shown[:, None, None, :, None], x, jnp.zeros((), x.dtype)) for x in (k, v))
        k = _mapped(self.encoding, params, k, pos, sizes, self.length)
        new = {"k": k, "v": v, "k_pos": pos, "valid": shown}
        axes = {"k": 3, "v": 3, "k_pos": (3,) * len(pos), "valid": 1}
        held = {name: getattr(self, name) for name in new}
        written = _write(held, new, axes, self.index, ring=self.span.left is not None)
        index = self.index + np.int32(T)
        return dataclasses.replace(
            self, **written, index=index if isinstance(index, jax.Array) else np.asarray(index, np.int32)
        )

    def read(self, q: Float[Array, "B T N H"], mask: Mask) -> Source:
        """Returns the keys, and where the queries q stand: they are the last T tokens, unless the mask says otherwise.

        Raises ValueError if q does not fit, if the mask looks further back than the ring remembers, or for more queries than
        there are tokens, or than the ring has room for beside the window.
        """
        B, _, _, _, H = self.v.shape
        if q.ndim != 4 or (q.shape[0], *q.shape[2:]) != (B, self.heads, H):
            raise ValueError(
                f"q must have shape ({B}, T, {self.heads}, {H}), as the cache was created for, got {q.shape}: "
                "heads= of KVCache.create says how many query heads there are"
            )
        T, left, known = q.shape[1], self.span.left, _known(self.index)
        if known is not None and known < T:
            raise ValueError(
                f"the queries are the last tokens appended: got {T} queries, the cache holds {known} tokens"
            )
        if T + (left or 0) > self.capacity:
            raise ValueError(
                f"{T} queries with window {left} need a capacity of at least {T + (left or 0)}, got {self.capacity}"
            )
        q_index = self.index - T + np.arange(T, dtype=np.int32)
        q_pos = tuple(jnp.take(pos, q_index % self.capacity, axis=3) for pos in self.k_pos)
        slot = np.arange(self.capacity, dtype=np.int32)
        if left is None:
            overflown = None if known is not None else jnp.asarray(self.index > self.capacity)
            valid = self.valid & (slot < self.index)[None]
            return Source(self.k, self.v, slot, q_index, valid, self.k_pos, q_pos, overflown)
        if mask.span.left is None or mask.span.left > left or mask.span.first:
            raise ValueError(
                f"KVCache remembers a window of {left}; the mask must have window <= {left} and no first keys, got {mask}"
            )
        last = self.index - 1
        index = last - (last - slot) % self.capacity
        return Source(self.k, self.v, index, q_index, self.valid & (index >= 0)[None], self.k_pos, q_pos)

    def last_positions(self) -> PyTree:
        """Returns positions of the last token appended, 0 before the first: the `before` of `context_positions`."""
        at = [jnp.take(pos, (self.index - 1) % self.capacity, axis=3) for pos in self.k_pos]
        found = tuple(pos.reshape(pos.shape[0], -1, *pos.shape[3:]) for pos in at)
        return found if isinstance(self.encoding, Compose) else found[0]

    def _check(self, k: Array, v: Array) -> tuple[int, int]:
        (B, K, _, C, H), left, known = self.v.shape, self.span.left, _known(self.index)
        if k.ndim != 4 or k.shape != v.shape or (k.shape[0], *k.shape[2:]) != (B, K, H) or not k.shape[1]:
            raise ValueError(f"k and v must have shape ({B}, T, {K}, {H}) with T >= 1, got k {k.shape} and v {v.shape}")
        T = k.shape[1]
        if left is not None and T + left > C:
            raise ValueError(
                f"a chunk of {T} tokens with window {left} needs a capacity of at least {T + left}, the cache has {C}"
            )
        if left is None and (T if known is None else known + T) > C:
            raise ValueError(f"the cache holds {known or 0} of {C} tokens; {T} more do not fit")
        return B, T

    def _new_positions(self, k_pos: PyTree, index: ArrayLike, sizes: Sizes, B: int, T: int) -> tuple[Array, ...]:
        """Positions of new tokens in the shape in which the cache holds those of every part."""
        given = of_parts("k_pos", k_pos, None, self.encoding, index.reshape(1, 1, 1, T), None, sizes, B)
        found = []
        for part, pos, held in zip(parts_of(self.encoding), given, self.k_pos, strict=True):
            check_positions(part, pos, pos)
            if pos.dtype != held.dtype:
                raise ValueError(f"k_pos is {pos.dtype}, and the cache of {part} holds {held.dtype}")
            if any(n > m for n, m in zip(pos.shape[1:3], held.shape[1:3], strict=True)):
                raise ValueError(f"k_pos has a row per head, {pos.shape}, and the cache of {part} holds {held.shape}")
            found.append(jnp.broadcast_to(jnp.asarray(pos), (*held.shape[:3], T, *held.shape[4:])))
        return tuple(found)


def _known(index: ArrayLike) -> int | None:
    """The count where it is a NumPy number. An array of JAX is not read, because that would wait for the device."""
    return None if isinstance(index, jax.Array) else int(index)


def _empty(part: PositionEncoding, sizes: Sizes, batch: int, capacity: int, dtype: Any) -> Array:
    """Zeros for the positions of a part: whole numbers, or floats with a row per head where it computes them from content."""
    if not part.has("context"):
        return jnp.zeros((batch, 1, 1, capacity, *part.features(sizes)), jnp.int32)
    G = sizes.heads // sizes.kv_heads if part.per_head else 1
    wide = jnp.float64 if np.dtype(dtype) == np.float64 else jnp.float32
    return jnp.zeros((batch, sizes.kv_heads, G, capacity, *part.features(sizes)), wide)


def _mapped(
    encoding: PositionEncoding, params: PyTree, k: Array, pos: tuple, sizes: Sizes, length: int
) -> Float[Array, "B K 1 T h"]:
    """Keys after `map_k` of every part."""
    dtype = compute_dtype(k)
    for part, own, at in zip(parts_of(encoding), each("params", encoding, params), pos, strict=True):
        if part.has("angle", "map_k"):
            p = by_head(part, resolve(part, own, sizes, length), sizes, dtype)
            k = mapped(part, "map_k", of_keys(part, p), k, at, dtype)
    return k


def _write(old: PyTree, new: PyTree, axes: PyTree, index: Int[ArrayLike, ""], *, ring: bool) -> PyTree:
    """The arrays `old` with `new` in the slots from `index` on, which run along `axes`, and around in a ring.

    On a CPU there is a condition around the update: without it XLA writes twice, once for the reader of the slots and once for
    the next step, each time into a copy of the whole array. On an accelerator a condition would cost time.
    """
    capacity, T = old["valid"].shape[1], new["valid"].shape[1]
    around = ring and T > 1
    # An index behind the end of a sequence is clamped to it: that cache gives nothing but NaN from then on.
    start = jnp.asarray(index % capacity if ring and not around else index)

    def put(x: Array, y: Array, axis: int, start: Array) -> Array:
        if not around:
            return jax.lax.dynamic_update_slice_in_dim(x, y.astype(x.dtype), start, axis)
        slots = (start + jnp.arange(T, dtype=jnp.int32)) % capacity
        return x.at[(slice(None),) * axis + (slots,)].set(y.astype(x.dtype))

    update = lambda old, new, start: jax.tree.map(lambda x, y, axis: put(x, y, axis, start), old, new, axes)
    if not isinstance(index, jax.Array):
        return update(old, new, start)
    fits = index >= 0 if ring else index <= capacity - T
    on_condition = lambda *arrays: jax.lax.cond(fits, update, lambda old, new, start: old, *arrays)
    return jax.lax.platform_dependent(old, new, start, cpu=on_condition, default=update)
