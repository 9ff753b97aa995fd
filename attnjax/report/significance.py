"""Exact tests: of paired differences by sign flips, of two groups of runs by ranks, and Holm's correction for several tests.

The p of a test is the share of all equally likely outcomes that are at least as extreme as what was seen, so it is exact with
few runs and with ties; beyond 16 pairs sign flips are drawn at random. With 3 runs a side no p of two groups is below
2 / 20 = 0.10, and with 3 pairs none is below 2 / 8 = 0.25: so few runs cannot show a difference, however large it is.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

MOST = 16
"""Pairs up to which all 2^n sign flips are made; of more pairs so many random ones, 2^16, are."""
SEED = 2108_13264


def sign_flip(differences: Float[np.ndarray, " R"]) -> float:
    """Return the two-sided p of the hypothesis that each difference is as likely as its negative (Fisher 1935).

    The share of the sign flips of the differences whose sum is at least as far from 0 as the sum that was seen.

    Example:
      >>> sign_flip(np.array([0.1, 0.2, 0.3]))      # only + + + and - - - are as extreme: 2 of 8
      0.25
    """
    seen, flipped = flips(differences)
    return _share(np.abs(flipped) >= abs(seen) - _rounding(differences), len(differences))


def sign_flip_above(differences: Float[np.ndarray, " R"]) -> float:
    """Return the one-sided p of the same hypothesis, where a protocol predicts before the runs that differences lie above 0.

    Example:
      >>> sign_flip_above(np.array([0.1, 0.2, 0.3])), sign_flip_above(np.array([-0.1, -0.2, -0.3]))
      (0.125, 1.0)
    """
    seen, flipped = flips(differences)
    return _share(flipped >= seen - _rounding(differences), len(differences))


def flips(differences: Float[np.ndarray, " R"]) -> tuple[float, Float[np.ndarray, " Z"]]:
    """Return the sum that was seen, and that of all sign flips, of more than `MOST` differences of 2^`MOST` random ones.

    Raises ValueError for a difference that is no finite number: no sum with it is as extreme as another, which would be p = 0.
    """
    if not np.isfinite(differences).all():
        raise ValueError(f"sign flips are of finite differences, got {differences.tolist()}")
    count = len(differences)
    drawn = signs(count) if count <= MOST else np.random.default_rng(SEED).integers(2, size=(2**MOST, count)) * 2.0 - 1
    return float(np.sum(differences)), drawn @ differences


def _share(extreme: Bool[np.ndarray, " Z"], count: int) -> float:
    """Return the share of flips that are as extreme as what was seen, which is one of them."""
    if count <= MOST:
        return float(np.mean(extreme))
    return (int(np.sum(extreme)) + 1) / (len(extreme) + 1)


def _rounding(differences: Float[np.ndarray, " R"]) -> float:
    """Return by how much two sums may differ that are equal but for rounding."""
    return 1e-12 * float(np.sum(np.abs(differences)))


def signs(count: int) -> Float[np.ndarray, "Z R"]:
    """Return all 2^count rows of +1 and -1."""
    return ((np.arange(2**count)[:, None] >> np.arange(count)) & 1) * 2.0 - 1


def rank_sum(x: Float[np.ndarray, " R"], y: Float[np.ndarray, " Q"]) -> float:
    """Return the exact two-sided p of the Wilcoxon-Mann-Whitney test, with midranks for ties.

    Of all ways to choose which R of the R + Q scores are those of x, the share whose rank sum is at least as far from its mean.
    Infinite scores, those of failed runs, have ranks like others. Raises ValueError for NaN, which has none.

    Example:
      >>> rank_sum(np.array([4.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0]))
      0.1
    """
    together = np.concatenate([x, y])
    if np.isnan(together).any():
        raise ValueError(f"NaN has no rank, got {x.tolist()} and {y.tolist()}")
    twice = np.round(2 * stats.rankdata(together)).astype(int)  # whole also where ranks are halves
    ways = subset_sums(twice, len(x))
    centre = len(x) * int(np.sum(twice)) / len(twice)
    far = np.abs(np.arange(len(ways)) - centre) >= abs(int(np.sum(twice[: len(x)])) - centre) - 1e-9
    return float(np.sum(ways[far]) / np.sum(ways))


def subset_sums(values: Int[np.ndarray, " N"], size: int) -> Float[np.ndarray, " S"]:
    """Return how many subsets of this size have each sum: ways[s], s = 0 .. the sum of all values."""
    ways = np.zeros((size + 1, int(np.sum(values)) + 1))
    ways[0, 0] = 1
    for value in values:
        ways[1:, value:] += ways[:-1, : ways.shape[1] - value].copy()
    return ways[size]


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's (1979) adjusted p of each of several tests: at most alpha where its hypothesis falls at the level alpha.

    Example:
      >>> [round(x, 6) for x in holm([0.01, 0.04, 0.03])]
      [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate([p[i] * (len(p) - k) for k, i in enumerate(order)]) if len(p) else np.zeros(0)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(raised, 1.0)
    return [float(x) for x in adjusted]
