"""What is correlated: how far a run reaches before its excess rises, and rank correlations over bases.

    excess    loss less that of the best prediction on the same windows, nats

A run is a record of `measuring.py`: `lengths`, `losses` and `best`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from attnjax.report.metrics import metric
from attnjax.report.reach import length_factor
from attnjax.typing import Float
from experiments.unseen_phase.measuring import FURTHEST, METRIC


def loss_at(run: Mapping[str, Any], at: int) -> float:
    """The loss of a run, or under a clamp, at one test length."""
    return float(run["losses"][list(run["lengths"]).index(at)])


def excesses(run: Mapping[str, Any], trained: int) -> tuple[Float[np.ndarray, " X"], Float[np.ndarray, " X"]]:
    """The test lengths from L on as multiples of it, and the losses less those of the best prediction."""
    lengths = np.array(run["lengths"])
    past = lengths >= trained
    return lengths[past] / trained, (np.array(run["losses"]) - np.array(run["best"]))[past]


def factor_of(run: Mapping[str, Any], trained: int) -> float:
    """The length factor of the excess of a run."""
    return length_factor(*excesses(run, trained), metric(METRIC))


def plain_of(run: Mapping[str, Any], trained: int) -> float:
    """The length factor of its loss, as reports have it."""
    return factor_of({**run, "best": np.zeros(len(run["lengths"]))}, trained)


def excess_of(run: Mapping[str, Any], trained: int) -> float:
    """The excess of a run at L."""
    return float(excesses(run, trained)[1][0])


def rise_of(run: Mapping[str, Any], trained: int) -> float:
    """The excess at 4L less that at L."""
    ratios, values = excesses(run, trained)
    return float(values[list(ratios).index(FURTHEST)] - values[0])


def correlations(x: Float[np.ndarray, " X"], rows: Float[np.ndarray, "S X"]) -> Float[np.ndarray, " S"]:
    """Spearman's rho of x with each row; NaN where one of them does not vary.

    Example:
        >>> correlations(np.array([1.0, 10.0, np.inf]), np.array([[1.0, 2, 4], [3, 2, 1], [1, 1, 1]])).tolist()
        [1.0, -1.0, nan]
    """
    varies = lambda y: len(y) > 1 and np.ptp(stats.rankdata(y)) > 0
    pearson = lambda y: float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])
    return np.array([round(pearson(row), 12) if varies(x) and varies(row) else np.nan for row in rows])


def partial(
    x: Float[np.ndarray, " X"], given: Float[np.ndarray, " X"], rows: Float[np.ndarray, "S X"]
) -> Float[np.ndarray, " S"]:
    """The rank correlation of x with each row when that of both with `given` is taken out.

    (r_xy - r_xz r_yz) / sqrt((1 - r_xz^2) (1 - r_yz^2)), NaN where it is not defined.
    """
    xy, zy, xz = correlations(x, rows), correlations(given, rows), correlations(x, given[None])
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (xy - xz * zy) / np.sqrt((1 - xz**2) * (1 - zy**2))
    return np.where(np.isfinite(found), found, np.nan)
