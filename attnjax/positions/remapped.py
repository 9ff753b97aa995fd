"""RoPE at remapped positions: methods that read past the training length without training.

    score(i, j) = scale * q_i . R(b(j) - a(i)) k_j,    (a, b) = one of a few pairs of maps of positions, chosen by (i, j)

RoPE is the case of one pair, a(i) = i and b(j) = j. The distances a(i) - b(j) of query i and key j are

    SelfExtend     i - j                                           where i - j < W
                   floor(i / G) - floor(j / G) + W - floor(W / G)  elsewhere: in groups
    ReRoPE         min(i - j, w)
    LeakyReRoPE    i - j                                           where i - j < w
                   w + (i - j - w) / k                             elsewhere
    DualChunk      i - j                                           in the same chunk of c = s - w tokens
                   min(i mod c + c, s) - j mod c                   in the chunk before: i - j for at least w keys
                   min(2c - 1, s) - j mod c                        in a chunk further back
    LMInfinite     i - j                                           where i - j <= W
                   D                                               elsewhere: there the mask shows j < n alone
    StreamingLLM   min(i, n + W) - j                               of the first keys, j < n
                   i - j                                           of the others

Acts on scores (`score`): such a distance is no difference of one position of q and one of k, so queries and keys of a tile are
turned once for every pair of maps. A cache keeps keys as they are projected, one copy of each. The frequencies are those of
the model's own RoPE, with its layout, share of the head, scaling and `keep`, which are options of every method. Nothing is
learned. In a composition the method comes before all that adds to the logits, because it replaces them. The maps are for
distances to the past, so that a causal mask is needed.
"""

import dataclasses
from typing import Annotated, Any, NamedTuple, Self

import chex
import jax.numpy as jnp

from attnjax.config.kinds import Range
from attnjax.positions.angles import angles, exact
from attnjax.positions.base import Params, Sizes, Tile, distance
from attnjax.positions.projection import HIGHEST
from attnjax.positions.rope import RotaryFrequencies
from attnjax.positions.rotary import rotate
from attnjax.positions.scaling import Factor
from attnjax.typing import Array, Bool, Float, Num

FARTHEST = 2**30
"""The largest window or chunk, so that no sum of two of them leaves int32."""
Span = Annotated[int, Range(1, FARTHEST)]


class Turn(NamedTuple):
    """A pair of maps: positions of queries and of keys, where they hold, and the constant that holds the frequencies.

    Example:
        >>> Turn(jnp.arange(2), jnp.arange(2)).frequencies
        'frequencies'
    """

    q_pos: Num[Array, " t"]
    k_pos: Num[Array, " s"]
    where: Bool[Array, "#t s"] | bool = True
    frequencies: str = "frequencies"


class Remapped(RotaryFrequencies):
    """RoPE whose scores are taken at one of several pairs of positions. Subclasses define `turns`.

    Example:
        >>> from attnjax import ReRoPE, RoPE
        >>> isinstance(ReRoPE(), Remapped), ReRoPE.of(RoPE(theta=500.0), window=64).theta
        (True, 500.0)
    """

    causal_only = "maps distances to the past"
    replaces_logits = True

    @classmethod
    def of(cls, rope: RotaryFrequencies, **options: Any) -> Self:
        """Returns the method on the RoPE of a model, with its base, layout, share of the head, scaling and `keep`."""
        shared = {field.name: getattr(rope, field.name) for field in dataclasses.fields(RotaryFrequencies)}
        return cls(**shared | options)

    def turns(self, i: Num[Array, " t"], j: Num[Array, " s"]) -> tuple[Turn, ...]:
        """Returns pairs of maps of query positions i and key positions j; where several hold, the last one counts."""
        raise NotImplementedError

    def score(self, p: Params, tile: Tile) -> Float[Array, "t s"]:
        """Returns scale * q . k at the chosen pair of positions."""
        chex.assert_rank([tile.q, tile.k], 2)
        turned = lambda x, pos, name: rotate(x, angles(pos, p[name]), self.layout, p["gain"])
        logits = jnp.zeros_like(tile.logits)
        for q_pos, k_pos, where, name in self.turns(tile.q_pos, tile.k_pos):
            q, k = turned(tile.q, q_pos, name), turned(tile.k, k_pos, name)
            # The default precision of a GPU rounds float32 inputs to 11 bits.
            logits = jnp.where(where, jnp.matmul(q, k.T, precision=HIGHEST), logits)
        return tile.scale * logits


