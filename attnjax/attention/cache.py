"""Decoding: keys and values of the past in arrays of fixed shape, so that nothing recompiles from token to token.

A cache is a plain pytree. `append` writes values, and keys mapped by the encoding; `attend(q, cache=cache)` reads them:

    cache = KVCache.create(batch, capacity, kv_heads, head_dim, encoding=encoding)
    cache = cache.append(k, v, k_pos)                 # one token or a chunk
    out = attend(q, cache=cache, encoding=encoding, mask=Mask(causal=True))

The queries are the last T tokens appended. With a window the cache is a ring: slot = index mod capacity, and a
capacity of window + chunk serves a sequence of any length. A ring forgets the first keys: a mask with `first` needs a cache
without a window. Encodings that depend on the length keep their keys unmapped and map on reading. Encodings that compute
positions from content have them cached with the keys:

    pos = context_positions(encoding, params, x, pos, sizes, before=cache.last_positions())
    cache = cache.append(k, v, pos)

What `append` writes lies as attention reads it, heads before slots, and is finite, with flags where it was not. So a
decoding step copies nothing as large as the cache: its cost is one pass over the slots.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.cache_update import indices, write
from attnjax.attention.hooks import map_keys
from attnjax.attention.inputs import Keys, KeySource, along, check_params, marked, nan_marks
from attnjax.attention.masks import Mask, Span
from attnjax.attention.position_axes import Positions, arrays, as_positions, is_positions
from attnjax.attention.products import finite
from attnjax.positions.base import EncodingParams, NoPE, PositionEncoding, Sizes, Trait, resolve, validate_encoding
from attnjax.positions.checks import validate_integer
from attnjax.positions.compose import Compose
from attnjax.positions.contextual import context_positions
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, Num, PyTree, compute_dtype


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys (mapped, unless the encoding depends on the length), values, positions, validity, and how many there were.

    Non-finite numbers in v are kept as 0, and a key is NaN as a whole where it or its value had one: rows that see it are NaN.
    Slots not yet written are not visible. A sequence longer than the capacity of a cache without window is a ValueError
    where the count is known, and NaN where it is traced: never a silently forgotten token. `index` is a NumPy number
    until a transformation traces it, so that eager decoding waits for no device. `length` is the largest position of a
    valid key plus 1, which a ring may have forgotten. `k_pos` has a row per head, [B, K, C] or [B, N, C], or a last axis,
    where the encoding's positions have, and is a tuple for a composition with positions computed from content.

    Example:
        >>> import jax.numpy as jnp
        >>> from attnjax import KVCache, Mask, RoPE, attend
        >>> cache = KVCache.create(batch=1, capacity=8, kv_heads=2, head_dim=4, encoding=RoPE())
        >>> x = jnp.ones((1, 3, 2, 4))
        >>> attend(x, cache=cache.append(x, x), encoding=RoPE(), mask=Mask(causal=True)).shape
        (1, 3, 2, 4)
    """

    k: Float[Array, "B K C h"]
    v: Float[Array, "B K C H"]
    k_pos: PyTree
    valid: Bool[Array, "B C"]
    length: Num[Array, " B"]
    index: Int[ArrayLike, ""]
    encoding: PositionEncoding = dataclasses.field(metadata={"static": True})
    window: int | tuple[int | None, int | None] | None = dataclasses.field(metadata={"static": True})

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
        pos_dtype: Any = jnp.int32,
    ) -> Self:
        """An empty cache of `capacity` slots for keys and values [batch, ., kv_heads, head_dim].

        `heads`: the query heads, `kv_heads` unless given; it counts where positions are computed per query head.
        Raises ValueError for sizes below 1, types that cannot hold keys or positions, or a ring without room for the window
        and one token.
        """
        validate_integer("KVCache", batch=batch, capacity=capacity, kv_heads=kv_heads, head_dim=head_dim)
        _check_types(encoding, dtype, pos_dtype)
        left = Mask(window=window).span.left
        if left is not None and capacity < left + 1:
            raise ValueError(f"KVCache: a window of {left} needs a capacity of at least {left + 1}, got {capacity}")
        N = kv_heads if heads is None else heads
        validate_integer("KVCache", heads=N)
        if N % kv_heads:
            raise ValueError(f"KVCache: heads must be a multiple of kv_heads={kv_heads}, got {N}")
        sizes = Sizes(model=N * head_dim, heads=N, kv_heads=kv_heads, head_dim=head_dim)
        content = jnp.float64 if np.dtype(dtype) == np.float64 else jnp.float32
        pos = _empty_positions(encoding, sizes, batch, capacity, pos_dtype, content)
        mapped = _mapped_keys(encoding, sizes, pos, dtype)
        return cls(
            k=jnp.zeros((batch, kv_heads, capacity, mapped.shape[-1]), mapped.dtype),
            v=jnp.zeros((batch, kv_heads, capacity, head_dim), dtype),
            k_pos=pos,
            valid=jnp.zeros((batch, capacity), bool),
            length=jnp.zeros((batch,), pos_dtype),
            index=np.zeros((), np.int32),
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
        k_pos: PyTree = None,
        *,
        params: EncodingParams | None = None,
        valid: ArrayLike | None = None,
    ) -> Self:
        """The cache with T more tokens. `k_pos` defaults to the running index; `valid=False` marks padding.

        `params` are the encoding's, needed where `map_k` learns, or reads a constant that they replace. Raises ValueError where
        shapes do not fit, where the tokens exceed the capacity, or where a chunk is too long for the window to survive it in
        the ring.
        """
        B, T = self._check(k, v)
        index = self.index + np.arange(T, dtype=np.int32)
        pos = self._positions(k_pos, index, B, T)
        self.encoding.check(pos=arrays(pos))
        valid = jnp.broadcast_to(_booleans(valid, B, T), (B, T))
        if Trait.LENGTH not in self.encoding.traits and Trait.MAP_K in self.encoding.traits:
            k = _mapped(self.encoding, params, k, pos)
        k, v = (x.astype(held.dtype).swapaxes(1, 2) for x, held in ((k, self.k), (v, self.v)))
        stored = self._stored(pos, B, T)
        new = {"k": marked(finite(k), nan_marks(k, v)), "v": finite(v), "k_pos": stored, "valid": valid}
        axes = {"k": 2, "v": 2, "k_pos": self._token_axes(), "valid": 1}
        return dataclasses.replace(
            self,
            **write(
                {name: getattr(self, name) for name in new},
                new,
                axes,
                self.index,
                ring=self.span.left is not None,
            ),
            length=self._length(stored, valid),
            index=self.index + np.int32(T)
            if isinstance(self.index, jax.Array)
            else np.asarray(self.index + T, np.int32),
        )

    def read(self, mask: Mask) -> KeySource:
        """What `attend` sees: slots, in the order of their index where the encoding walks along the row.

        Raises ValueError if the mask looks further back than the ring remembers.
        """
        left, slot = self.span.left, np.arange(self.capacity, dtype=np.int32)
        mapped = Trait.LENGTH not in self.encoding.traits
        if left is None:
            valid = self.valid & (slot < self.index)[None]
            return KeySource(self._keys(slot, valid), mapped=mapped, overflown=self._overflown())
        if mask.span.left is None or mask.span.left > left:
            raise ValueError(
                f"KVCache remembers a window of {left}; the mask must have window <= {left}, got {mask.window}"
            )
        if mask.span.first:
            raise ValueError(
                f"KVCache with a window forgets the first keys, which the mask shows, got first={mask.first}: create the cache "
                "without a window"
            )
        index = indices(self.index, slot, self.capacity)
        source = KeySource(self._keys(index, self.valid & (index >= 0)[None]), mapped=mapped, length=self.length)
        return self._in_order(source, mask) if Trait.CARRY in self.encoding.traits else source

    def queries(self, T: int) -> tuple[Int[ArrayLike, " T"], PyTree]:
        """Index and position of the last T tokens appended, which are the queries unless the caller says otherwise.

        Raises ValueError for more queries than there are tokens, or than the ring has room for beside the window.
        """
        left, used = self.span.left, _known(self.index)
        if used is not None and used < T:
            raise ValueError(
                f"the queries are the last tokens appended: got {T} queries, the cache holds {used} tokens"
            )
        needed = T + (left or 0)
        if needed > self.capacity:
            raise ValueError(
                f"{T} queries with window {left} need a capacity of at least {needed}, got {self.capacity}"
            )
        index = self.index - T + np.arange(T, dtype=np.int32)
        return index, self._positions_at(index)

    def last_positions(self) -> PyTree:
        """Positions of the last token appended, 0 before the first: the `before` of `context_positions`."""
        at = self._positions_at(self.index - 1 + np.zeros(1, np.int32))
        return jax.tree.map(lambda x, axis: jnp.take(x, 0, axis=axis), at, self._token_axes())

    def _positions_at(self, index: Int[ArrayLike, " T"]) -> PyTree:
        take = lambda pos, axis: jnp.take(pos, index % self.capacity, axis=axis)
        return jax.tree.map(take, self.k_pos, self._token_axes())

    def _token_axes(self) -> PyTree:
        return jax.tree.map(lambda node: node.along, _layout(self.encoding, self.k_pos), is_leaf=is_positions)

    def _keys(self, index: ArrayLike, valid: Array) -> Keys:
        return Keys(self.k, self.v, self.k_pos, index, None, valid)

    def _overflown(self) -> Bool[Array, ""] | None:
        """Whether tokens are missing; None where it is known that none is."""
        return None if _known(self.index) is not None else jnp.asarray(self.index > self.capacity)

    def _check(self, k: Array, v: Array) -> tuple[int, int]:
        B, K, C, H = self.v.shape
        if k.ndim != 4 or k.shape != v.shape or (k.shape[0], *k.shape[2:]) != (B, K, H) or not k.shape[1]:
            raise ValueError(f"k and v must have shape ({B}, T, {K}, {H}) with T >= 1, got k {k.shape} and v {v.shape}")
        T, left = k.shape[1], self.span.left
        needed = T + (left or 0)
        if left is not None and needed > C:
            raise ValueError(
                f"a chunk of {T} tokens with window {left} needs a capacity of at least {needed}, the cache has {C}"
            )
        used = _known(self.index)
        if left is None and T > C:
            raise ValueError(f"the cache has {C} slots; {T} tokens do not fit")
        if left is None and used is not None and used + T > C:
            raise ValueError(f"the cache holds {used} of {C} tokens; {T} more do not fit")
        return B, T

    def _positions(self, k_pos: PyTree, index: ArrayLike, B: int, T: int) -> PyTree:
        """Positions of new tokens, checked against those that the cache holds."""
        K = self.v.shape[1]
        held = jax.tree.leaves(self.k_pos)
        layouts = jax.tree.leaves(_layout(self.encoding, self.k_pos), is_leaf=is_positions)
        N = max([K, *(one.values.shape[1] for one in layouts if one.lead > 1)])
        default = index.astype(held[0].dtype)
        by_head = Trait.CONTEXT in self.encoding.traits and not isinstance(k_pos, tuple) and np.ndim(k_pos) > 2
        given = np.shape(k_pos)[1] if by_head else 0
        if given > N and given % K == 0:
            told = f"k_pos has a row for each of {given} heads, and the cache was created for {N}"
            raise ValueError(f"{told}: pass heads={given} to KVCache.create")
        pos = as_positions("k_pos", k_pos, self.encoding, default, B, T, N, K)
        for new, old in zip(jax.tree.leaves(arrays(pos)), held, strict=True):
            if new.dtype != old.dtype:
                raise ValueError(f"k_pos is {new.dtype} but the cache was created with pos_dtype={old.dtype}")
        return pos

    def _stored(self, pos: PyTree, B: int, T: int) -> PyTree:
        """New positions in the shape that the cache keeps, with T tokens in place of its slots."""

        def one(new: Positions, held: Positions) -> Array:
            shape = (*held.values.shape[: held.along], T, *held.values.shape[held.along + 1 :])
            values = jnp.asarray(new.values)
            if new.lead == 3:
                values = values.reshape(B, -1, *values.shape[3:])
            if values.ndim > len(shape):
                raise ValueError(f"k_pos: the cache of {self.encoding} keeps positions {shape}, got {values.shape}")
            return jnp.broadcast_to(values, shape)

        return jax.tree.map(one, pos, _layout(self.encoding, self.k_pos), is_leaf=is_positions)

    def _length(self, pos: PyTree, valid: Bool[Array, "B T"]) -> Num[Array, " B"]:
        if not isinstance(pos, jax.Array) or pos.ndim != 2:
            return self.length
        ends = jnp.where(valid, pos + 1, 0).astype(self.length.dtype)
        return jnp.maximum(self.length, ends.max(1))

    def _in_order(self, source: KeySource, mask: Mask) -> KeySource:
        """Slots in the order of their index, for encodings that walk along the row."""
        if any(part is not None for part in (mask.k_segments, mask.k_valid, mask.k_index, mask.allowed)):
            raise ValueError(
                f"a ring for {self.encoding} is read in the order of the tokens, not of the slots: mark padding with "
                f"append(valid=...), got arrays along the keys in {mask}"
            )
        roll = lambda x, axis: jnp.roll(x, -(self.index % self.capacity), axis)
        keys = source.keys
        k, v = (roll(x, 2) for x in keys[:2])
        pos, index, valid = jax.tree.map(roll, keys.pos, self._token_axes()), roll(keys.index, 0), roll(keys.valid, 1)
        return source._replace(keys=Keys(k, v, pos, index, None, valid))


