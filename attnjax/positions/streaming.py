"""LM-Infinite and StreamingLLM: the first keys stay visible beside a window, and are never further away than in the training.

    LM-Infinite     distance of query i and key j = i - j                  where i - j <= W
                                                    D                      elsewhere: all that is left there is j < n
    StreamingLLM    distance of query i and key j = min(i, n + W) - j      of the first keys, j < n
                                                    i - j                  of the others

Acts on scores, see `remapped.py`. Nothing is learned. Hyper-parameters beside those of RoPE: `first` n (10; 4), the keys at
the start that all queries see; `window` W (4,095; 512), how far back a query sees else; `limit` D of LM-Infinite, W + 1 unless
given. What a query sees is no matter of positions: give the mask, or the config of a model, the same two numbers,

    Mask(causal=True, window=(W, 0), first=n)        TransformerConfig(window=(W, 0), window_first=n)

StreamingLLM reads from a position whether a key is one of the first, so that positions must count from 0 at the first of them:
padding on the left must take none. `generate` passes such positions; a call with padding needs

    pos = jnp.maximum(jnp.cumsum(valid, -1) - 1, 0)

StreamingLLM numbers the tokens by their place in a cache of n + W + 1, where the first are followed by the last. Distances
within the window stay what they are, and those to the first keys end at n + W - j, which is the formula above. The
numbers are those of the authors' code where it evicts after every token, as
its evaluation does (`start_size` n, `recent_size` W). Where it reads several tokens at once, each of them sees all that were
kept and all before it in the chunk, and the numbers differ.

LM-Infinite is the rule with `local_branch` = W + 1 and `limit_distance` = D of its authors' code, without the keys of highest
scores (`top_k_attention`).

References: Han et al. 2024 (arXiv:2308.16137), section 4; https://github.com/Glaciohound/LM-Infinite.
Xiao et al. 2023 (arXiv:2309.17453), section 3.2; https://github.com/mit-han-lab/streaming-llm.
"""

import dataclasses

import jax.numpy as jnp

from attnjax.positions.remapped import Remapped, Turn
from attnjax.typing import Array, Bool, Num


@dataclasses.dataclass(frozen=True)
class LMInfinite(Remapped):
    """RoPE in which what lies beyond a window is at one distance.

    Raises ValueError for numbers that are not whole and at least 1, and where RoPE does.

    Example:
        >>> method = LMInfinite(first=2, window=3)
        >>> method.queries(jnp.arange(9))[1].pos[8].item()
        4
    """

    first: int = 10
    window: int = 4095
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole(first=self.first, window=self.window)
        if self.limit is not None:
            self._check_whole(limit=self.limit)

    @property
    def farthest(self) -> int:
        """D, with its default filled in."""
        return self.window + 1 if self.limit is None else self.limit

    def queries(self, pos: Num[Array, " t"]) -> tuple[Turn, ...]:
        """i, and D."""
        return Turn(pos), Turn(jnp.full(pos.shape, self.farthest, jnp.int32))

    def keys(self, pos: Num[Array, " s"]) -> tuple[Turn, ...]:
        """j, and 0."""
        return Turn(pos), Turn(jnp.zeros(pos.shape, jnp.int32))

    def choose(self, q_pos: Num[Array, "t 1"], k_pos: Num[Array, "1 s"]) -> tuple[Bool[Array, "t s"], ...]:
        """D beyond the window."""
        return (q_pos - k_pos > self.window,)


@dataclasses.dataclass(frozen=True)
class StreamingLLM(Remapped):
    """RoPE in which the first keys are as far away as in a cache that holds them and the last `window` tokens.

    Positions count from 0 at the first of the first keys, and padding takes none.

    Raises ValueError for numbers that are not whole and at least 1, and where RoPE does.

    Example:
        >>> method = StreamingLLM(first=2, window=3)
        >>> (method.queries(jnp.arange(9))[1].pos[8] - method.keys(jnp.arange(2))[0].pos).tolist()
        [5, 4]
    """

    first: int = 4
    window: int = 512

    PAIRS = ((0, 0), (1, 0))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole(first=self.first, window=self.window)

    def queries(self, pos: Num[Array, " t"]) -> tuple[Turn, ...]:
        """i, and min(i, n + W)."""
        return Turn(pos), Turn(jnp.minimum(pos, self.first + self.window))

    def keys(self, pos: Num[Array, " s"]) -> tuple[Turn, ...]:
        """j."""
        return (Turn(pos),)

    def choose(self, q_pos: Num[Array, "t 1"], k_pos: Num[Array, "1 s"]) -> tuple[Bool[Array, "#t s"], ...]:
        """The first keys."""
        del q_pos
        return (k_pos < self.first,)
