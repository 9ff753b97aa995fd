"""How the frequencies of RoPE are stretched past the training length.

With s the `factor` (new length over original length L), T the length of the sequence, theta the base, d the rotary width,
and f_k = theta^(-2k/d):

    PositionInterpolation   f_k / s                                    Chen et al. 2023 (arXiv:2306.15595)
    NTKAware                f_k of the base theta s^(d/(d-2))          Peng et al. 2023 (arXiv:2309.00071), section 3.1
    YaRN                    from f_k / s to f_k, by turns within L     the same, sections 3.2 and 3.4
    Llama3                  from f_k / s to f_k, by wavelength         Grattafiori et al. 2024 (arXiv:2407.21783)
    DynamicNTK              f_k; for T > L those of the base           Peng et al. 2023, section 3.3, after a note by emozilla
                            theta (s T/L - (s-1))^(d/(d-2))
    LongRoPE                f_k / lambda_k, with one list of lambda    Ding et al. 2024 (arXiv:2402.13753)
                            for T > L and another otherwise
    Resonance               2 pi / round(2 pi / f_k)                   Wang et al. 2024 (arXiv:2403.00071), section 4

Acts inside `RoPE`. All are computed on the host in float64, and all but Resonance agree with `modeling_rope_utils` of
Hugging Face transformers 5. Nothing is remembered: a short sequence after a long one has the original frequencies.
"""

import dataclasses
import math
from typing import Annotated

import numpy as np

from attnjax.config.kinds import Count, Positive, Range, settle
from attnjax.positions.angles import geometric

Factor = Annotated[float, Range(1)]
"""A new length over the original one."""


