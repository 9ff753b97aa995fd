"""Decoding: keys and values of the past in arrays of fixed shape, so that nothing recompiles from token to token.

A cache is a plain pytree. `append` writes values, and keys mapped by the encoding; `attend(q, cache=cache)` reads them:

    cache = KVCache.create(batch, capacity, kv_heads, head, encoding=encoding)
    cache = cache.append(k, v, k_pos)                 # one token or a chunk
    out = attend(q, cache=cache, encoding=encoding, mask=Mask(causal=True))

The queries are the last T tokens appended. With a window the cache is a ring: slot = index mod capacity, and a
capacity of window + chunk serves a sequence of any length. Encodings that depend on the length keep their keys unmapped
and map on reading.

What `append` writes lies as attention reads it, heads before slots, and is finite, with flags where it was not. So a
decoding step copies nothing as large as the cache: its cost is one pass over the slots.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.masks import Mask, Span
from attnjax.attention.problem import Keys, along, batch_axis, check_params, finite, flawed, positions
from attnjax.attention.slots import write
from attnjax.positions.base import EncodingParams, NoPE, PositionEncoding, Sizes
from attnjax.positions.checks import validate_integer
from attnjax.positions.compose import Compose
from attnjax.positions.concrete import concrete
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, Num, compute_dtype


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys (mapped, unless the encoding depends on the length), values, positions, validity, and how many there were.

    Non-finite numbers in k and v are kept as 0; `bad` says which vectors had one, and rows that see those become NaN.
    Slots not yet written are not visible. A sequence longer than the capacity of a cache without window is a ValueError
    where the count is known, and NaN where it is traced: never a silently forgotten token. `length` is the largest
    position of a valid key plus 1, which a ring may have forgotten.
    """

    k: Float[Array, "B K C h"]
    v: Float[Array, "B K C H"]
    bad: Bool[Array, "B K C"]
    k_pos: Num[Array, "B C"]
    valid: Bool[Array, "B C"]
    length: Num[Array, " B"]
    index: Int[Array, ""]
    encoding: PositionEncoding = dataclasses.field(metadata={"static": True})
    window: int | tuple[int | None, int | None] | None = dataclasses.field(metadata={"static": True})

    @classmethod
    def create(
        cls,
        batch: int,
        capacity: int,
        kv_heads: int,
        head: int,
        dtype: Any = jnp.float32,
        *,
        encoding: PositionEncoding = NoPE(),
        window: int | tuple[int | None, int | None] | None = None,
        pos_dtype: Any = jnp.int32,
    ) -> Self:
        """An empty cache of `capacity` slots for keys and values [batch, ., kv_heads, head].

        Raises ValueError for sizes below 1, types that cannot hold keys or positions, or a ring without room for the
        window and one token.
        """
        validate_integer("KVCache", batch=batch, capacity=capacity, kv_heads=kv_heads, head=head)
        _check_types(encoding, dtype, pos_dtype)
        left = Mask(window=window).span.left
        if left is not None and capacity < left + 1:
            raise ValueError(f"KVCache: a window of {left} needs a capacity of at least {left + 1}, got {capacity}")
        width = head if encoding.length_dependent else _mapped_width(encoding, kv_heads, head)
        return cls(
            k=jnp.zeros((batch, kv_heads, capacity, width), dtype),
            v=jnp.zeros((batch, kv_heads, capacity, head), dtype),
            bad=jnp.zeros((batch, kv_heads, capacity), bool),
            k_pos=jnp.zeros((batch, capacity), pos_dtype),
            valid=jnp.zeros((batch, capacity), bool),
            length=jnp.zeros((batch,), pos_dtype),
            index=jnp.zeros((), jnp.int32),
            encoding=encoding,
            window=window,
        )

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self.k.shape[2]

    @property
    def span(self) -> Span:
        """The window as (left, right)."""
        return Mask(window=self.window).span

    def append(
        self,
        k: Float[Array, "B T K H"],
        v: Float[Array, "B T K H"],
        k_pos: ArrayLike | None = None,
        *,
        params: EncodingParams | None = None,
        valid: ArrayLike | None = None,
    ) -> Self:
        """The cache with T more tokens. `k_pos` defaults to the running index; `valid=False` marks padding.

        `params` are the encoding's, needed only where `map_k` learns. Raises ValueError where shapes do not fit, where
        the tokens exceed the capacity, or where a chunk is too long for the window to survive it in the ring.
        """
        B, T = self._check(k, v)
        index = self.index + jnp.arange(T, dtype=jnp.int32)
        k_pos = self._positions(k_pos, index, B, T)
        valid = _booleans(valid, B, T)
        if not self.encoding.length_dependent:
            k = _map_keys(self.encoding, params, k, k_pos)
        k_pos, valid = jnp.broadcast_to(k_pos, (B, T)), jnp.broadcast_to(valid, (B, T))
        ends = jnp.where(valid, k_pos + 1, 0).astype(self.length.dtype)
        k, v = (x.astype(self.k.dtype).swapaxes(1, 2) for x in (k, v))
        new = {"k": finite(k), "v": finite(v), "bad": flawed(k, v), "k_pos": k_pos, "valid": valid}
        return dataclasses.replace(
            self,
            **write({name: getattr(self, name) for name in new}, new, self.index, ring=self.span.left is not None),
            length=jnp.maximum(self.length, ends.max(1)),
            index=self.index + T,
        )

    def read(self, mask: Mask) -> Keys:
        """What `attend` sees: slots, in the order of their index where the encoding walks along the row.

        Raises ValueError if the mask looks further back than the ring remembers.
        """
        left, last, slot = self.span.left, self.index - 1, jnp.arange(self.capacity, dtype=jnp.int32)
        mapped = not self.encoding.length_dependent
        if left is None:
            # A row that is to become NaN must see a key: then all are valid, and the queries stand at the first.
            lost = self._overflown()
            valid = (self.valid & (slot < self.index)[None]) | lost
            return Keys(self.k, self.v, self.k_pos, slot, valid, self.bad, mapped, lost=lost)
        if mask.span.left is None or mask.span.left > left:
            raise ValueError(
                f"KVCache remembers a window of {left}; the mask must have window <= {left}, got {mask.window}"
            )
        index = last - (last - slot) % self.capacity
        valid = self.valid & (index >= 0)[None]
        keys = Keys(self.k, self.v, self.k_pos, index, valid, self.bad, mapped, length=self.length)
        return self._in_order(keys, mask) if self.encoding.has("carry") else keys

    def queries(self, T: int) -> tuple[Int[Array, " T"], Num[Array, "B T"]]:
        """Index and position of the last T tokens appended, which are the queries unless the caller says otherwise.

        Raises ValueError for more queries than there are tokens, or than the ring has room for beside the window.
        """
        left, used = self.span.left, concrete(self.index)
        if used is not None and used < T:
            raise ValueError(
                f"the queries are the last tokens appended: got {T} queries, the cache holds {used} tokens"
            )
        needed = T + (left or 0)
        if needed > self.capacity:
            raise ValueError(
                f"{T} queries with window {left} need a capacity of at least {needed}, got {self.capacity}"
            )
        index = self.index - T + jnp.arange(T, dtype=jnp.int32)
        pos = jnp.take(self.k_pos, index % self.capacity, axis=1)
        return (index if left is not None else jnp.where(self._overflown(), 0, index)), pos

    def _overflown(self) -> Bool[Array, ""]:
        return self.index > self.capacity

    def _check(self, k: Array, v: Array) -> tuple[int, int]:
        B, K, C, H = self.v.shape
        if k.ndim != 4 or k.shape != v.shape or (k.shape[0], *k.shape[2:]) != (B, K, H) or not k.shape[1]:
            raise ValueError(f"k and v must have shape ({B}, T, {K}, {H}) with T >= 1, got k {k.shape} and v {v.shape}")
        T, left = k.shape[1], self.span.left
        if left is not None and T + left > C:
            raise ValueError(
                f"a chunk of {T} tokens with window {left} needs a capacity of at least {T + left}, the cache has {C}"
            )
        used = concrete(self.index)
        if left is None and T > C:
            raise ValueError(f"the cache has {C} slots; {T} tokens do not fit")
        if left is None and used is not None and used + T > C:
            raise ValueError(f"the cache holds {used} of {C} tokens; {T} more do not fit")
        return B, T

    def _positions(self, k_pos: ArrayLike | None, index: Array, B: int, T: int) -> ArrayLike:
        if k_pos is None:
            return index.astype(self.k_pos.dtype)
        k_pos = positions("k_pos", k_pos, index, B, T)
        if k_pos.dtype != self.k_pos.dtype:
            raise ValueError(f"k_pos is {k_pos.dtype} but the cache was created with pos_dtype={self.k_pos.dtype}")
        return k_pos

    def _in_order(self, keys: Keys, mask: Mask) -> Keys:
        """Slots in the order of their index, for encodings that walk along the row."""
        if any(part is not None for part in (mask.k_segments, mask.k_valid, mask.k_index, mask.allowed)):
            raise ValueError(
                f"a ring for {self.encoding} is read in the order of the tokens, not of the slots: mark padding with "
                f"append(valid=...), got arrays along the keys in {mask}"
            )
        roll = lambda x, axis: jnp.roll(x, -(self.index % self.capacity), axis)
        k, v, bad = (roll(x, 2) for x in (keys.k, keys.v, keys.bad))
        pos, valid = (roll(x, 1) for x in (keys.pos, keys.valid))
        return keys._replace(k=k, v=v, bad=bad, pos=pos, index=roll(keys.index, 0), valid=valid)