def _known(index: ArrayLike) -> int | None:
    """The count where it is a NumPy number. An array of JAX is not read, because that would wait for the device."""
    return None if isinstance(index, jax.Array) else int(index)


def _check_types(encoding: PositionEncoding, dtype: Any, pos_dtype: Any) -> None:
    validate_encoding("KVCache: encoding", encoding)
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


def _mapped(
    encoding: PositionEncoding, params: EncodingParams | None, k: Float[Array, "B T K H"], pos: PyTree
) -> Float[Array, "B T K h"]:
    """Keys after `map_k`. Raises ValueError where it learns and there are no parameters, or such of other shapes."""
    on_keys = _on_keys(encoding)
    params = _params_on_keys(encoding, params) if isinstance(params, EncodingParams) else params
    leaves = jax.tree.leaves(params.head if isinstance(params, EncodingParams) else None)
    heads = leaves[0].shape[0] if leaves else k.shape[2]
    sizes = Sizes(model=heads * k.shape[3], heads=heads, kv_heads=k.shape[2], head_dim=k.shape[3])
    params = params if params is None else check_params(on_keys, params, sizes)
    resolved = lambda length: resolve(on_keys, params, sizes, length)
    k = k.astype(compute_dtype(k)).swapaxes(1, 2)
    try:
        return map_keys(encoding, resolved, k, pos, None).swapaxes(1, 2)
    except (KeyError, TypeError):
        if params is not None:
            raise
        raise ValueError(f"{encoding} learns how to map keys: pass params to append") from None


