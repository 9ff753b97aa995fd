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
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, validate
from attnjax.positions.rotary import Layout, check_even, check_layout, rotate
from attnjax.positions.scaling import Scaling
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree, compute_dtype


@dataclasses.dataclass(frozen=True)
class RoPE(PositionEncoding):
    """Queries and keys turned by their position, so that the score sees the distance alone (Su et al. 2021).

    With a length-dependent scaling, `bind` passes the length to the maps as shared={"length": length}.
    Raises ValueError for hyper-parameters out of range, an odd head dimension, or shares that leave no pair.
    """

    theta: float = 10_000.0
    layout: Layout = "half"
    fraction: float = 1.0
    scaling: Scaling | None = None
    keep: float = 1.0

    def __post_init__(self) -> None:
        validate("RoPE", theta=self.theta, fraction=self.fraction, keep=self.keep)
        check_layout(self.layout)
        if self.fraction > 1 or self.keep > 1:
            raise ValueError(f"RoPE: fraction and keep are shares in (0, 1], got {self.fraction} and {self.keep}")
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            raise ValueError(f"RoPE: scaling must be None or a rule such as YaRN(...), got {self.scaling!r}")
        if self.scaling is not None and self.theta <= 1:
            raise ValueError(f"RoPE: a scaling needs theta > 1, got {self.theta}")

    @property
    def length_dependent(self) -> bool:
        """Whether the scaling depends on the length of the sequence."""
        return self.scaling is not None and self.scaling.length_dependent

    def bind(self, params: EncodingParams, heads: int, length: Any = None) -> EncodingParams:
        """Hand the length to the maps, where the scaling depends on it."""
        del heads
        if not self.length_dependent or length is None:
            return params
        return params._replace(shared={"length": length})

    def check(self, sizes: Sizes, *, causal: bool) -> None:
        """Refuse an odd head dimension, shares that leave no pair, and factor lists of another length."""
        del causal
        pairs, _ = self.pairs(sizes.head)
        if self.scaling is not None:
            self.scaling.check(pairs)

    def pairs(self, head: int) -> tuple[int, int]:
        """Pairs of the rotary width of a head dimension, and how many of them turn."""
        check_even("RoPE", head)
        pairs = _share(self.fraction, head // 2)
        turning = _share(self.keep, pairs)
        if not turning:
            raise ValueError(
                f"RoPE: fraction={self.fraction} and keep={self.keep} leave no pair of a head dimension of {head}"
            )
        return pairs, turning

    def as_data(self, sizes: Sizes) -> tuple[PositionEncoding, EncodingParams]:
        """Base, scaling and `keep` are frequencies and an attention factor, unless the scaling looks at the length."""
        if self.length_dependent:
            return super().as_data(sizes)
        program = dataclasses.replace(self, theta=10_000.0, keep=1.0, scaling=None)
        return program, EncodingParams(shared={"frequencies": self.frequencies(sizes.head), "gain": self._gain(())})

    def frequencies(self, head: int, shared: PyTree = ()) -> Frequencies:
        """Radians per position of every pair, after scaling and `keep`, in the order of the pairs."""
        pairs, turning = self.pairs(head)
        if _given(shared):
            return shared["frequencies"]
        if self.scaling is None:
            found = exact(geometric(pairs, self.theta))
        else:
            self.scaling.check(pairs)
            found = self.scaling.frequencies(pairs, self.theta, _length(self, shared))
        turns = np.arange(pairs) < turning
        return Frequencies(*(words * turns.astype(words.dtype) for words in found))

    def map_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]
    ) -> Float[Array, "T H"]:
        """R(pos) q, times the attention factor of the scaling on the rotary channels."""
        del head
        return self._turn(shared, q, pos)

    def map_k(self, shared: PyTree, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S H"]:
        """R(pos) k, times the attention factor of the scaling on the rotary channels."""
        return self._turn(shared, k, pos)

    def _turn(self, shared: PyTree, x: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        angle = angles(pos, self.frequencies(x.shape[-1], shared), compute_dtype(x))
        return rotate(x, angle, self.layout, self._gain(shared))

    def _gain(self, shared: PyTree) -> Any:
        """The attention factor."""
        if _given(shared):
            return shared["gain"]
        return np.float64(1.0 if self.scaling is None else self.scaling.gain)


def _given(shared: PyTree) -> bool:
    """Whether frequencies and attention factor come as data."""
    return isinstance(shared, dict) and "frequencies" in shared


def _share(share: float, of: int) -> int:
    """Whole pairs in a share, rounding down; a share that means a whole number is not lost to binary fractions."""
    return math.floor(share * of + 1e-9)


def _length(encoding: RoPE, shared: PyTree) -> Any:
    if not encoding.length_dependent:
        return None
    if not isinstance(shared, dict) or "length" not in shared:
        raise ValueError(
            f"{encoding} depends on the length: pass the result of bind(params, heads, length), got {shared!r}"
        )
    return shared["length"]