def _check_types(encoding: PositionEncoding, dtype: Any, pos_dtype: Any) -> None:
    if not isinstance(encoding, PositionEncoding):
        raise ValueError(f"KVCache: encoding must be a PositionEncoding such as RoPE(), got {encoding!r}")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"KVCache: dtype must be a floating type, got {np.dtype(dtype)}")
    if np.dtype(pos_dtype) not in (np.int32, np.float32):
        raise ValueError(f"KVCache: pos_dtype must be int32 or float32, got {np.dtype(pos_dtype)}")


def _booleans(valid: ArrayLike | None, B: int, T: int) -> ArrayLike:
    valid = along("valid", valid, B, T)
    if valid is None:
        return np.ones(T, bool)
    if valid.dtype != bool:
        raise ValueError(f"valid must be boolean, got {valid.dtype}")
    return valid


def _map_keys(
    encoding: PositionEncoding, params: EncodingParams | None, k: Float[Array, "B T K H"], pos: Num[ArrayLike, "*B T"]
) -> Float[Array, "B T K h"]:
    leaves = jax.tree.leaves(None if params is None else params.head)
    heads = leaves[0].shape[0] if leaves else k.shape[2]
    sizes = Sizes(model=heads * k.shape[3], heads=heads, kv_heads=k.shape[2], head=k.shape[3])
    k = k.astype(compute_dtype(k))
    for part, own in _mappers(encoding, params):
        part.check_positions(pos)
        if own is None and part.learns and jax.tree.leaves(_abstract(part, sizes).shared):
            raise ValueError(f"{part} learns how to map keys: pass params to append")
        own = EncodingParams() if own is None else check_params(part, own, sizes)
        shared = part.bind(own, heads, None).shared
        one = lambda k, pos, part=part, shared=shared: part.map_k(shared, k, pos)
        k = jax.vmap(jax.vmap(one, (1, None), 1), (0, batch_axis(pos, 2)))(k, pos)
    return k


