"""ReRoPE and Leaky ReRoPE: distances as they are within a window; beyond it all the same, or growing more slowly.

    ReRoPE          distance of query i and key j = min(i - j, w)
    Leaky ReRoPE                                    i - j           where i - j < w
                                                    w + (i - j - w) / k    elsewhere

Acts on scores, see `remapped.py`. Nothing is learned. Hyper-parameters beside those of RoPE: `window` w (512), in positions,
and `factor` k (16) of the leaky one, whose limit is ReRoPE. A leaky distance is that of the positions i + w (k - 1) and j at
frequencies divided by k, so w (k - 1) must be whole: angles are exact at whole positions (`angles.py`).

The author multiplies queries by max(1, log_L(i + 1)) as well, with the trained length L: that is
`compose(LogN(length=L), ReRoPE())`.

Reference: Su 2023 (https://kexue.fm/archives/9708); https://github.com/bojone/rerope.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from attnjax.positions.angles import Frequencies, exact, rounded
from attnjax.positions.base import EncodingParams, Sizes
from attnjax.positions.concrete import concrete
from attnjax.positions.remapped import FARTHEST, Remapped, Turn
from attnjax.positions.scaling import check_factor
from attnjax.typing import Array, Bool, Num


@dataclasses.dataclass(frozen=True)
class ReRoPE(Remapped):
    """RoPE whose distances are at most `window`.

    Raises ValueError for a window that is no whole number of at least 1, and where RoPE does.

    Example:
        >>> method, pos = ReRoPE(window=4), jnp.arange(9)
        >>> (method.queries(pos)[1].pos - method.keys(pos)[1].pos).tolist()[:2]
        [4, 4]
    """

    window: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole(window=self.window)

    def queries(self, pos: Num[Array, " t"]) -> tuple[Turn, ...]:
        """i, and w."""
        return Turn(pos), Turn(jnp.full(pos.shape, self.window, jnp.int32))

    def keys(self, pos: Num[Array, " s"]) -> tuple[Turn, ...]:
        """j, and 0."""
        return Turn(pos), Turn(jnp.zeros(pos.shape, jnp.int32))

    def choose(self, q_pos: Num[Array, "t 1"], k_pos: Num[Array, "1 s"]) -> tuple[Bool[Array, "t s"], ...]:
        """w from the distance w on."""
        return (q_pos - k_pos >= self.window,)


@dataclasses.dataclass(frozen=True)
class LeakyReRoPE(Remapped):
    """RoPE whose distances grow `factor` times as slowly past `window`.

    Constants: those of RoPE, and shared={"leaky": its frequencies over the factor}.
    Raises ValueError for a window that is no whole number of at least 1, a factor below 1, window * (factor - 1) that is no
    whole number, and where RoPE does.

    Example:
        >>> method, pos = LeakyReRoPE(window=4, factor=2.0), jnp.arange(9)
        >>> ((method.queries(pos)[1].pos[8] - method.keys(pos)[1].pos) / 2).tolist()[:3]  # of the distances 8, 7, 6
        [6.0, 5.5, 5.0]
    """

    window: int = 512
    factor: float = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole(window=self.window)
        check_factor("LeakyReRoPE", self.factor)
        ahead = self.window * (self.factor - 1)
        if ahead != int(ahead) or ahead > FARTHEST:
            raise ValueError(
                f"LeakyReRoPE: window * (factor - 1) must be a whole number of at most {FARTHEST}, got {self.window} and "
                f"{self.factor}"
            )

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """shared={"frequencies", "gain", "leaky"}."""
        known = super().constants(sizes, length).shared
        return EncodingParams(shared={**known, "leaky": slower(known["frequencies"], self.factor)})

    def queries(self, pos: Num[Array, " t"]) -> tuple[Turn, ...]:
        """i, and i + w (k - 1) at the slower frequencies."""
        return Turn(pos), Turn(pos + int(self.window * (self.factor - 1)), "leaky")

    def keys(self, pos: Num[Array, " s"]) -> tuple[Turn, ...]:
        """j, and j at the slower frequencies."""
        return Turn(pos), Turn(pos, "leaky")

    def choose(self, q_pos: Num[Array, "t 1"], k_pos: Num[Array, "1 s"]) -> tuple[Bool[Array, "t s"], ...]:
        """The slower ones from the distance w on."""
        return (q_pos - k_pos >= self.window,)


def slower(frequencies: Frequencies, factor: float) -> Frequencies:
    """Frequencies over a factor; those of a traced length are rounded to float32.

    Example:
        >>> import numpy as np
        >>> slower(exact(np.array([0.5])), 2.0).radians.tolist()
        [0.25]
    """
    radians = concrete(frequencies.radians)
    return rounded(jnp.asarray(frequencies.radians) / factor) if radians is None else exact(radians / factor)