@dataclasses.dataclass(frozen=True)
class SelfExtend(Remapped):
    """Self-Extend: distances as they are within `window` W positions, and in groups of `group` G beyond it.

    Past the window distances grow G times as slowly and go on from W, so that a model trained at L reads up to (L - W) G + W
    tokens without a distance that it has not seen. The authors recommend W of about a quarter to a half of L, and G as small
    as the length allows.

    The released code adds W - W / G, which is no whole number unless G divides W; here it is rounded as in the paper, and as
    in the authors' code for decoding. That code leaves every distance as it is in sequences of at most W tokens, and so does
    the rule.

    Reference: Jin et al. 2024 (arXiv:2401.01325), section 3.2; https://github.com/datamllab/LongLM.

    Example:
        >>> near, far = SelfExtend(group=2, window=4).turns(jnp.array([8]), jnp.arange(9))
        >>> (far.q_pos - far.k_pos).tolist()[:5]  # of the distances 8, 7, 6, 5, 4; those below 4 stay
        [6, 6, 5, 5, 4]
    """

    group: Span = 8
    window: Span = 1024

    def turns(self, i: Num[Array, " t"], j: Num[Array, " s"]) -> tuple[Turn, ...]:
        """Returns i and j, and floor(i / G) + W - floor(W / G) and floor(j / G) from the distance W on."""
        ahead = self.window - self.window // self.group
        return Turn(i, j), Turn(i // self.group + ahead, j // self.group, distance(i, j, i.dtype) >= self.window)


@dataclasses.dataclass(frozen=True)
class ReRoPE(Remapped):
    """ReRoPE: RoPE whose distances are at most `window` w.

    The author multiplies queries by max(1, log_L(i + 1)) as well, with the trained length L: that is
    `compose(LogN(length=L), ReRoPE())`.

    Reference: Su 2023 (https://kexue.fm/archives/9708); https://github.com/bojone/rerope.

    Example:
        >>> near, far = ReRoPE(window=4).turns(jnp.array([8]), jnp.arange(3))
        >>> (far.q_pos - far.k_pos).tolist()
        [4, 4, 4]
    """

    window: Span = 512

    def turns(self, i: Num[Array, " t"], j: Num[Array, " s"]) -> tuple[Turn, ...]:
        """Returns i and j, and w and 0 from the distance w on."""
        far = distance(i, j, i.dtype) >= self.window
        return Turn(i, j), Turn(jnp.full_like(i, self.window), jnp.zeros_like(j), far)


@dataclasses.dataclass(frozen=True)
class LeakyReRoPE(Remapped):
    """Leaky ReRoPE: RoPE whose distances grow `factor` k times as slowly past `window` w; `ReRoPE` for k to infinity.

    A leaky distance is that of the positions i + w (k - 1) and j at frequencies divided by k, so w (k - 1) must be whole:
    angles are exact at whole positions (`angles.py`). Constants: those of RoPE, and leaky, its frequencies over k. The author
    multiplies queries as for `ReRoPE`.

    Reference: that of `ReRoPE`.

    Example:
        >>> near, far = LeakyReRoPE(window=4, factor=2.0).turns(jnp.array([8]), jnp.arange(3))
        >>> ((far.q_pos - far.k_pos) / 2).tolist()  # of the distances 8, 7, 6
        [6.0, 5.5, 5.0]
    """

    window: Span = 512
    factor: Factor = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        ahead = self.window * (self.factor - 1)
        if not ahead.is_integer() or ahead > FARTHEST:
            bound = f"must be a whole number of at most {FARTHEST}"
            raise ValueError(f"LeakyReRoPE: window * (factor - 1) {bound}, got {self.window} and {self.factor}")

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns frequencies, gain and leaky."""
        known = super().constants(sizes, length)
        return {**known, "leaky": exact(known["frequencies"].radians / self.factor)}

    def turns(self, i: Num[Array, " t"], j: Num[Array, " s"]) -> tuple[Turn, ...]:
        """Returns i and j, and i + w (k - 1) and j at the slower frequencies from the distance w on."""
        ahead = int(self.window * (self.factor - 1))
        return Turn(i, j), Turn(i + ahead, j, distance(i, j, i.dtype) >= self.window, "leaky")


@dataclasses.dataclass(frozen=True)
class DualChunk(Remapped):
    """Dual Chunk Attention: RoPE at positions within chunks of c = s - w tokens, with s = `chunk` and w = `local`.

    No distance is beyond those of the training. The authors take s = 3/4 L and w = L / 8 for a model trained at L = 4,096, and
    found nothing lost with other scalings of the frequencies (`scaling`) on top.

    The formulas are those of the released code, which lets distances reach s; in the paper they end at L - 1. Its factor of
    cosines for long sequences (`get_mscale`) is not part of the method as published, and is left out.

    Reference: An et al. 2024 (arXiv:2402.17463), section 3; https://github.com/HKUNLP/ChunkLlama
    (`chunkllama_attn_replace.py`).

    Example:
        >>> same, before, further = DualChunk(chunk=6, local=2).turns(jnp.array([9]), jnp.arange(10))
        >>> distances = [(turn.q_pos - turn.k_pos).tolist() for turn in (same, before, further)]
        >>> distances[0][8:], distances[1][4:8], distances[2][:4]
        ([1, 0], [5, 4, 3, 2], [6, 5, 4, 3])
    """

    chunk: Span = 3072
    local: Span = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local >= self.chunk:
            raise ValueError(f"DualChunk: local must be smaller than chunk, got {self.local} and {self.chunk}")

    def turns(self, i: Num[Array, " t"], j: Num[Array, " s"]) -> tuple[Turn, ...]:
        """Returns i mod c, min(i mod c + c, s) and min(2c - 1, s), by how many chunks the key is back, each with j mod c."""
        c = self.chunk - self.local
        inside, back = j % c, distance(i // c, j // c, i.dtype)
        before, further = jnp.minimum(i % c + c, self.chunk), jnp.full_like(i, min(2 * c - 1, self.chunk))
        return Turn(i % c, inside), Turn(before, inside, back >= 1), Turn(further, inside, back >= 2)


@dataclasses.dataclass(frozen=True)
class LMInfinite(Remapped):
    """LM-Infinite: RoPE with all keys beyond a window at one distance.

    Hyper-parameters: `first` n, the keys at the start that all queries see; `window` W, the farthest of the other keys that a
    query sees; `limit` D, W + 1 unless given. The mask or the config of a model decides which keys a query sees, and needs the
    same two numbers:

        Mask(causal=True, window=(W, 0), first=n)        TransformerConfig(window=(W, 0), window_first=n)

    This is the rule with `local_branch` = W + 1 and `limit_distance` = D of the authors' code, without the keys of highest
    scores (`top_k_attention`).

    Reference: Han et al. 2024 (arXiv:2308.16137), section 4; https://github.com/Glaciohound/LM-Infinite.

    Example:
        >>> near, far = LMInfinite(first=2, window=3).turns(jnp.array([8]), jnp.arange(2))
        >>> (far.q_pos - far.k_pos).tolist()
        [4, 4]
    """

    first: Span = 10
    window: Span = 4095
    limit: Span | None = None

    def turns(self, i: Num[Array, " t"], j: Num[Array, " s"]) -> tuple[Turn, ...]:
        """Returns i and j, and D and 0 beyond the window."""
        farthest = jnp.full_like(i, self.limit or self.window + 1)
        return Turn(i, j), Turn(farthest, jnp.zeros_like(j), distance(i, j, i.dtype) > self.window)


@dataclasses.dataclass(frozen=True)
class StreamingLLM(Remapped):
    """StreamingLLM: RoPE with the `first` n keys as far away as in a cache that holds them and the last `window` W tokens.

    The mask is that of `LMInfinite`. A key is one of the first where its position is below n, so positions must count from 0 at
    the first of them, and padding on the left must take none. `generate` passes such positions; a call with padding needs

        pos = jnp.maximum(jnp.cumsum(valid, -1) - 1, 0)

    The authors number tokens by their place in a cache of n + W + 1, where the first are followed by the last. Distances
    within the window stay the same, and those to the first keys end at n + W - j, which is the formula above: keys need not be
    turned anew. The numbers are those of the authors' code where it evicts after every token, as its evaluation does
    (`start_size` n, `recent_size` W). Where it reads several tokens at once, each of them sees all kept tokens and all before
    it in the chunk, and the numbers differ.

    Reference: Xiao et al. 2023 (arXiv:2309.17453), section 3.2; https://github.com/mit-han-lab/streaming-llm.

    Example:
        >>> others, first = StreamingLLM(first=2, window=3).turns(jnp.array([8]), jnp.arange(2))
        >>> (first.q_pos - first.k_pos).tolist()
        [5, 4]
    """

    first: Span = 4
    window: Span = 512

    def turns(self, i: Num[Array, " t"], j: Num[Array, " s"]) -> tuple[Turn, ...]:
        """Returns i and j, and min(i, n + W) and j of the first keys."""
        return Turn(i, j), Turn(jnp.minimum(i, self.first + self.window), j, (j < self.first)[None, :])
