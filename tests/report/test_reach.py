"""How far a run reaches: both numbers by hand, and where they are not known."""

import numpy as np
import pytest

from attnjax.report.metrics import metric
from attnjax.report.reach import area, length_factor, metric_of

RATIOS = np.array([1, 1.5, 2, 4, 8])


@pytest.mark.parametrize(
    ("key", "values", "factor"),
    [
        ("exact_match", [1.0, 0.95, 0.9, 0.89, 1.0], 2.0),
        ("exact_match", [0.89, 1, 1, 1, 1], 0.0),
        ("exact_match", [1.0, 1, 1, 1, 1], 8.0),
        ("exact_match", [0.9, 0, 0, 0, 0], 1.0),
        ("loss_sliding", [2.0, 1.9, 2.05, 2.051, 2.0], 2.0),
        ("loss_sliding", [2.0, 2.04, 2.0, 2.04, 2.04], 8.0),
        ("loss_sliding", [2.0, 3.0, 2.0, 2.0, 2.0], 1.0),
        ("loss_sliding", [np.inf] * 5, 0.0),
        ("loss_sliding", [2.0, 2.0, np.inf, 2.0, 2.0], 1.5),
        ("exact_match", [1.0, np.nan, 1, 1, 1], np.nan),
    ],
)
def test_length_factor(key: str, values: list[float], factor: float):
    np.testing.assert_equal(length_factor(RATIOS, np.array(values), metric(key)), factor)


def test_the_area_weighs_each_doubling_alike():
    assert area(np.array([64, 128, 512]), np.array([1.0, 2.0, 4.0])) == pytest.approx((1.5 + 2 * 3.0) / 3)
    assert area(np.array([64, 128]), np.array([1.0, np.inf])) == np.inf
    assert np.isnan(area(np.array([64]), np.array([1.0])))


def test_the_area_does_not_depend_on_further_points_of_a_line():
    """A curve that is straight in log2(length) has one area, however many of its points were measured."""
    line = lambda lengths: area(lengths, 3 - 0.2 * np.log2(lengths))
    assert line(np.array([16, 128])) == pytest.approx(line(np.array([16, 20, 24, 64, 100, 128])))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("token_accuracy", "loss", "exact_match"), "exact_match"),
        (("loss_sliding", "loss_nonoverlapping"), "loss_sliding"),
        (("token_accuracy",), None),
    ],
)
def test_the_metric_is_fixed_by_the_task(keys: tuple[str, ...], expected: str | None):
    found = metric_of([metric(key) for key in keys])
    assert (found and found.key) == expected
