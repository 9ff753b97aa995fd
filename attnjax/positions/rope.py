"""Rotary positions (RoPE), and their partial forms.

    score(i, j) = scale * q_i . R(j - i) k_j,    pair k turned by pos * theta_k,    theta_k = theta^(-2k/d)

Acts on queries and keys (`angle`). Nothing is learned. Hyper-parameters:

    theta      base of the frequencies (10,000)
    layout     which channels are a pair, see `rotary.py`
    fraction   share of the head that is rotated; d is the rotary width, not the head dimension (GPT-NeoX uses 0.25)
    keep       p of p-RoPE: this share of the pairs, those of the highest frequencies, turns; the others do not
    scaling    a rule of `scaling.py` that stretches the frequencies past the training length

`fraction` and `keep` round down to whole pairs. They differ: `fraction` keeps the whole range of frequencies on fewer
channels, `keep` cuts the low frequencies away. A scaling is computed for all pairs of the rotary width, before `keep`.

References: Su et al. 2021 (arXiv:2104.09864), section 3.2; Black et al. 2022 (arXiv:2204.06745) for `fraction`;
Barbero et al. 2025 (arXiv:2410.06205) for `keep`.
"""

import dataclasses
import math
from typing import Annotated

import numpy as np

from attnjax.config.kinds import Positive, Range
from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.population import numeric
from attnjax.positions.rotary import Layout, pairs_of
from attnjax.positions.scaling import Scaling
from attnjax.typing import Array, ArrayLike, Float, Num

Share = Annotated[float, Range(0, 1, open_low=True)]


@dataclasses.dataclass(frozen=True)
class RotaryFrequencies(PositionEncoding):
    """The hyper-parameters of RoPE and the frequencies that they give, for RoPE and for methods that remap its positions.

    Constants: frequencies of every pair, after scaling and `keep`; gain, the attention factor of the scaling.

    Example:
        >>> RoPE(fraction=0.5).pairs(64)
        (16, 16)
    """

    theta: Positive = numeric(10_000.0)
    layout: Layout = "half"
    fraction: Share = 1.0
    scaling: Scaling | None = numeric(None)
    keep: Share = numeric(1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scaling is not None and self.theta <= 1:
            raise ValueError(f"{type(self).__name__}: a scaling needs theta > 1, got {self.theta}")

    @property
    def by_length(self) -> bool:
        return self.scaling is not None and self.scaling.length_dependent

    def pairs(self, head_dim: int) -> tuple[int, int]:
        """Returns the pairs of the rotary width of a head dimension, and how many of them turn."""
        # A share that means a whole number of pairs is not lost to binary fractions.
        share = lambda share, of: math.floor(share * of + 1e-9)
        pairs = share(self.fraction, pairs_of(type(self).__name__, head_dim))
        turning = share(self.keep, pairs)
        if not turning:
            shares = f"fraction={self.fraction} and keep={self.keep}"
            raise ValueError(f"{type(self).__name__}: {shares} leave no pair of a head dimension of {head_dim}")
        return pairs, turning

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns frequencies and gain. Raises ValueError for sizes that leave no pair, or that the scaling cannot serve."""
        pairs, turning = self.pairs(sizes.head_dim)
        if self.scaling is None:
            radians, gain = geometric(pairs, self.theta), 1.0
        else:
            radians, gain = self.scaling.radians(pairs, self.theta, length), self.scaling.gain
        turns = np.arange(pairs) < turning
        return {"frequencies": exact(np.where(turns, radians, 0.0)), "gain": np.float64(gain)}

    def absent(self, sizes: Sizes) -> dict:
        """Returns frequencies of 0, which turn nothing."""
        pairs, _ = self.pairs(sizes.head_dim)
        return {"frequencies": exact(np.zeros(pairs)), "gain": np.float64(1.0)}


@dataclasses.dataclass(frozen=True)
class RoPE(RotaryFrequencies):
    """Queries and keys turned by their position, so that the score sees the distance alone (Su et al. 2021).

    Raises ValueError for hyper-parameters out of range, an odd head dimension, or shares that leave no pair.

    Example:
        >>> rope, x = RoPE(theta=500_000.0), np.ones((3, 8), np.float32)
        >>> p = rope.constants(Sizes(16, 2, 2, 8))
        >>> rope.map_q(p, x, np.array([0, 1, 2]))[0].tolist() == x[0].tolist()
        True
    """

    def angle(self, p: Params, pos: Num[ArrayLike, " T"]) -> Float[Array, "T pairs"]:
        """Returns pos * theta_k."""
        return angles(pos, p["frequencies"])
