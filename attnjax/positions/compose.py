"""Several encodings in one: each acts in turn, in the order given.

    embed, map_q, map_k     one after the other
    score                   each part sees the logits that the parts before it made
    bias                    the sum, as long as no part overrides `score`
    columns                 side by side, as long as every part that changes the score has them

Parameters are tuples in the same order: head = (head_a, head_b, ...), shared = (shared_a, shared_b, ...).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Tile
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree

COLUMNS = frozenset({"columns_q", "columns_k"})


def compose(*encodings: PositionEncoding) -> "Compose":
    """Two or more encodings as one, such as `compose(RoPE(), ALiBi())`. Raises ValueError for fewer."""
    return Compose(encodings)


@dataclasses.dataclass(frozen=True)
class Compose(PositionEncoding):
    """The encodings in `parts`, applied in order. Made by `compose`."""

    parts: tuple[PositionEncoding, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or len(self.parts) < 2:
            raise ValueError(f"compose: needs two or more encodings, got {self.parts!r}")
        for part in self.parts:
            if not isinstance(part, PositionEncoding):
                raise ValueError(f"compose: every argument must be a PositionEncoding, got {part!r}")

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """The parameters of each part, from independent keys."""
        keys = jax.random.split(key, len(self.parts))
        return _join([part.init(key, sizes) for part, key in zip(self.parts, keys, strict=True)])

    def bind(self, params: EncodingParams, heads: int, length: Any = None) -> EncodingParams:
        """What the hooks of each part receive. Raises ValueError where `params` does not hold one entry per part."""
        head, shared = (self._per_part(side) for side in params)
        sides = zip(self.parts, head, shared, strict=True)
        return _join([part.bind(EncodingParams(h, s), heads, length) for part, h, s in sides])

    @property
    def learns(self) -> bool:
        """Whether any part learns."""
        return any(part.learns for part in self.parts)

    @property
    def length_dependent(self) -> bool:
        """Whether any part needs the length."""
        return any(part.length_dependent for part in self.parts)

    def embed(self, shared: PyTree, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """Each part's embedding, in order."""
        for part, s in zip(self.parts, self._per_part(shared), strict=True):
            x = part.embed(s, x, pos)
        return x

    def map_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]
    ) -> Float[Array, "T h"]:
        """Each part's map, in order."""
        for part, h, s in zip(self.parts, head, shared, strict=True):
            q = part.map_q(h, s, q, pos)
        return q

    def map_k(self, shared: PyTree, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S h"]:
        """Each part's map, in order."""
        for part, s in zip(self.parts, shared, strict=True):
            k = part.map_k(s, k, pos)
        return k

    def bias(self, head: PyTree, shared: PyTree, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """The sum of the parts' biases, in the widest of their types."""
        sides = zip(self.parts, head, shared, strict=True)
        biases = [part.bias(h, s, n) for part, h, s in sides if part.has("bias")]
        dtype = jnp.float64 if any(bias.dtype == jnp.float64 for bias in biases) else jnp.float32
        return sum((bias.astype(dtype) for bias in biases), jnp.zeros(n.shape, dtype))

    def carry(self, t: int) -> tuple[PyTree, ...]:
        """One state per part, empty where a part has none."""
        return tuple(part.carry(t) for part in self.parts)

    def score(self, head: PyTree, shared: PyTree, tile: Tile, carry: PyTree = ()) -> Any:
        """Each part's score, on a tile that holds the logits of the part before."""
        states = []
        carry = carry or self.carry(tile.q.shape[0])
        for part, h, s, state in zip(self.parts, head, shared, carry, strict=True):
            logits = part.score(h, s, tile, state)
            if part.has("carry"):
                logits, state = logits
            states.append(state)
            tile = tile._replace(logits=logits)
        return (tile.logits, tuple(states)) if self.has("carry") else tile.logits

    def columns_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T h"], pos: Num[ArrayLike, " T"], scale: Float[Array, ""]
    ) -> Float[Array, "T c"]:
        """The parts' query columns, side by side."""
        sides = zip(self.parts, head, shared, strict=True)
        return jnp.concatenate([part.columns_q(h, s, q, pos, scale) for part, h, s in sides], axis=-1)

    def columns_k(self, shared: PyTree, k: Float[Array, "S h"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S c"]:
        """The parts' key columns, side by side."""
        return jnp.concatenate([p.columns_k(s, k, pos) for p, s in zip(self.parts, shared, strict=True)], axis=-1)

    def hooks(self) -> frozenset[str]:
        """All hooks of the parts, less those that no longer describe the whole.

        These are the bias beside a part with a score of its own, columns beside a score or bias without columns, and
        the vectors of one part.
        """
        union = frozenset().union(*(part.hooks() for part in self.parts)) - {"vectors"}
        if "score" in union:
            union -= {"bias"}
        changing = [part for part in self.parts if part.has("bias", "score")]
        return union if all(part.hooks() >= COLUMNS for part in changing) else union - COLUMNS

    def check(self, sizes: Sizes, *, causal: bool) -> None:
        """Raises the ValueError of the first part that cannot serve."""
        for part in self.parts:
            part.check(sizes, causal=causal)

    def check_positions(self, pos: ArrayLike) -> None:
        """Raises the ValueError of the first part that cannot reach a position."""
        for part in self.parts:
            part.check_positions(pos)

    def _per_part(self, side: PyTree) -> tuple[PyTree, ...]:
        """One side of the parameters by part; an empty side (nothing is learned) is empty for each."""
        side = ((),) * len(self.parts) if isinstance(side, tuple) and not side else side
        if not isinstance(side, tuple | list) or len(side) != len(self.parts):
            raise ValueError(f"compose: parameters must be a tuple with one entry per part of {self}, got {side!r}")
        return tuple(side)


def _join(params: list[EncodingParams]) -> EncodingParams:
    return EncodingParams(tuple(p.head for p in params), tuple(p.shared for p in params))
