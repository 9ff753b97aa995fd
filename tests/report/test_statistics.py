"""Aggregates and intervals against hand calculation, brute force and the authors' own library (golden/make_rliable.py)."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from attnjax.report import statistics as st

GOLDEN = Path(__file__).parents[1] / "golden" / "rliable.npz"


@pytest.fixture(scope="module")
def rliable() -> dict[str, np.ndarray]:
    with np.load(GOLDEN, allow_pickle=False) as file:
        return dict(file)


def strata(scores: np.ndarray) -> list[np.ndarray]:
    """Columns: one stratum per task."""
    return list(scores.T)


def drawn(seed: int, shape: tuple[int, int], resamples: int) -> list[np.ndarray]:
    """The indices that rliable draws after seeding NumPy's legacy generator, as one array per stratum."""
    block = np.random.RandomState(seed).randint(0, shape[0], size=(resamples, *shape))
    return list(np.moveaxis(block, 2, 0))


def close(estimate: st.Estimate, golden: np.ndarray) -> None:
    np.testing.assert_allclose([estimate.value, estimate.low, estimate.high], golden, atol=1e-9)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([5.0], 5.0),
        ([1, 2, 6], 3.0),
        ([0, 1, 2, 100], 1.5),
        ([9, 1, 2, 3, -50], 2.0),
        ([8, 7, 6, 5, 4, 3, 2, 1], 4.5),
        ([0, 0, 1, 1, 1, 1, 1, 1, 1, 1], 1.0),
        ([1, 2, 3, np.inf], 2.5),
        ([1, 2, np.inf, np.inf], np.inf),
    ],
)
def test_iqm_by_hand(scores: list[float], expected: float):
    assert float(st.iqm([np.array(scores, float)])) == expected


def test_aggregates_by_hand():
    two = [np.array([0.0, 0.5, 1.0]), np.array([0.2, 0.4])]
    assert float(st.mean(two)) == pytest.approx((0.5 + 0.3) / 2)
    assert float(st.median(two)) == 0.4
    assert float(st.maximum(two)) == 1.0
    assert float(st.iqm(two)) == pytest.approx((0.2 + 0.4 + 0.5) / 3)
    assert st.fitted(np.array([1.0, 0.99, 0.9899, 0.0, np.nan]), 0.99).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("statistic", ["iqm", "mean"])
def test_intervals_equal_those_of_rliable(rliable: dict[str, np.ndarray], name: str, statistic: str):
    scores = rliable[name]
    indices = drawn(int(rliable["seed"]), scores.shape, st.RESAMPLES)
    close(st.bootstrap(strata(scores), getattr(st, statistic), indices), rliable[f"{name}_{statistic}"])


def test_interval_of_one_task_equals_that_of_rliable(rliable: dict[str, np.ndarray]):
    first = rliable["x"][:, :1]
    indices = drawn(int(rliable["seed"]), first.shape, st.RESAMPLES)
    close(st.bootstrap(strata(first), st.iqm, indices), rliable["x_first_iqm"])


def test_probability_of_improvement_equals_that_of_rliable(rliable: dict[str, np.ndarray]):
    x, y = rliable["x"], rliable["y"]
    legacy = np.random.RandomState(int(rliable["seed"]))
    pairs = [(legacy.choice(len(x), x.shape), legacy.choice(len(y), y.shape)) for _ in range(2_000)]
    of_x, of_y = (list(np.moveaxis(np.array(side), 2, 0)) for side in zip(*pairs, strict=True))
    close(st.improvement(strata(x), strata(y), of_x, of_y), rliable["improvement"])


def test_the_bootstrap_is_a_function_of_its_arguments():
    scores = [np.array([0.1, 0.5, 0.9, 0.4, 0.7])]
    assert st.bootstrap(scores) == st.bootstrap(scores)
    np.testing.assert_array_equal(st.resample([4, 7])[1], st.resample([4, 7])[1])
    assert st.resample([4], seed=1)[0].tolist() != st.resample([4], seed=2)[0].tolist()
    assert st.resample([5])[0].shape == (50_000, 5)