def _empty_positions(encoding: Any, sizes: Sizes, batch: int, capacity: int, dtype: Any, content: Any) -> PyTree:
    """Zeros in the shape that the encoding's positions have, with a row per head where it computes them from `content`."""
    several = isinstance(encoding, Compose) and encoding.traits & (Trait.CONTEXT | Trait.AXES)
    if Trait.CONTEXT not in encoding.traits and not several:
        last = (encoding.axes,) if Trait.AXES in encoding.traits else ()
        return jnp.zeros((batch, capacity, *last), dtype)
    if isinstance(encoding, Compose):
        return tuple(_empty_positions(part, sizes, batch, capacity, dtype, content) for part in encoding.parts)
    x, index = jax.ShapeDtypeStruct((batch, capacity, sizes.model), content), np.arange(capacity, dtype=np.int32)
    compute = lambda x: context_positions(encoding, encoding.init(jax.random.key(0), sizes), x, index, sizes)
    found = jax.eval_shape(compute, x)
    return jnp.zeros(found.shape, found.dtype)


def _layout(encoding: PositionEncoding, held: PyTree) -> PyTree:
    """The positions of a cache with the axes that they have."""
    if isinstance(held, tuple) and isinstance(encoding, Compose):
        return tuple(_layout(part, one) for part, one in zip(encoding.parts, held, strict=True))
    return Positions(held, 1 if Trait.AXES in encoding.traits else 0)


