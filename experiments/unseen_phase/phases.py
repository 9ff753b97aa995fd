"""What the wavelengths of RoPE say of a base before anything is trained: which pairs show an unseen phase, where, how far off.

    wavelength of pair k    2 pi / theta_k = 2 pi theta^(2k/d) tokens
    seen, up to length L    the phases theta_k n, n = 0 .. L-1: the arc [0, theta_k (L-1)], or all of the circle where the pair
                            goes around, theta_k L >= 2 pi (the gaps between whole n are not counted)
    novelty of (k, n)       2 sin(a / 2), the chord from the phase theta_k n to the nearer end of that arc, a radians away

A pair with a wavelength up to L has no novelty anywhere. Of a slower one it grows by theta_k a token from n = L on, up to the
middle of what was unseen, and falls until the pair has gone around. All is a function of base, head dimension and L.
"""

from typing import NamedTuple

import numpy as np

from attnjax.positions.angles import geometric
from attnjax.typing import Bool, Float, Int

SIGNS = {"base": 1, "critical": -1, "novelty": -1, "onset": 1}
"""The predictors, and the sign that each predicts for its rank correlation with the length at which a model breaks."""
GROUPS = ("critical", "fast", "slow")
CRITICAL = 4
"""Pairs are critical whose wavelength lies between L and so many times L."""


class Predictors(NamedTuple):
    """What is predicted from: the longest wavelength, the number of critical pairs, mean novelty, the first unseen wavelength.

    `novelty` is the mean over pairs and the distances L .. 2L-1, and `onset` the shortest wavelength above L, infinite where
    every phase was seen.
    """

    base: float
    critical: float
    novelty: float
    onset: float


def predictors(theta: float, head: int, trained: int) -> Predictors:
    """The predictors of a base for heads of `head` channels trained at length `trained`.

    Raises ValueError for a length below 2 and an odd head dimension.

    Example:
        >>> [round(number, 3) for number in predictors(10_000.0, 8, 64)]      # wavelengths 6, 63, 628 and 6283
        [6283.185, 0.0, 0.089, 628.319]
    """
    turns = wavelengths(theta, head)
    unseen = turns[turns > checked(trained)]
    new = novelty(theta, head, trained, np.arange(trained, 2 * trained))
    onset = float(unseen[0]) if len(unseen) else np.inf
    return Predictors(float(turns[-1]), float(group(theta, head, trained, "critical").sum()), float(new.mean()), onset)


def wavelengths(theta: float, head: int) -> Float[np.ndarray, " c"]:
    """Tokens per turn of each pair, fastest first. Raises ValueError for an odd head dimension.

    Example:
        >>> wavelengths(10_000.0, 8).round(1).tolist()
        [6.3, 62.8, 628.3, 6283.2]
    """
    if head < 2 or head % 2:
        raise ValueError(f"RoPE turns pairs of channels: the head dimension must be even, got {head}")
    return 2 * np.pi / geometric(head // 2, theta)


def novelty(theta: float, head: int, trained: int, distances: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n c"]:
    """How far each pair is at each distance from every phase of the distances below `trained`, as a chord from 0 to 2.

    Example:
        >>> novelty(16.0, 4, 4, np.array([3, 5, 14])).round(3).tolist()      # wavelengths 6.3 and 25.1
        [[0.0, 0.0], [1.197, 0.495], [0.0, 1.962]]
    """
    turn = 2 * np.pi
    frequency = turn / wavelengths(theta, head)
    seen, phase = frequency * (checked(trained) - 1), np.mod(distances[:, None] * frequency, turn)
    away = np.clip(np.minimum(phase - seen, turn - phase), 0, None)
    return 2 * np.sin(np.where(frequency * trained < turn, away, 0.0) / 2)


def group(theta: float, head: int, trained: int, name: str) -> Bool[np.ndarray, " c"]:
    """Which pairs belong to one of `GROUPS`: wavelengths within (L, 4L), up to L, of 4L or more.

    Raises ValueError for another name.

    Example:
        >>> [group(10_000.0, 8, 128, name).tolist() for name in GROUPS]
        [[False, False, False, False], [True, True, False, False], [False, False, True, True]]
    """
    turns, L = wavelengths(theta, head), checked(trained)
    if name not in GROUPS:
        raise ValueError(f"pairs are {', '.join(GROUPS)}, got {name!r}")
    fast, slow = turns <= L, turns >= CRITICAL * L
    return {"fast": fast, "slow": slow, "critical": ~fast & ~slow}[name]


def checked(trained: int) -> int:
    """The trained length. Raises ValueError for one below 2, which shows no distance but 0."""
    if trained < 2:
        raise ValueError(f"a trained length must be at least 2, got {trained}")
    return trained
