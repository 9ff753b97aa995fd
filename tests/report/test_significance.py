"""Exact tests against SciPy and against listing every outcome."""

import itertools

import numpy as np
import pytest
from scipy import stats

from attnjax.report.significance import holm, rank_sum, sign_flip, sign_flip_above

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


@pytest.mark.parametrize(("runs", "others"), [(3, 3), (6, 5), (10, 10)])
def test_the_rank_sum_equals_that_of_scipy(runs: int, others: int):
    x, y = RNG.normal(0.7, 1, runs), RNG.normal(0, 1, others)
    assert rank_sum(x, y) == pytest.approx(stats.mannwhitneyu(x, y, method="exact").pvalue)


@pytest.mark.parametrize("scores", [([1.0, 1, 0, 1], [0.0, 0, 1]), ([2.0, 3, 3], [1.0, 3, 2, 2]), ([5.0], [5.0, 5.0])])
def test_the_rank_sum_with_ties_by_listing_every_choice(scores: tuple[list[float], list[float]]):
    """Of all choices of the scores of x, those whose rank sum is at least as far from the middle."""
    x, y = map(np.array, scores)
    ranks = stats.rankdata(np.concatenate([x, y]))
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(x))]
    middle = len(x) * ranks.mean()
    seen = abs(ranks[: len(x)].sum() - middle)
    assert rank_sum(x, y) == pytest.approx(np.mean([abs(total - middle) >= seen - 1e-9 for total in sums]))


def test_a_failed_run_is_the_worst_of_all():
    assert rank_sum(np.array([-np.inf, 0.1, 0.2]), np.array([0.3, 0.4, 0.5])) == pytest.approx(0.1)


def test_three_runs_a_side_cannot_show_a_difference():
    assert rank_sum(np.array([7.0, 8, 9]), np.array([1.0, 2, 3])) == pytest.approx(0.1)


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


def test_of_no_tests_holm_adjusts_none():
    assert holm([]) == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("test", [sign_flip, sign_flip_above])
def test_differences_that_are_not_finite_have_no_p(test, value: float):
    """No sum with one of them is as extreme as another, which was p = 0."""
    with pytest.raises(ValueError, match=r"sign flips are of finite differences, got \[0\.1, (nan|inf), 0\.3\]"):
        test(np.array([0.1, value, 0.3]))


def test_nan_has_no_rank():
    with pytest.raises(ValueError, match=r"NaN has no rank, got \[1\.0, nan\] and \[2\.0\]"):
        rank_sum(np.array([1.0, np.nan]), np.array([2.0]))
