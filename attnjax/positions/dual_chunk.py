"""Dual Chunk Attention: no distance beyond that of the training, by three kinds of distances between chunks of tokens.

With the chunk length c = s - w, query i and key j in the chunks floor(i / c) and floor(j / c),

    distance of i and j = i - j                            in the same chunk
                          min(i mod c + c, s) - j mod c    in the chunk before: i - j for at least w keys
                          min(2c - 1, s) - j mod c         in a chunk further back

Acts on scores, see `remapped.py`; keys have one map, j mod c. Nothing is learned. Hyper-parameters beside those of RoPE, in
positions: `chunk` s (3,072) and `local` w (512), which must be smaller. The authors take s = 3/4 L and w = L / 8 for a model
trained at L = 4,096, and found nothing lost with other scalings of the frequencies (`scaling`) on top.

The formulas are those of the released code, which lets distances reach s; in the paper they end at L - 1. Its factor of cosines
for long sequences (`get_mscale`) is not part of the method as published, and is left out.

Reference: An et al. 2024 (arXiv:2402.17463), section 3; https://github.com/HKUNLP/ChunkLlama (`chunkllama_attn_replace.py`).
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from attnjax.positions.remapped import Remapped, Turn
from attnjax.typing import Array, Bool, Num


@dataclasses.dataclass(frozen=True)
class DualChunk(Remapped):
    """RoPE at positions within chunks of `chunk` - `local` tokens.

    Raises ValueError for sizes that are no whole numbers of at least 1, `local` that is not below `chunk`, and where RoPE does.

    Example:
        >>> method, pos = DualChunk(chunk=6, local=2), jnp.arange(12)
        >>> same, before, further = (turn.pos[9] for turn in method.queries(pos))
        >>> k = method.keys(pos)[0].pos
        >>> (same - k[8:10]).tolist(), (before - k[4:8]).tolist(), (further - k[:4]).tolist()
        ([1, 0], [5, 4, 3, 2], [6, 5, 4, 3])
    """

    chunk: int = 3072
    local: int = 512

    PAIRS: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (1, 0), (2, 0))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole(chunk=self.chunk, local=self.local)
        if self.local >= self.chunk:
            raise ValueError(f"DualChunk: local must be smaller than chunk, got {self.local} and {self.chunk}")

    @property
    def length(self) -> int:
        """c, the tokens of a chunk."""
        return self.chunk - self.local

    def queries(self, pos: Num[Array, " t"]) -> tuple[Turn, ...]:
        """i mod c, min(i mod c + c, s) and min(2c - 1, s)."""
        inside, last = pos % self.length, min(2 * self.length - 1, self.chunk)
        before = jnp.minimum(inside + self.length, self.chunk)
        return Turn(inside), Turn(before), Turn(jnp.full(pos.shape, last, jnp.int32))

    def keys(self, pos: Num[Array, " s"]) -> tuple[Turn, ...]:
        """j mod c."""
        return (Turn(pos % self.length),)

    def choose(self, q_pos: Num[Array, "t 1"], k_pos: Num[Array, "1 s"]) -> tuple[Bool[Array, "t s"], ...]:
        """One chunk further back, and more than one."""
        back = q_pos // self.length - k_pos // self.length
        return back >= 1, back >= 2
