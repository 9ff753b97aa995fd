"""Do two scores put things into the same order? Spearman's rank correlation.

    rho = correlation of rank(x) and rank(y),   equal values share the mean of their ranks

Reference: Spearman 1904, The proof and measurement of association between two things.
"""

import numpy as np

from attnjax.typing import Float


def spearman(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """rho, in -1 .. 1; NaN where all values of x or of y are equal.

    Raises ValueError for fewer than 2 values, different numbers of them, and values that are not finite.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise ValueError(
            f"a rank correlation needs two lists of the same length, 2 or more, got {x.shape} and {y.shape}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a rank correlation needs finite values, got NaN or infinity")
    a, b = (rank - rank.mean() for rank in (ranks(x), ranks(y)))
    spread = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / spread) if spread > 0 else float("nan")


def ranks(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The place of each value in ascending order, from 1; equal values share the mean of their places."""
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]
