"""How the frequencies of RoPE are stretched past the training length: the rules that do not look at the length.

With s the `factor` (new length over original length L), theta the base, d = 2c the rotary width, f_k = theta^(-2k/d):

    PositionInterpolation   f_k / s                                   Chen et al. 2023 (arXiv:2306.15595)
    NTKAware                f_k of the base theta s^(d/(d-2))         Peng et al. 2023 (arXiv:2309.00071), section 3.1
    YaRN                    from f_k / s to f_k, by turns within L    the same, sections 3.2 and 3.4
    Llama3                  from f_k / s to f_k, by wavelength        Grattafiori et al. 2024 (arXiv:2407.21783)

Acts inside `RoPE`. All are computed on the host in float64 and agree with `modeling_rope_utils` of Hugging Face
transformers 5. A rule that depends on the length of the sequence is in `scaling_dynamic.py`.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from attnjax.positions.angles import Frequencies, exact, geometric
from attnjax.positions.checks import validate, validate_integer


class Scaling:
    """A rule for the frequencies of RoPE. Subclasses are frozen dataclasses and define `radians`.

    Example:
        >>> isinstance(YaRN(4.0, original_length=2048), Scaling)
        True
    """

    @property
    def gain(self) -> float:
        """The attention factor: cosines and sines of q and of k are multiplied by it, so logits by its square."""
        return 1.0

    @property
    def length_dependent(self) -> bool:
        """Whether `frequencies` needs the length of the sequence."""
        return False

    def check(self, pairs: int) -> None:
        """Raise ValueError where the rule cannot serve a rotary width of 2 * pairs."""
        del pairs

    def radians(self, pairs: int, theta: float) -> np.ndarray:
        """Radians per position, [pairs], in float64."""
        raise NotImplementedError

    def frequencies(self, pairs: int, theta: float, length: Any = None) -> Frequencies:
        """The frequencies of a sequence of `length` positions, which most rules do not look at."""
        del length
        return exact(self.radians(pairs, theta))


@dataclasses.dataclass(frozen=True)
class PositionInterpolation(Scaling):
    """f_k / factor: positions are squeezed into the trained range (Chen et al. 2023).

    Example:
        >>> PositionInterpolation(4.0).radians(2, 10_000.0).tolist()
        [0.25, 0.0025]
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor("PositionInterpolation", self.factor)

    def radians(self, pairs: int, theta: float) -> np.ndarray:
        """theta^(-2k/d) / factor."""
        return geometric(pairs, theta) / self.factor


@dataclasses.dataclass(frozen=True)
class NTKAware(Scaling):
    """The base grows to theta * factor^(d/(d-2)): the fastest pair is kept, the slowest is divided by `factor`.

    Reference: Peng et al. 2023, section 3.1, after a note by bloc97. Raises ValueError for a rotary width of 2.

    Example:
        >>> (NTKAware(4.0).radians(2, 10_000.0) / geometric(2, 10_000.0)).round(6).tolist()
        [1.0, 0.25]
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor("NTKAware", self.factor)

    def check(self, pairs: int) -> None:
        """Refuse a single pair."""
        check_base_change("NTKAware", pairs)

    def radians(self, pairs: int, theta: float) -> np.ndarray:
        """(theta * factor^(d/(d-2)))^(-2k/d)."""
        self.check(pairs)
        return geometric(pairs, float(theta) * float(self.factor) ** (pairs / (pairs - 1)))


@dataclasses.dataclass(frozen=True)
class YaRN(Scaling):
    """Fast pairs keep their frequency, slow ones are divided by `factor`, with a ramp over the pairs in between.

    A pair that turns r times within `original_length` has index k(r) = d ln(L / (2 pi r)) / (2 ln theta). The ramp runs
    from floor(k(beta_fast)) to ceil(k(beta_slow)), kept within [0, d-1]. `attention_factor` is 0.1 ln(factor) + 1
    unless given. As in the released code, where no pair turns beta_slow times within `original_length` (which then is
    below 2 pi beta_slow, 6 tokens by default) the ends may cross, and then every pair keeps its frequency. They also cross
    where L > 2 pi beta_fast theta^2, which no model has, and then every pair is divided.

    Reference: Peng et al. 2023 (arXiv:2309.00071), sections 3.2 and 3.4.

    Example:
        >>> (YaRN(4.0, original_length=100).radians(2, 10_000.0) / geometric(2, 10_000.0)).round(6).tolist()
        [1.0, 0.25]
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        check_factor("YaRN", self.factor)
        validate_integer("YaRN", original_length=self.original_length)
        validate("YaRN", beta_fast=self.beta_fast, beta_slow=self.beta_slow)
        check_gain("YaRN", self.attention_factor)
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"YaRN: beta_fast must exceed beta_slow, got {self.beta_fast} and {self.beta_slow}")

    @property
    def gain(self) -> float:
        """0.1 ln(factor) + 1 unless given."""
        return self.attention_factor if self.attention_factor is not None else 0.1 * math.log(self.factor) + 1.0

    def radians(self, pairs: int, theta: float) -> np.ndarray:
        """f_k (1 - ramp_k) + f_k / factor * ramp_k."""

        def index(turns: float) -> float:
            return pairs * math.log(self.original_length / (2 * math.pi * turns)) / math.log(theta)

        low = max(math.floor(index(self.beta_fast)), 0)
        high = min(math.ceil(index(self.beta_slow)), 2 * pairs - 1)
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

    factor: float
    original_length: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        check_factor("Llama3", self.factor)
        validate_integer("Llama3", original_length=self.original_length)
        validate("Llama3", low_freq_factor=self.low_freq_factor, high_freq_factor=self.high_freq_factor)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"Llama3: high_freq_factor must exceed low_freq_factor, got {self.high_freq_factor} and "
                f"{self.low_freq_factor}"
            )

    def radians(self, pairs: int, theta: float) -> np.ndarray:
        """f_k (m_k + (1 - m_k) / factor)."""
        fast = geometric(pairs, theta)
        turns = self.original_length * fast / (2 * math.pi)
        mix = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0)
        return fast * mix + fast / self.factor * (1 - mix)


def check_factor(rule: str, factor: float) -> None:
    """Raise ValueError unless the factor is a finite number of at least 1.

    Example:
        >>> check_factor("YaRN", 0.5)
        Traceback (most recent call last):
        ValueError: YaRN: factor is the new length over the original one, at least 1, got 0.5
    """
    validate(rule, factor=factor)
    if factor < 1:
        raise ValueError(f"{rule}: factor is the new length over the original one, at least 1, got {factor!r}")


def check_gain(rule: str, attention_factor: float | None) -> None:
    """Raise ValueError unless the attention factor is None or positive and finite.

    Example:
        >>> check_gain("YaRN", None)
    """
    if attention_factor is not None:
        validate(rule, attention_factor=attention_factor)


def check_base_change(rule: str, pairs: int) -> None:
    """Raise ValueError where the exponent d/(d-2) is not defined.

    Example:
        >>> check_base_change("NTKAware", 1)
        Traceback (most recent call last):
        ValueError: NTKAware changes the base by a power d/(d-2): the rotary width must exceed 2, got 2
    """
    if pairs < 2:
        raise ValueError(f"{rule} changes the base by a power d/(d-2): the rotary width must exceed 2, got {2 * pairs}")
