"""Rotary positions (RoPE), and their partial forms.

    score(i, j) = scale * q_i . R(j - i) k_j,    pair k turned by pos * theta_k,    theta_k = theta^(-2k/d)

Acts on queries and keys (`map_q`, `map_k`): q[T,H], pos[T] -> [T,H]. Nothing is learned. Hyper-parameters:

    theta      base of the frequencies (10,000)
    layout     which channels are a pair, see `rotary.py`
    fraction   share of the head that is rotated; d is the rotary width, not the head dimension (GPT-NeoX uses 0.25)
    keep       p of p-RoPE: this share of the pairs, those of the highest frequencies, turns; the others do not
    scaling    a rule of `scaling.py` or `scaling_dynamic.py` that stretches the frequencies past the training length

`fraction` and `keep` round down to whole pairs. They differ: `fraction` keeps the whole range of frequencies on fewer
channels, `keep` cuts the low frequencies away. A scaling is computed for all pairs of the rotary width, before `keep`.

References: Su et al. 2021 (arXiv:2104.09864), section 3.2; Black et al. 2022 (arXiv:2204.06745) for `fraction`;
Barbero et al. 2025 (arXiv:2410.06205) for `keep`.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from attnjax.positions.angles import Frequencies, angles, exact, geometric
from attnjax.positions.base import EncodingParams, Sizes, Trait
from attnjax.positions.checks import validate
from attnjax.positions.population import numeric
from attnjax.positions.rotary import Layout, Rotation, check_even, check_layout, rotate
from attnjax.positions.scaling import Scaling
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class RoPE(Rotation):
    """Queries and keys turned by their position, so that the score sees the distance alone (Su et al. 2021).

    Constants: shared={"frequencies": of every pair, after scaling and `keep`, "gain": the scaling's attention factor}.
    Raises ValueError for hyper-parameters out of range, an odd head dimension, or shares that leave no pair.

    Example:
        >>> rope, x = RoPE(theta=500_000.0), np.ones((3, 8), np.float32)
        >>> p = rope.constants(Sizes(16, 2, 2, 8))
        >>> rope.map_q(p, x, np.array([0, 1, 2]))[0].tolist() == x[0].tolist()
        True
    """

    theta: float = numeric(10_000.0)
    layout: Layout = "half"
    fraction: float = 1.0
    scaling: Scaling | None = numeric(None)  # noqa: RUF009, this makes a field, as dataclasses.field does
    keep: float = numeric(1.0)

    def __post_init__(self) -> None:
        name = type(self).__name__
        validate(name, theta=self.theta, fraction=self.fraction, keep=self.keep)
        check_layout(self.layout)
        if self.fraction > 1 or self.keep > 1:
            raise ValueError(f"{name}: fraction and keep are shares in (0, 1], got {self.fraction} and {self.keep}")
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            raise ValueError(f"{name}: scaling must be None or a rule such as YaRN(...), got {self.scaling!r}")
        if self.scaling is not None and self.theta <= 1:
            raise ValueError(f"{name}: a scaling needs theta > 1, got {self.theta}")

    @property
    def traits(self) -> Trait:
        """The maps, and the length where the scaling depends on it."""
        by_length = self.scaling is not None and self.scaling.length_dependent
        return super().traits | Trait.LENGTH if by_length else super().traits

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses an odd head dimension, shares that leave no pair, and lists of factors of another length."""
        del causal, pos
        if sizes is not None:
            pairs, _ = self.pairs(sizes.head_dim)
            if self.scaling is not None:
                self.scaling.check(pairs)

    def pairs(self, head_dim: int) -> tuple[int, int]:
        """Pairs of the rotary width of a head dimension, and how many of them turn."""
        check_even(type(self).__name__, head_dim)
        pairs = _share(self.fraction, head_dim // 2)
        turning = _share(self.keep, pairs)
        if not turning:
            shares = f"fraction={self.fraction} and keep={self.keep}"
            raise ValueError(f"{type(self).__name__}: {shares} leave no pair of a head dimension of {head_dim}")
        return pairs, turning

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """shared={"frequencies", "gain"}. Raises ValueError where the scaling depends on a length that is not given."""
        gain = np.float64(1.0 if self.scaling is None else self.scaling.gain)
        return EncodingParams(shared={"frequencies": self.frequencies(sizes.head_dim, length), "gain": gain})

    def frequencies(self, head_dim: int, length: Any = None) -> Frequencies:
        """Radians per position of every pair, after scaling and `keep`, in the order of the pairs."""
        pairs, turning = self.pairs(head_dim)
        if length is None and Trait.LENGTH in self.traits:
            raise ValueError(f"the frequencies of {self} depend on the length of the sequence, got length=None")
        if self.scaling is None:
            found = exact(geometric(pairs, self.theta))
        else:
            self.scaling.check(pairs)
            found = self.scaling.frequencies(pairs, self.theta, length)
        turns = np.arange(pairs) < turning
        return Frequencies(*(words * turns.astype(words.dtype) for words in found))

    def turn(self, p: EncodingParams, x: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """R(pos) x, times the attention factor of the scaling on the rotary channels."""
        angle = angles(pos, p.shared["frequencies"], compute_dtype(x))
        return rotate(x, angle, self.layout, p.shared["gain"])


def _share(share: float, of: int) -> int:
    """Whole pairs in a share, rounding down; a share that means a whole number is not lost to binary fractions."""
    return math.floor(share * of + 1e-9)