class Scaling:
    """A rule for the frequencies of RoPE. Subclasses are frozen dataclasses and define `radians`; annotations are checked.

    Example:
        >>> isinstance(YaRN(4.0, original_length=2048), Scaling)
        True
    """

    length_dependent = False
    """Whether the frequencies depend on the length of the sequence."""

    def __post_init__(self) -> None:
        settle(self, type(self).__name__)  # pyrefly: ignore, subclasses are dataclasses

    @property
    def gain(self) -> float:
        """The attention factor: cosines and sines of q and of k are multiplied by it, so logits by its square."""
        return 1.0

    def radians(self, pairs: int, theta: float, length: int | None = None) -> np.ndarray:
        """Returns radians per position, [pairs], in float64; those of the original length where `length` is None.

        Raises ValueError for a number of pairs that the rule cannot serve.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class PositionInterpolation(Scaling):
    """f_k / factor: positions are squeezed into the trained range (Chen et al. 2023).

    Example:
        >>> PositionInterpolation(4.0).radians(2, 10_000.0).tolist()
        [0.25, 0.0025]
    """

    factor: Factor

    def radians(self, pairs: int, theta: float, length: int | None = None) -> np.ndarray:
        """Returns theta^(-2k/d) / factor."""
        return geometric(pairs, theta) / self.factor


@dataclasses.dataclass(frozen=True)
class NTKAware(Scaling):
    """The base grows to theta * factor^(d/(d-2)): the fastest pair is kept, the slowest is divided by `factor`.

    Reference: Peng et al. 2023, section 3.1, after a note by bloc97. A rotary width of 2 is refused.

    Example:
        >>> (NTKAware(4.0).radians(2, 10_000.0) / geometric(2, 10_000.0)).round(6).tolist()
        [1.0, 0.25]
    """

    factor: Factor

    def radians(self, pairs: int, theta: float, length: int | None = None) -> np.ndarray:
        """Returns (theta * factor^(d/(d-2)))^(-2k/d)."""
        return _of_larger_base(self, pairs, theta, self.factor)


@dataclasses.dataclass(frozen=True)
class YaRN(Scaling):
    """Fast pairs keep their frequency, slow ones are divided by `factor`, with a ramp over the pairs in between.

    A pair that turns r times within `original_length` has index k(r) = d ln(L / (2 pi r)) / (2 ln theta). The ramp runs
    from floor(k(beta_fast)) to ceil(k(beta_slow)), kept within [0, d-1], or between the numbers themselves where `truncate`
    is False, as in gpt-oss. `attention_factor` is 0.1 ln(factor) + 1 unless given. As in the released code, where no pair
    turns beta_slow times within `original_length` (which then is below 2 pi beta_slow, 6 tokens by default) the ends may
    cross, and then every pair keeps its frequency. They also cross where L > 2 pi beta_fast theta^2, which no model has, and
    then every pair is divided.

    Reference: Peng et al. 2023 (arXiv:2309.00071), sections 3.2 and 3.4.

    Example:
        >>> (YaRN(4.0, original_length=100).radians(2, 10_000.0) / geometric(2, 10_000.0)).round(6).tolist()
        [1.0, 0.25]
    """

    factor: Factor
    original_length: Count
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    attention_factor: Positive | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"YaRN: beta_fast must exceed beta_slow, got {self.beta_fast} and {self.beta_slow}")

    @property
    def gain(self) -> float:
        """0.1 ln(factor) + 1 unless given."""
        return self.attention_factor or 0.1 * math.log(self.factor) + 1.0

    def radians(self, pairs: int, theta: float, length: int | None = None) -> np.ndarray:
        """Returns f_k (1 - ramp_k) + f_k / factor * ramp_k."""
        index = lambda turns: pairs * math.log(self.original_length / (2 * math.pi * turns)) / math.log(theta)
        low, high = index(self.beta_fast), index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        ramp = np.clip((np.arange(pairs) - low) / (high - low or 0.001), 0.0, 1.0)
        fast = geometric(pairs, theta)
        return fast * (1 - ramp) + fast / self.factor * ramp


@dataclasses.dataclass(frozen=True)
class Llama3(Scaling):
    """Wavelengths below L / high_freq_factor are kept, those above L / low_freq_factor stretched, smoothly in between.

    With r = L f_k / (2 pi) turns within `original_length` and m = (r - low) / (high - low) clipped to [0, 1], the
    frequency is f_k (m + (1 - m) / factor). The Llama 3.1 release uses factor 8 and an original length of 8,192.

    Reference: Grattafiori et al. 2024 (arXiv:2407.21783) and the code released with the weights.

    Example:
        >>> (Llama3(8.0, original_length=8192).radians(2, 1e12) / geometric(2, 1e12)).round(6).tolist()
        [1.0, 0.125]
    """

    factor: Factor
    original_length: Count
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.low_freq_factor, self.high_freq_factor
        if high <= low:
            raise ValueError(f"Llama3: high_freq_factor must exceed low_freq_factor, got {high} and {low}")

    def radians(self, pairs: int, theta: float, length: int | None = None) -> np.ndarray:
        """Returns f_k (m_k + (1 - m_k) / factor)."""
        fast = geometric(pairs, theta)
        turns = self.original_length * fast / (2 * math.pi)
        mix = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0)
        return fast * mix + fast / self.factor * (1 - mix)


@dataclasses.dataclass(frozen=True)
class DynamicNTK(Scaling):
    """NTK-aware scaling by the length T of the sequence: `factor` is s in s T/L - (s-1). A rotary width of 2 is refused.

    Reference: Peng et al. 2023 (arXiv:2309.00071), section 3.3, after a note by emozilla.

    Example:
        >>> scaling = DynamicNTK(2.0, original_length=100)
        >>> [scaling.radians(2, 10_000.0, length)[1].round(6).item() for length in (100, 200)]
        [0.01, 0.003333]
    """

    factor: Factor
    original_length: Count

    length_dependent = True

    def radians(self, pairs: int, theta: float, length: int | None = None) -> np.ndarray:
        """Returns the frequencies of the base theta (1 + factor (T-L)/L)^(d/(d-2)), and of theta up to L."""
        excess = max((length or 0) - self.original_length, 0) / self.original_length
        return _of_larger_base(self, pairs, theta, 1 + self.factor * excess)


@dataclasses.dataclass(frozen=True)
class LongRoPE(Scaling):
    """A factor for every pair, found by search, from one list up to the original length and from another past it.

    `attention_factor` is sqrt(1 + ln(factor) / ln(original_length)) unless given, with `factor` the new length over the
    original one. The lists do not state the new length: with neither `factor` nor `attention_factor` it is 1.

    Reference: Ding et al. 2024 (arXiv:2402.13753).

    Example:
        >>> scaling = LongRoPE(short_factors=(1.0, 1.0), long_factors=(1.0, 4.0), original_length=100)
        >>> [scaling.radians(2, 10_000.0, length).tolist() for length in (100, 101)]
        [[1.0, 0.01], [1.0, 0.0025]]
    """

    short_factors: tuple[Positive, ...]
    long_factors: tuple[Positive, ...]
    original_length: Annotated[int, Range(2)]
    attention_factor: Positive | None = None
    factor: Factor | None = None

    length_dependent = True

    @property
    def gain(self) -> float:
        """sqrt(1 + ln(factor) / ln(original_length)) unless given."""
        return self.attention_factor or math.sqrt(1 + math.log(self.factor or 1.0) / math.log(self.original_length))

    def radians(self, pairs: int, theta: float, length: int | None = None) -> np.ndarray:
        """Returns theta^(-2k/d) / lambda_k. Raises ValueError unless both lists have one factor per pair."""
        for name, factors in (("short_factors", self.short_factors), ("long_factors", self.long_factors)):
            if len(factors) != pairs:
                raise ValueError(f"LongRoPE: {name} must have one number per pair, {pairs}, got {len(factors)}")
        factors = self.long_factors if (length or 0) > self.original_length else self.short_factors
        return geometric(pairs, theta) / np.array(factors)


@dataclasses.dataclass(frozen=True)
class Resonance(Scaling):
    """Wavelengths rounded to whole numbers of positions (Wang et al. 2024): 2 pi / round(2 pi / f_k).

    A pair whose wavelength is a whole number of positions has as many angles as that, however long the sequence is: where
    it has turned once within the trained length, all of its angles are known. The frequencies f_k are those of RoPE, or of
    the rule `of`, as in `RoPE(scaling=Resonance(YaRN(4.0, 4096)))`, whose attention factor stays. A rule that depends on
    the length is refused. A half is rounded to the even number, as in the released code. Its authors train with it. Put on
    a model that was trained without, it changes the fast pairs by up to 4.7 % at theta = 10,000 (a wavelength of 6.28
    becomes 6) and 5.2 % at 500,000, which shifts far distances by many radians.

    Reference: Wang et al. 2024 (arXiv:2403.00071), section 4; https://github.com/sheryc/resonance_rope.

    Example:
        >>> (2 * math.pi / Resonance().radians(2, 10_000.0)).round(6).tolist()
        [6.0, 628.0]
    """

    of: Scaling | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of is not None and self.of.length_dependent:
            raise ValueError(f"Resonance: of must be a rule that does not depend on the length, got {self.of}")

    @property
    def gain(self) -> float:
        """The attention factor of the rule `of`."""
        return 1.0 if self.of is None else self.of.gain

    def radians(self, pairs: int, theta: float, length: int | None = None) -> np.ndarray:
        """Returns 2 pi / round(2 pi / f_k)."""
        own = geometric(pairs, theta) if self.of is None else self.of.radians(pairs, theta)
        return 2 * math.pi / np.round(2 * math.pi / own)


def _of_larger_base(rule: Scaling, pairs: int, theta: float, growth: float) -> np.ndarray:
    """Returns the frequencies of the base theta * growth^(d/(d-2)): growth divides those of the last pair."""
    if pairs < 2:
        name = type(rule).__name__
        raise ValueError(f"{name} changes the base by a power d/(d-2): the rotary width must exceed 2, got {2 * pairs}")
    return geometric(pairs, theta * growth ** (pairs / (pairs - 1)))
