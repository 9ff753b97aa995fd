"""Aggregates and intervals against hand calculation, brute force and the authors' own library (golden/make_rliable.py)."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from attnjax.report import statistics as st
from attnjax.report.intervals import Estimate

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


def close(estimate: Estimate, golden: np.ndarray) -> None:
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
    assert float(st.iqm(two)) == pytest.approx((0.2 + 0.4 + 0.5) / 3)


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
    found = st.probability_of_improvement(strata(rliable["x"]), strata(rliable["y"]))
    assert found == pytest.approx(rliable["improvement"][0], abs=1e-9)


def test_the_bootstrap_is_a_function_of_its_arguments():
    scores = [np.array([0.1, 0.5, 0.9, 0.4, 0.7])]
    assert st.bootstrap(scores) == st.bootstrap(scores)
    np.testing.assert_array_equal(st.resample([4, 7])[1], st.resample([4, 7])[1])
    assert st.resample([4], seed=1)[0].tolist() != st.resample([4], seed=2)[0].tolist()
    assert st.resample([5])[0].shape == (50_000, 5)


def test_an_aggregate_of_few_runs_has_no_interval():
    few = [np.arange(9.0), np.arange(10.0)]
    assert st.aggregate(few) == Estimate(float(st.iqm(few)), float(st.iqm(few)), float(st.iqm(few)), "none", 19)
    found = st.aggregate([np.arange(10.0), np.arange(10.0) + 3])
    assert found.kind == "95 %"
    assert found.low < found.value == 6.0 < found.high
    assert st.aggregate([np.ones(10), np.ones(10)]).kind == "none", "equal scores have no interval"


def test_more_of_the_resamples_are_taken_with_few_runs():
    """Hesterberg's expansion by hand: sqrt(10 / 9) * 2.26216 = 2.38453 standard deviations for 10 runs."""
    assert st.expanded(10) == pytest.approx(0.98290, abs=1e-5)
    assert st.expanded(1000) == pytest.approx(0.9505, abs=2e-4)


STRATA = {
    "normal": [lambda g, n: g.normal(0.3, 0.1, n), lambda g, n: g.normal(0.6, 0.1, n)],
    "beta": [lambda g, n: g.beta(2, 8, n), lambda g, n: g.beta(8, 2, n), lambda g, n: g.beta(1, 9, n)],
    "t": [lambda g, n: 0.1 * g.standard_t(5, n), lambda g, n: 0.1 * g.standard_t(5, n)],
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "beta")) for name in STRATA])
@pytest.mark.parametrize("runs", [10, pytest.param(20, marks=pytest.mark.slow)])
def test_an_aggregate_covers_the_truth(name: str, runs: int):
    """Measured 95 to 97.5 %; 1,000 trials put four standard errors at 2.4 %."""
    generator = np.random.default_rng(runs)
    truth = float(st.iqm([draw(generator, 400_000) for draw in STRATA[name]]))
    indices, share = st.resample([runs] * len(STRATA[name]), 600), st.expanded(runs)
    covered = 0
    for _ in range(1_000):
        found = st.bootstrap([draw(generator, runs) for draw in STRATA[name]], st.iqm, indices, share)
        covered += found.low <= truth <= found.high
    assert 0.93 < covered / 1_000 < 0.99


def test_percentiles_are_those_of_numpy():
    samples = np.random.default_rng(0).normal(size=(1_001, 3))
    np.testing.assert_allclose(st.percentiles(samples), np.percentile(samples, [2.5, 97.5], axis=0), atol=1e-12)
    half = st.percentiles(samples, share=0.5)
    np.testing.assert_allclose(half, np.percentile(samples, [25, 75], axis=0), atol=1e-12)


def test_percentiles_of_infinities():
    assert [float(x) for x in st.percentiles(np.array([1.0, np.inf, np.inf, np.inf]))] == [np.inf, np.inf]
    assert [float(x) for x in st.percentiles(np.full(5, -np.inf))] == [-np.inf, -np.inf]
    assert float(st.percentiles(np.array([0.0] * 99 + [np.inf]))[1]) == 0.0


def test_probability_of_improvement_by_hand():
    x, y = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.0])
    # of the six pairs: 1 beats 0; 2 ties 2 and beats 0; 3 beats both
    assert st.probability_of_improvement([x], [y]) == pytest.approx((1 + 0.5 + 1 + 2) / 6)
    assert st.probability_of_improvement([x, y], [y, x]) == pytest.approx(0.5)
    assert st.probability_of_improvement([x], [x]) == 0.5
    assert st.probability_of_improvement([x + 9], [y]) == 1.0
    assert st.probability_of_improvement([np.array([-np.inf])], [np.array([-np.inf])]) == 0.5


def test_expected_best_of_n_by_brute_force():
    scores = np.array([0.3, 0.9, 0.1])
    brute = [np.mean([max(draw) for draw in itertools.product(scores, repeat=n)]) for n in (1, 2, 3)]
    np.testing.assert_allclose(st.expected_best(scores), brute, atol=1e-12)
    np.testing.assert_array_equal(st.expected_best(np.array([-np.inf, 1.0])), [-np.inf, -np.inf])