def _mappers(
    encoding: PositionEncoding, params: EncodingParams | None
) -> list[tuple[PositionEncoding, EncodingParams | None]]:
    """The encodings that map keys, each with its parameters; the other parts of a composition need not be bound."""
    if not encoding.has("map_k"):
        return []
    if not isinstance(encoding, Compose):
        return [(encoding, params)]
    own = [None] * len(encoding.parts)
    if params is not None:
        head, shared = (side or ((),) * len(own) for side in params)
        own = [EncodingParams(*pair) for pair in zip(head, shared, strict=True)]
    return [pair for part in zip(encoding.parts, own, strict=True) for pair in _mappers(*part)]


def _mapped_width(encoding: PositionEncoding, kv_heads: int, head: int) -> int:
    sizes = Sizes(model=kv_heads * head, heads=kv_heads, kv_heads=kv_heads, head=head)
    k, pos = jax.ShapeDtypeStruct((1, head), jnp.float32), jax.ShapeDtypeStruct((1,), jnp.int32)
    for part, _ in _mappers(encoding, None):
        one = lambda params, k, pos, part=part: part.map_k(part.bind(params, kv_heads, None).shared, k, pos)
        k = jax.eval_shape(one, _abstract(part, sizes), k, pos)
    return k.shape[-1]


def _abstract(encoding: PositionEncoding, sizes: Sizes) -> EncodingParams:
    return jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes))
