"""Search for the factors of LongRoPE: one for every pair of channels, by any function that gives the loss of a list of them.

    factors <- argmin loss over the factors themselves and those with one of them times or over `step`, pair by pair

as often as `rounds` says, or until nothing changes. This is coordinate descent, and not the evolutionary search of the authors,
which mutates and crosses a population of lists: it may find other factors than theirs, and was not compared with it. Like
theirs it begins with what other rules amount to (PI, NTK-aware, NTK-by-parts), keeps factors from falling with the wavelength,
and within 1 and `most`, to which the starts are clipped. It needs a few evaluations for each pair, and stays in the first
valley that it comes to.

Reference: Ding et al. 2024 (arXiv:2402.13753), section 3.3.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnjax.positions.angles import geometric
from attnjax.positions.rope import RoPE
from attnjax.positions.scaling import NTKAware, PositionInterpolation, YaRN

Factors = tuple[float, ...]
STEP = 1.5
"""A factor is tried times and over this."""


def search_factors(
    loss: Callable[[Factors], float],
    starts: Sequence[Factors],
    *,
    rounds: int = 2,
    most: float,
    step: float = STEP,
) -> Factors:
    """The factors with the lowest loss that a descent from the best of `starts` finds.

    Args:
      loss: of factors, one per pair, as a number; it is asked once for each.
      starts: where to begin, such as `factors_of`; factors below 1 or above `most` begin there.
      rounds: over all pairs; 0 is the best start.
      most: the largest factor.
      step: a factor is tried times and over this.

    Raises ValueError without a start, or for starts of different lengths.

    Example:
        >>> loss = lambda found: abs(found[0] - 1) + abs(found[1] - 3)
        >>> search_factors(loss, [(1.0, 2.0)], rounds=3, most=8.0)
        (1.0, 3.0)
    """
    if not starts or len({len(start) for start in starts}) > 1:
        raise ValueError(f"search_factors needs starts with one factor per pair each, got {list(starts)}")
    losses: dict[Factors, float] = {}

    def known(factors: Factors) -> float:
        if factors not in losses:
            losses[factors] = loss(factors)
        return losses[factors]

    best = min((tuple(min(max(one, 1.0), most) for one in start) for start in starts), key=known)
    for _ in range(rounds):
        before = best
        for pair in range(len(best)):
            best = min([best, *_neighbours(best, pair, step, most)], key=known)
        if best == before:
            break
    return best


def factors_of(rope: RoPE, head_dim: int, factor: float, trained: int) -> list[Factors]:
    """What PI, NTK-aware scaling and NTK-by-parts (YaRN) divide the frequencies of a RoPE by, each as factors of LongRoPE.

    Example:
        >>> [found[0] for found in factors_of(RoPE(), 8, 4.0, 64)]
        [4.0, 1.0, 1.0]
    """
    pairs, theta = rope.pairs(head_dim)[0], rope.theta
    plain = geometric(pairs, theta)
    rules = (PositionInterpolation(factor), NTKAware(factor), YaRN(factor, trained))
    return [tuple(map(float, plain / rule.radians(pairs, theta))) for rule in rules]


def by_parts(rope: RoPE, head_dim: int, factor: float, trained: int) -> Factors:
    """The factors of NTK-by-parts, the last of `factors_of`: what LongRoPE is given where nothing was searched.

    Example:
        >>> [round(found, 6) for found in by_parts(RoPE(), 8, 4.0, 64)]
        [1.0, 1.6, 4.0, 4.0]
    """
    return factors_of(rope, head_dim, factor, trained)[-1]


def check_factors(factors: Any, pairs: int | None = None) -> Factors:
    """The factors as floats. Raises ValueError unless they are positive numbers, one for every pair where `pairs` is known.

    Example:
        >>> check_factors([1, 2.5], pairs=2)
        (1.0, 2.5)
    """
    numbers = factors if isinstance(factors, tuple | list) else ()
    real = lambda one: isinstance(one, int | float | np.integer | np.floating) and not isinstance(one, bool)
    sound = all(real(one) and 0 < one < math.inf for one in numbers)
    if not numbers or not sound or (pairs is not None and len(numbers) != pairs):
        many = "" if pairs is None else f"{pairs} "
        raise ValueError(f"factors of LongRoPE must be {many}positive numbers, one per pair, got {factors!r}")
    return tuple(float(one) for one in numbers)


def _neighbours(factors: Factors, pair: int, step: float, most: float) -> list[Factors]:
    """The factors with one of them changed, where they still do not fall and lie in 1 .. most."""
    found = []
    for value in (factors[pair] * step, factors[pair] / step):
        value = min(max(value, 1.0), most)
        below, above = (min(f, value) for f in factors[:pair]), (max(f, value) for f in factors[pair + 1 :])
        found.append((*below, value, *above))
    return found
