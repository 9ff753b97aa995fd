"""RoPE at remapped positions, the base of methods that read past the training length without training.

    score(i, j) = scale * q_i . R(b(j) - a(i)) k_j,    (a, b) = one of a few pairs of maps of positions, chosen by (i, j)

RoPE is the case of one pair, a(i) = i and b(j) = j. Each method has a file of its own, which states its maps and its choice:

    rerope.py        near distances as they are, far ones all the same, or growing more slowly
    self_extend.py   near distances as they are, far ones in groups
    dual_chunk.py    distances within a chunk, to the chunk before, and to chunks further back
    streaming.py     the first keys nearer than they are, beside a window

Acts on scores (`score`): a distance that is no difference of one position of q and one of k is no rotation of both apart, so
queries and keys of a tile are turned where they meet, once for every map. A cache keeps keys as they are projected, one copy
of each. The frequencies are those of the model's own RoPE, with its layout, share of the head, scaling and `keep`, which are
options of every method. Nothing is learned. In a composition the method comes before all that adds to the logits, because it
replaces them. The maps are for distances to the past, so that a causal mask is needed.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import chex
import jax
import jax.numpy as jnp

from attnjax.positions.angles import angles
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Tile
from attnjax.positions.checks import validate_integer
from attnjax.positions.rope import RoPE
from attnjax.positions.rotary import rotate
from attnjax.typing import Array, ArrayLike, Bool, Float, Num, compute_dtype

FARTHEST = 2**30
"""The largest window or chunk, so that no sum of two of them leaves int32."""


class Turn(NamedTuple):
    """Where tokens of a tile are turned to: a position of each, and the constant that holds the frequencies.

    Example:
        >>> Turn(jnp.arange(2)).frequencies
        'frequencies'
    """

    pos: Num[Array, " t"]
    frequencies: str = "frequencies"


class Remapped(RoPE):
    """RoPE whose scores are taken at one of several pairs of positions. Subclasses define `queries`, `keys` and `choose`.

    Example:
        >>> from attnjax.positions import ReRoPE
        >>> isinstance(ReRoPE(), Remapped), ReRoPE.of(RoPE(theta=500.0), window=64).theta
        (True, 500.0)
    """

    PAIRS: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (1, 1))
    """For each choice, which of `queries` meets which of `keys`."""

    needs_causal = "maps distances to the past"
    replaces_logits = True
    map_q, map_k = PositionEncoding.map_q, PositionEncoding.map_k

    @classmethod
    def of(cls, rope: RoPE, **options: Any) -> Self:
        """The method on the RoPE of a model, with its base, layout, share of the head, scaling and `keep`."""
        return cls(**{field.name: getattr(rope, field.name) for field in dataclasses.fields(RoPE)} | options)

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses what RoPE refuses, and a mask that shows future keys."""
        super().check(sizes=sizes, pos=pos)
        PositionEncoding.check(self, causal=causal)

    def queries(self, pos: Num[Array, " t"]) -> tuple[Turn, ...]:
        """The positions at which queries are turned, one for each map."""
        raise NotImplementedError

    def keys(self, pos: Num[Array, " s"]) -> tuple[Turn, ...]:
        """The positions at which keys are turned, one for each map."""
        raise NotImplementedError

    def choose(self, q_pos: Num[Array, "t 1"], k_pos: Num[Array, "1 s"]) -> tuple[Bool[Array, "#t s"], ...]:
        """Where each pair of `PAIRS` but the first takes the place of those before it."""
        raise NotImplementedError

    def score(self, p: EncodingParams, tile: Tile) -> Float[Array, "t s"]:
        """scale * q . k at the chosen pair of positions."""
        chex.assert_rank([tile.q, tile.k], 2)
        q_pos, k_pos = jnp.asarray(tile.q_pos), jnp.asarray(tile.k_pos)
        queries = [self._turned(p, tile.q, at) for at in self.queries(q_pos)]
        keys = [self._turned(p, tile.k, at) for at in self.keys(k_pos)]
        logits, *others = [product(queries[i], keys[j]) for i, j in self.PAIRS]
        for taken, other in zip(self.choose(q_pos[:, None], k_pos[None, :]), others, strict=True):
            logits = jnp.where(taken, other, logits)
        return tile.scale * logits

    def _turned(self, p: EncodingParams, x: Float[Array, "t H"], at: Turn) -> Float[Array, "t H"]:
        angle = angles(at.pos, p.shared[at.frequencies], compute_dtype(x))
        return rotate(x, angle, self.layout, p.shared["gain"])

    def _check_whole(self, **fields: int) -> None:
        """Raise ValueError unless these fields are whole numbers from 1 to `FARTHEST`."""
        validate_integer(type(self).__name__, most=FARTHEST, **fields)


def product(q: Float[Array, "t H"], k: Float[Array, "s H"]) -> Float[Array, "t s"]:
    """q k^T in the highest precision, since the default of a GPU rounds float32 inputs to 11 bits.

    Example:
        >>> product(jnp.ones((1, 4)), jnp.ones((2, 4))).tolist()
        [[4.0, 4.0]]
    """
    chex.assert_rank([q, k], 2)
    return jnp.matmul(q, k.T, precision=jax.lax.Precision.HIGHEST)
