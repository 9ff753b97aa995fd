"""Resonance RoPE: wavelengths rounded to whole numbers of positions, so that no pair meets an angle of its own far out.

    f_k' = 2 pi / round(2 pi / f_k)        with the frequencies f_k of RoPE, or of another scaling

A pair whose wavelength is a whole number of positions has as many angles as that, however long the sequence is: where it has
turned once within the trained length, all of its angles are known. Acts inside `RoPE`, as `RoPE(scaling=Resonance())`, and on
top of a rule that stretches the frequencies, as `RoPE(scaling=Resonance(YaRN(4.0, 4096)))`, whose attention factor it keeps. A
half is rounded to the even number, as in the released code. Its authors train with it; put on a model that was trained without,
it changes the fast pairs by up to 4.7 % at theta = 10,000 (a wavelength of 6.28 becomes 6) and 5.2 % at 500,000, which far
distances feel.

Reference: Wang et al. 2024 (arXiv:2403.00071), section 4; https://github.com/sheryc/resonance_rope.
"""

import dataclasses
import math

import numpy as np

from attnjax.positions.angles import geometric
from attnjax.positions.scaling import Scaling


@dataclasses.dataclass(frozen=True)
class Resonance(Scaling):
    """Whole wavelengths, of the frequencies that the rule `of` gives, or of those of RoPE.

    Raises ValueError for a rule that is no scaling, or that depends on the length of the sequence.

    Example:
        >>> (2 * math.pi / Resonance().radians(2, 10_000.0)).round(6).tolist()
        [6.0, 628.0]
    """

    of: Scaling | None = None

    def __post_init__(self) -> None:
        if self.of is not None and (not isinstance(self.of, Scaling) or self.of.length_dependent):
            raise ValueError(
                f"Resonance: of must be None or a rule that does not depend on the length, such as YaRN(...), got {self.of!r}"
            )

    @property
    def gain(self) -> float:
        """That of the rule."""
        return 1.0 if self.of is None else self.of.gain

    def check(self, pairs: int) -> None:
        """Refuse what the rule refuses."""
        if self.of is not None:
            self.of.check(pairs)

    def radians(self, pairs: int, theta: float) -> np.ndarray:
        """2 pi / round(2 pi / f_k)."""
        own = geometric(pairs, theta) if self.of is None else self.of.radians(pairs, theta)
        return 2 * math.pi / np.round(2 * math.pi / own)
