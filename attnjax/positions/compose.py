"""Several encodings in one: each acts in turn, in the order given.

    embed, map_q, map_k     one after the other
    score                   each part sees the logits that the parts before it made; one that replaces them comes first, and one
                            that makes the weights themselves comes last
    bias                    the sum, as long as no part overrides `score`

Parameters are tuples in the same order: head = (head_a, head_b, ...), and so are `kv_head` and `shared`. Positions are one
array for all parts, or a tuple with those of each, as `context_positions` returns them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.positions.base import (
    EncodingParams,
    PositionEncoding,
    SequentialScore,
    Sizes,
    Tile,
    Trait,
    sum_of,
    validate_encoding,
)
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree

BY_HEAD = EncodingParams(head=0, kv_head=0, shared=None)
"""The `in_axes` of parameters in a `jax.vmap` over query heads."""


def compose(*encodings: PositionEncoding) -> "Compose":
    """Two or more encodings as one.

    Raises ValueError for fewer, for a part that replaces logits after one that adds to them, whose share would be lost, and for
    one that acts on the logits after one that makes weights of them (StickBreaking), which would no longer be shares of 1.

    Example:
        >>> from attnjax import ALiBi, RoPE, compose
        >>> both = compose(RoPE(), ALiBi())
        >>> both.traits == RoPE().traits | ALiBi().traits
        True
    """
    return Compose(encodings)


def parts_of(encoding: PositionEncoding) -> tuple[PositionEncoding, ...]:
    """The encodings of which a composition is made, those of inner ones included, or the encoding itself.

    Example:
        >>> from attnjax.positions import LogN, NoPE
        >>> parts_of(compose(NoPE(), compose(LogN(), NoPE())))
        (NoPE(), LogN(length=4096), NoPE())
    """
    if isinstance(encoding, Compose):
        return tuple(part for inner in encoding.parts for part in parts_of(inner))
    return (encoding,)


def joined(parts: Sequence[PositionEncoding]) -> PositionEncoding:
    """The composition of one or more encodings: the only one as it is. The inverse of `parts_of`, without inner compositions.

    Example:
        >>> from attnjax import ALiBi, RoPE
        >>> joined([RoPE()]) == RoPE(), joined([RoPE(), ALiBi()]) == compose(RoPE(), ALiBi())
        (True, True)
    """
    return compose(*parts) if len(parts) > 1 else parts[0]


@dataclasses.dataclass(frozen=True)
class Compose(SequentialScore):
    """The encodings in `parts`, applied in order. Made by `compose`.

    Example:
        >>> from attnjax import ALiBi, RoPE
        >>> [type(part).__name__ for part in compose(RoPE(), ALiBi()).parts]
        ['RoPE', 'ALiBi']
    """

    parts: tuple[PositionEncoding, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or len(self.parts) < 2:
            raise ValueError(f"compose: needs two or more encodings, got {self.parts!r}")
        for part in self.parts:
            validate_encoding("compose: every argument", part)
        earlier = weights = None
        for part in parts_of(self):
            if part.replaces_logits and earlier is not None:
                raise ValueError(f"compose: {part} replaces what {earlier} adds to the logits: put {part} first")
            if not Trait.ON_SCORES & part.traits:
                continue
            if weights is not None:
                raise ValueError(
                    f"compose: {weights} makes the weights themselves, which {part} would change: put {weights} last"
                )
            earlier = part if earlier is None else earlier
            weights = part if Trait.UNNORMALIZED in part.traits else None

    @property
    def traits(self) -> Trait:
        """The traits of all parts. Biases are scores beside a part with a score or with positions of its own."""
        union = sum_of(*(part.traits for part in self.parts))
        apart = Trait.SCORE | Trait.CONTEXT | Trait.AXES
        return (union | Trait.SCORE) & ~Trait.BIAS if Trait.BIAS in union and union & apart else union

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """The parameters of each part, from independent keys."""
        keys = jax.random.split(key, len(self.parts))
        return _join([part.init(key, sizes) for part, key in zip(self.parts, keys, strict=True)])

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """The constants of each part."""
        return _join([part.constants(sizes, length) for part in self.parts])

    def embed(self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """Each part's embedding, in order."""
        for part, own in self.each(p):
            x = part.embed(own, x, pos)
        return x

    def map_q(self, p: EncodingParams, q: Float[Array, "T H"], pos: PyTree) -> Float[Array, "T h"]:
        """Each part's map, in order."""
        for (part, own), at in zip(self.each(p), self._positions(pos), strict=True):
            q = part.map_q(own, q, at) if Trait.MAP_Q in part.traits else q
        return q

    def map_k(self, p: EncodingParams, k: Float[Array, "S H"], pos: PyTree) -> Float[Array, "S h"]:
        """Each part's map, in order."""
        for (part, own), at in zip(self.each(p), self._positions(pos), strict=True):
            k = part.map_k(own, k, at) if Trait.MAP_K in part.traits else k
        return k

    def bias(self, p: EncodingParams, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """The sum of the parts' biases, in the widest of their types; n may be a tuple with the distances of each part."""
        each = zip(self.each(p), self._positions(n), strict=True)
        biases = [part.bias(own, at) for (part, own), at in each if Trait.BIAS in part.traits]
        dtype = jnp.float64 if any(bias.dtype == jnp.float64 for bias in biases) else jnp.float32
        return sum((bias.astype(dtype) for bias in biases), jnp.zeros(jax.tree.leaves(n)[0].shape, dtype))

    def carry(self, p: EncodingParams, q: Float[Array, "t h"]) -> tuple[PyTree, ...]:
        """One state per part, empty where a part has none."""
        return tuple(_carry(part, own, q, self.traits) for part, own in self.each(p))

    def score(self, p: EncodingParams, tile: Tile, carry: PyTree = None) -> Any:
        """Each part's score, on a tile that holds the logits of the part before."""
        if carry is None and Trait.CARRY in self.traits:
            carry = self.carry(p, tile.q)
        states = list(carry or ((),) * len(self.parts))
        positions = zip(self._positions(tile.q_pos), self._positions(tile.k_pos), strict=True)
        for i, ((part, own), (q_pos, k_pos)) in enumerate(zip(self.each(p), positions, strict=True)):
            logits = score_of_part(part, own, tile._replace(q_pos=q_pos, k_pos=k_pos), states[i], self.traits)
            if Trait.CARRY in part.traits:
                logits, states[i] = logits
            tile = tile._replace(logits=logits)
        return (tile.logits, tuple(states)) if Trait.CARRY in self.traits else tile.logits

    def check(self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: PyTree = None) -> None:
        """Raises the ValueError of the first part that cannot serve."""
        for part, at in zip(self.parts, self._positions(pos), strict=True):
            part.check(sizes=sizes, causal=causal, pos=at)

    def check_distance(self, farthest: float) -> None:
        """Raises the ValueError of the first part that cannot serve."""
        for part in self.parts:
            part.check_distance(farthest)

    def each(self, p: EncodingParams) -> list[tuple[PositionEncoding, EncodingParams]]:
        """Every part with its own parameters; an empty side is empty for each part.

        Raises ValueError where a side does not hold one entry per part.
        """
        own = zip(*(self._per_part(side) for side in p), strict=True)
        return [(part, EncodingParams(*sides)) for part, sides in zip(self.parts, own, strict=True)]

    def _per_part(self, side: PyTree) -> tuple[PyTree, ...]:
        if isinstance(side, tuple | dict) and not side:
            return (side if isinstance(side, tuple) else (),) * len(self.parts)
        if not isinstance(side, tuple | list) or len(side) != len(self.parts):
            raise ValueError(f"compose: parameters must be a tuple with one entry per part of {self}, got {side!r}")
        return tuple(side)

    def _positions(self, pos: PyTree) -> tuple[PyTree, ...]:
        return pos if isinstance(pos, tuple) else (pos,) * len(self.parts)


def _carry(part: PositionEncoding, p: EncodingParams, q: Float[Array, "*N t h"], whole: Trait) -> PyTree:
    """The carry of one part, over the axis of heads as in `score_of_part`."""
    if not isinstance(part, SequentialScore) or Trait.CARRY not in part.traits:
        return ()
    if Trait.ALL_HEADS not in whole or Trait.ALL_HEADS in part.traits:
        return part.carry(p, q)
    return jax.vmap(part.carry, in_axes=(BY_HEAD, 0))(p._replace(kv_head=repeated(p.kv_head, q.shape[0])), q)


def score_of_part(part: PositionEncoding, p: EncodingParams, tile: Tile, carry: PyTree, whole: Trait) -> Any:
    """The score of one part, over the axis of heads where another part of `whole` needs all of them at once.

    Example:
        >>> from attnjax import ALiBi
        >>> x, pos = jnp.zeros((2, 1, 4)), jnp.arange(1)
        >>> tile = Tile(jnp.ones((2, 1, 1)), x, x, pos + 3, pos, jnp.ones((1, 1), bool), 1.0)
        >>> slopes = EncodingParams(head={"slope": jnp.array([0.5, 0.25])})
        >>> score_of_part(ALiBi(), slopes, tile, (), Trait.ALL_HEADS).ravel().tolist()
        [-0.5, 0.25]
    """
    arguments = (carry,) if Trait.CARRY in part.traits else ()
    if Trait.ALL_HEADS not in whole or Trait.ALL_HEADS in part.traits:
        return part.score(p, tile, *arguments)
    N = tile.q.shape[0]
    (q_pos, q_axes), (k_pos, k_axes) = (_by_head(part, pos, N) for pos in (tile.q_pos, tile.k_pos))
    tile = tile._replace(k=repeated(tile.k, N), q_pos=q_pos, k_pos=k_pos)
    in_axes = (BY_HEAD, Tile(0, 0, 0, q_axes, k_axes, None, None), *(0 for _ in arguments))
    return jax.vmap(part.score, in_axes=in_axes)(p._replace(kv_head=repeated(p.kv_head, N)), tile, *arguments)


def _by_head(part: PositionEncoding, pos: PyTree, heads: int) -> tuple[PyTree, PyTree]:
    """(positions with one row per query head if they have rows per head, their `in_axes` in a `jax.vmap` over heads)."""
    if isinstance(part, Compose) and isinstance(pos, tuple):
        each = [_by_head(one, at, heads) for one, at in zip(part.parts, pos, strict=True)]
        return tuple(rows for rows, _ in each), tuple(axes for _, axes in each)
    if jnp.ndim(pos) <= (2 if Trait.AXES in part.traits else 1):
        return pos, None
    return repeated(pos, heads), 0


def repeated(tree: PyTree, heads: int) -> PyTree:
    """Arrays that lead with key heads, with one row per query head.

    Example:
        >>> repeated({"w": jnp.array([1, 2])}, heads=4)["w"].tolist()
        [1, 1, 2, 2]
    """
    return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf), heads // leaf.shape[0], axis=0), tree)


def _join(params: list[EncodingParams]) -> EncodingParams:
    return EncodingParams(*(tuple(sides) for sides in zip(*params, strict=True)))
