"""Exact tests of paired differences by sign flips; Holm's correction for several tests.

The p of a test is the share of all equally likely outcomes that are at least as extreme as what was seen, so it is exact with
few runs and with ties; beyond 16 pairs sign flips are drawn at random. With 3 pairs no p is below 2 / 8 = 0.25: so few runs
cannot show a difference, however large it is.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from attnjax.records.values import DECIMALS

MOST = 16
"""Pairs up to which all 2^n sign flips are made; of more pairs 2^16 random ones are."""
SEED = 2108_13264


def sign_flip(differences: Float[np.ndarray, " R"]) -> float:
    """Return the two-sided p of the hypothesis that each difference is as likely as its negative (Fisher 1935).

    The share of the sign flips of the differences whose sum is at least as far from 0 as the sum that was seen.
    Raises ValueError for a difference that is no finite number.

    Example:
      >>> sign_flip(np.array([0.1, 0.2, 0.3]))      # only + + + and - - - are as extreme: 2 of 8
      0.25
    """
    # |sum| has one tail: twice the smaller tail of the sum would be above 1 where differences cancel.
    return _flipped(differences, lambda x, axis: np.abs(np.sum(x, axis=axis)))


def sign_flip_above(differences: Float[np.ndarray, " R"]) -> float:
    """Return the one-sided p of the same hypothesis, where a protocol predicts before the runs that differences lie above 0.

    Example:
      >>> sign_flip_above(np.array([0.1, 0.2, 0.3])), sign_flip_above(np.array([-0.1, -0.2, -0.3]))
      (0.125, 1.0)
    """
    return _flipped(differences, lambda x, axis: np.sum(x, axis=axis))


def _flipped(differences: Float[np.ndarray, " R"], statistic: Any) -> float:
    if not np.isfinite(differences).all():
        raise ValueError(f"sign flips are of finite differences, got {differences.tolist()}")
    # Sums of whole numbers are exact, so that ties are ties. SciPy wants two numbers, and the flips of a 0 change nothing.
    whole = np.rint(np.append(differences, [0.0] if len(differences) == 1 else []) * 10**DECIMALS)
    found = stats.permutation_test(
        (whole,), statistic, permutation_type="samples", alternative="greater", n_resamples=2**MOST, rng=SEED
    )
    return float(found.pvalue)


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