def test_one_run_has_an_interval_of_no_width():
    assert st.bootstrap([np.array([0.25])]) == st.Estimate(0.25, 0.25, 0.25)


@pytest.mark.parametrize(("runs", "low", "high"), [(3, 0.68, 0.83), (5, 0.83, 0.95), (10, 0.88, 0.98)])
def test_coverage_is_what_the_page_says(runs: int, low: float, high: float):
    """The page prints 76 %, 90 % and 94 %; 400 trials put two standard errors at 0.04."""
    generator = np.random.default_rng(runs)
    indices = st.resample([runs], 1_000)
    covered = 0
    for _ in range(400):
        estimate = st.bootstrap([generator.normal(size=runs)], st.iqm, indices)
        covered += estimate.low <= 0 <= estimate.high
    assert low < covered / 400 < high


def test_percentiles_are_those_of_numpy():
    samples = np.random.default_rng(0).normal(size=(1_001, 3))
    np.testing.assert_allclose(st.percentiles(samples), np.percentile(samples, [2.5, 97.5], axis=0), atol=1e-12)


def test_weights_say_how_often_a_sample_stands_there():
    samples, weights = np.array([3.0, -1.0, 2.0, 7.0]), np.array([5, 1, 30, 4])
    np.testing.assert_allclose(
        st.percentiles(samples, weights), st.percentiles(np.repeat(samples, weights)), atol=1e-12
    )


def test_percentiles_of_infinities():
    assert [float(x) for x in st.percentiles(np.array([1.0, np.inf, np.inf, np.inf]))] == [np.inf, np.inf]
    assert [float(x) for x in st.percentiles(np.full(5, -np.inf))] == [-np.inf, -np.inf]
    assert float(st.percentiles(np.array([0.0] * 99 + [np.inf]))[1]) == 0.0


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 8, 11])
def test_a_curve_is_the_bootstrap_of_each_of_its_points(runs: int):
    """For scores in order, rank and run are the same, so the same draws must give the same interval."""
    scores = np.sort(np.random.default_rng(runs).normal(size=(runs, 4)), axis=0)
    scores[-1, 3] = np.inf
    ranks = st.resample([runs], 2_000)[0]
    found = np.array(st.curve_iqm(scores, ranks))
    for x in range(4):
        expected = st.bootstrap([scores[:, x]], st.iqm, [ranks])
        np.testing.assert_allclose(found[:, x], [expected.value, expected.low, expected.high], atol=1e-12)


def test_a_curve_does_not_depend_on_the_order_of_runs():
    scores = np.random.default_rng(0).random((6, 3))
    ranks = st.resample([6], 500)[0]
    np.testing.assert_array_equal(st.curve_iqm(scores, ranks), st.curve_iqm(scores[::-1], ranks))


def test_probability_of_improvement_by_hand():
    x, y = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.0])
    # of the six pairs: 1 beats 0; 2 ties 2 and beats 0; 3 beats both
    assert st.probability_of_improvement([x], [y]).value == pytest.approx((1 + 0.5 + 1 + 2) / 6)
    assert st.probability_of_improvement([x, y], [y, x]).value == pytest.approx(0.5)
    same = st.probability_of_improvement([x], [x])
    assert same.value == 0.5
    assert same.low < 0.5 < same.high
    apart = st.probability_of_improvement([x + 9], [y])
    assert apart == st.Estimate(1.0, 1.0, 1.0)
    assert st.probability_of_improvement([np.array([-np.inf])], [np.array([-np.inf])]).value == 0.5


def test_expected_best_of_n_by_brute_force():
    scores = np.array([0.3, 0.9, 0.1])
    brute = [np.mean([max(draw) for draw in itertools.product(scores, repeat=n)]) for n in (1, 2, 3)]
    np.testing.assert_allclose(st.expected_best(scores), brute, atol=1e-12)
    np.testing.assert_array_equal(st.expected_best(np.array([-np.inf, 1.0])), [-np.inf, -np.inf])
