"""Spearman's correlation against scipy's, and by hand."""

import numpy as np
import pytest
from scipy import stats

from attnjax.analysis.ranks import ranks, spearman


def test_equal_values_share_their_places():
    assert ranks(np.array([20.0, 10.0, 20.0, 30.0])).tolist() == [2.5, 1, 2.5, 4]


@pytest.mark.parametrize("seed", range(5))
def test_against_scipy(seed):
    x, y = np.random.default_rng(seed).integers(0, 6, (2, 12)).astype(float)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_only_the_order_counts():
    x = np.array([0.1, 3.0, 2.0, 9.0])
    assert spearman(x, np.exp(x)) == pytest.approx(1)
    assert spearman(x, -(x**3)) == pytest.approx(-1)
    assert np.isnan(spearman(x, np.ones(4)))


WRONG = [
    ([1.0], [1.0], r"two lists of the same length, 2 or more, got \(1,\) and \(1,\)"),
    ([1.0, 2.0], [1.0, 2.0, 3.0], r"two lists of the same length, 2 or more, got \(2,\) and \(3,\)"),
    ([1.0, np.nan], [1.0, 2.0], "needs finite values"),
]


@pytest.mark.parametrize(("x", "y", "message"), WRONG)
def test_bad_input(x, y, message):
    with pytest.raises(ValueError, match=message):
        spearman(x, y)
