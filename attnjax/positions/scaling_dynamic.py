"""How the frequencies of RoPE are stretched past the training length: the rules that look at the sequence's length T.

With L the original length, theta the base, d = 2c the rotary width:

    DynamicNTK   base theta (a T/L - (a-1))^(d/(d-2)) for T > L, theta otherwise; a is the factor
                 Peng et al. 2023 (arXiv:2309.00071), section 3.3, after a note by emozilla
    LongRoPE     theta^(-2k/d) / lambda_k, with the list `long_factors` for T > L and `short_factors` otherwise
                 Ding et al. 2024 (arXiv:2402.13753)

Acts inside `RoPE`, whose `constants` receive T, the position of the last valid key plus 1, for each example. The
results are pure functions of T: a short sequence after a long one gets the original frequencies back.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax.positions.angles import Frequencies, exact, geometric, rounded, select
from attnjax.positions.checks import validate_each, validate_integer
from attnjax.positions.concrete import concrete
from attnjax.positions.scaling import Scaling, check_base_change, check_factor, check_gain
from attnjax.typing import Array, Num


@dataclasses.dataclass(frozen=True)
class DynamicNTK(Scaling):
    """NTK-aware scaling by the length of the sequence at hand; `factor` is a in a T/L - (a-1).

    Precision: exact (see `angles.py`) for T <= L, for the fastest pair, and wherever T is known. For a traced T > L the
    frequencies are computed in float32, with a relative error of 1e-6: as if theta were off in the seventh digit.
    Queries and keys share them, so scores still depend on the distance alone, at any position.

    Example:
        >>> scaling = DynamicNTK(2.0, original_length=100)
        >>> [scaling.radians(2, 10_000.0, length)[1].round(6).item() for length in (100, 200)]
        [0.01, 0.003333]
    """

    factor: float
    original_length: int

    def __post_init__(self) -> None:
        check_factor("DynamicNTK", self.factor)
        validate_integer("DynamicNTK", original_length=self.original_length)

    @property
    def length_dependent(self) -> bool:
        """True."""
        return True

    def check(self, pairs: int) -> None:
        """Refuse a single pair."""
        check_base_change("DynamicNTK", pairs)

    def radians(self, pairs: int, theta: float, length: float | None = None) -> np.ndarray:
        """The frequencies for a known length; those up to `original_length` unless given."""
        self.check(pairs)
        excess = max((length or 0) - self.original_length, 0) / self.original_length
        return geometric(pairs, theta) * (1 + float(self.factor) * excess) ** -self._exponents(pairs)

    def frequencies(self, pairs: int, theta: float, length: Any = None) -> Frequencies:
        """The frequencies for a length that is a number, or a traced scalar."""
        known = concrete(length)
        if known is not None:
            return exact(self.radians(pairs, theta, float(known)))
        stretched = (length > self.original_length) & (np.arange(pairs) > 0)
        return select(stretched, rounded(self._traced(pairs, theta, length)), exact(self.radians(pairs, theta)))

    def _exponents(self, pairs: int) -> np.ndarray:
        """2k/(d-2), the power of the growth of the base by which pair k slows down: 0 for the first, 1 for the last."""
        return np.arange(pairs, dtype=np.float64) / (pairs - 1)

    def _traced(self, pairs: int, theta: float, length: Num[Array, ""]) -> Array:
        # 1 + a (T-L)/L: the difference of the integers is exact, where a T/L - (a-1) would cancel.
        dtype = jnp.result_type(float)
        excess = jnp.where(length > self.original_length, length - self.original_length, 0).astype(dtype)
        growth = jnp.log1p(excess * jnp.asarray(self.factor / self.original_length, dtype))
        return jnp.asarray(geometric(pairs, theta), dtype) * jnp.exp(
            -jnp.asarray(self._exponents(pairs), dtype) * growth
        )


@dataclasses.dataclass(frozen=True)
class LongRoPE(Scaling):
    """A factor for every pair, found by search, from one list up to the original length and from another past it.

    `attention_factor` is sqrt(1 + ln(factor) / ln(original_length)) unless given, with `factor` the new length over the
    original one. The lists do not tell the new length: with neither `factor` nor `attention_factor` it is 1.

    Raises ValueError if a list does not have one positive number per pair (checked where the head dimension is known).
    Reference: Ding et al. 2024 (arXiv:2402.13753).

    Example:
        >>> scaling = LongRoPE(short_factors=(1.0, 1.0), long_factors=(1.0, 4.0), original_length=100)
        >>> [scaling.radians(2, 10_000.0, length).tolist() for length in (100, 101)]
        [[1.0, 0.01], [1.0, 0.0025]]
    """

    short_factors: Sequence[float]
    long_factors: Sequence[float]
    original_length: int
    attention_factor: float | None = None
    factor: float | None = None

    def __post_init__(self) -> None:
        # Lists would make the record impossible to hash.
        object.__setattr__(self, "short_factors", tuple(self.short_factors))
        object.__setattr__(self, "long_factors", tuple(self.long_factors))
        validate_each("LongRoPE", short_factors=self.short_factors, long_factors=self.long_factors)
        validate_integer("LongRoPE", minimum=2, original_length=self.original_length)
        check_gain("LongRoPE", self.attention_factor)
        if self.factor is not None:
            check_factor("LongRoPE", self.factor)

    @property
    def length_dependent(self) -> bool:
        """True."""
        return True

    @property
    def gain(self) -> float:
        """sqrt(1 + ln(factor) / ln(original_length)) unless given."""
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor or 1.0) / math.log(self.original_length))

    def check(self, pairs: int) -> None:
        """Refuse lists that do not have one factor per pair."""
        for name, factors in (("short_factors", self.short_factors), ("long_factors", self.long_factors)):
            if len(factors) != pairs:
                raise ValueError(f"LongRoPE: {name} must have one number per pair, {pairs}, got {len(factors)}")

    def radians(self, pairs: int, theta: float, length: float | None = None) -> np.ndarray:
        """The frequencies for a known length; those up to `original_length` unless given."""
        self.check(pairs)
        factors = self.long_factors if (length or 0) > self.original_length else self.short_factors
        return geometric(pairs, theta) / np.asarray(factors, np.float64)

    def frequencies(self, pairs: int, theta: float, length: Any = None) -> Frequencies:
        """The frequencies for a length that is a number, or a traced scalar; exact either way."""
        known = concrete(length)
        if known is not None:
            return exact(self.radians(pairs, theta, float(known)))
        long, short = self.radians(pairs, theta, math.inf), self.radians(pairs, theta)
        return select(length > self.original_length, exact(long), exact(short))