def _on_keys(encoding: PositionEncoding) -> PositionEncoding:
    """The encoding without the parts that keys do not meet: a cache does not know the sizes that those depend on."""
    if isinstance(encoding, Compose):
        return Compose(tuple(_on_keys(part) for part in encoding.parts))
    return encoding if Trait.MAP_K in encoding.traits else NoPE()


def _params_on_keys(encoding: PositionEncoding, params: EncodingParams) -> EncodingParams:
    """Those of `_on_keys`: parameters of other parts have shapes by the number of query heads, which a cache does not know."""
    if isinstance(encoding, Compose):
        each = [_params_on_keys(part, own) for part, own in encoding.each(params)]
        return EncodingParams(*(tuple(sides) for sides in zip(*each, strict=True)))
    return params if Trait.MAP_K in encoding.traits else EncodingParams()


def _mapped_keys(encoding: PositionEncoding, sizes: Sizes, pos: PyTree, dtype: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of keys after `map_k`: xPos keeps those of float16 in float32, whose factors float16 cannot hold."""
    if Trait.MAP_K not in encoding.traits or Trait.LENGTH in encoding.traits:
        return jax.ShapeDtypeStruct((sizes.head_dim,), dtype)
    first = jax.tree.leaves(_layout(encoding, pos), is_leaf=is_positions)[0]
    batch, capacity = first.values.shape[0], first.values.shape[first.along]
    layout = as_positions("k_pos", pos, encoding, None, batch, capacity, sizes.heads, sizes.kv_heads)
    shape = (batch, sizes.kv_heads, capacity, sizes.head_dim)
    encoding = _on_keys(encoding)
    make = lambda length: resolve(encoding, encoding.init(jax.random.key(0), sizes), sizes, length)
    mapped = lambda k: map_keys(encoding, make, k, layout, None)
    return jax.eval_shape(mapped, jax.ShapeDtypeStruct(shape, dtype))
