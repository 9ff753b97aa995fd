"""Self-Extend: distances as they are within a window, and in groups beyond it.

    distance of query i and key j = i - j                                      where i - j < W
                                    floor(i / G) - floor(j / G) + W - floor(W / G)    elsewhere

Acts on scores, see `remapped.py`. Nothing is learned. Hyper-parameters beside those of RoPE: `group` G (8) and `window` W
(1,024), both in positions. Past the window distances grow G times as slowly and go on from W, so that a model trained at L
reads up to (L - W) G + W tokens without a distance that it has not seen. The authors recommend W of about a quarter to a half
of L, and G as small as the length allows.

The released code adds W - W / G, which is no whole number unless G divides W; here it is rounded as in the paper, and as
in the authors' code for decoding. That code leaves every distance as it is in sequences of at most W tokens, and so does
the rule.

Reference: Jin et al. 2024 (arXiv:2401.01325), section 3.2; https://github.com/datamllab/LongLM.
"""

import dataclasses

from attnjax.positions.remapped import Remapped, Turn
from attnjax.typing import Array, Bool, Num


@dataclasses.dataclass(frozen=True)
class SelfExtend(Remapped):
    """RoPE with grouped positions past a window.

    Raises ValueError for a window or group that is no whole number of at least 1, and where RoPE does.

    Example:
        >>> import jax.numpy as jnp
        >>> method, pos = SelfExtend(group=2, window=4), jnp.arange(9)
        >>> q, k = (turns[1].pos for turns in (method.queries(pos), method.keys(pos)))
        >>> (q[8] - k).tolist()[:5]  # of the distances 8, 7, 6, 5, 4; those below 4 stay
        [6, 6, 5, 5, 4]
    """

    group: int = 8
    window: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole(group=self.group, window=self.window)

    def queries(self, pos: Num[Array, " t"]) -> tuple[Turn, ...]:
        """i, and floor(i / G) + W - floor(W / G)."""
        return Turn(pos), Turn(pos // self.group + (self.window - self.window // self.group))

    def keys(self, pos: Num[Array, " s"]) -> tuple[Turn, ...]:
        """j, and floor(j / G)."""
        return Turn(pos), Turn(pos // self.group)

    def choose(self, q_pos: Num[Array, "t 1"], k_pos: Num[Array, "1 s"]) -> tuple[Bool[Array, "t s"], ...]:
        """Groups from the distance W on."""
        return (q_pos - k_pos >= self.window,)
