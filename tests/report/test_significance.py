"""Exact tests against SciPy and against listing every outcome."""

import itertools

import numpy as np
import pytest
from scipy import stats

from attnjax.report.significance import holm, sign_flip, sign_flip_above

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("differences", [RNG.normal(0.3, 1, 5), RNG.normal(1, 1, 8), np.array([1.0, 1, -1, 2, 0])])
def test_sign_flips_equal_those_of_scipy(differences: np.ndarray):
    theirs = stats.permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(differences) == pytest.approx(theirs.pvalue)


def test_the_least_p_of_sign_flips():
    for pairs in range(1, 12):
        assert sign_flip(np.arange(1.0, pairs + 1)) == 2 / 2**pairs
    assert sign_flip(np.zeros(4)) == 1.0


def test_many_pairs_are_flipped_at_random():
    """17 pairs have 131,072 flips; half as many random ones, what was seen among them, must be near all of them."""
    differences = RNG.normal(0.4, 1, 17)
    flips = np.array(list(itertools.product([-1.0, 1.0], repeat=17)))
    every = np.mean(np.abs(flips @ differences) >= abs(differences.sum()) - 1e-12)
    assert sign_flip(differences) == pytest.approx(every, rel=0.1)
    assert sign_flip(differences) == sign_flip(differences)
    assert sign_flip(np.ones(20)) >= 1 / (2**16 + 1), "a p is never 0"


@pytest.mark.parametrize("p", [[0.01, 0.04, 0.03, 0.005], [0.5, 0.5], [0.2], [0.001, 0.9, 0.02, 0.02]])
def test_holm_against_its_definition(p: list[float]):
    """Hypotheses fall one after the other, from the smallest p, while p is at most level / (how many are left)."""

    def rejected(level: float) -> set[int]:
        order = sorted(range(len(p)), key=lambda i: p[i])
        fallen = itertools.takewhile(lambda k: p[order[k]] <= level / (len(p) - k) + 1e-12, range(len(p)))
        return {order[k] for k in fallen}

    adjusted = holm(p)
    for level in np.linspace(0.001, 0.999, 333):
        assert rejected(level) == {i for i, value in enumerate(adjusted) if value <= level + 1e-12}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("test", [sign_flip, sign_flip_above])
def test_differences_that_are_not_finite_have_no_p(test, value: float):
    """No sum with one of them is as extreme as another, which was p = 0."""
    with pytest.raises(ValueError, match=r"sign flips are of finite differences, got \[0\.1, (nan|inf), 0\.3\]"):
        test(np.array([0.1, value, 0.3]))
