"""Axes: pixels and marks."""

import numpy as np
import pytest

from attnjax.report.scales import length_scale, round_ticks, some, value_scale


def test_doubling_is_an_equal_step_on_a_wide_range():
    scale = length_scale("length", [5, 10, 20, 160], 0, 600)
    assert scale.log
    assert scale(20) - scale(10) == pytest.approx(scale(10) - scale(5), abs=0.2)
    assert 0 < scale(5) < scale(160) < 600


def test_a_narrow_range_is_linear():
    scale = length_scale("length", [10, 20, 30], 0, 600)
    assert not scale.log
    assert scale(30) - scale(20) == pytest.approx(scale(20) - scale(10), abs=0.2)
    assert scale.ticks == (10, 20, 30)


@pytest.mark.parametrize("places", [[], [7], [0, 400], [0]])
def test_any_places_have_a_scale(places: list[float]):
    scale = length_scale("step", places, 0, 600)
    assert all(0 <= scale(x) <= 600 for x in places)


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([1.3, 5.0], False),
        ([0.01, 5.0], True),
        ([0.0, 5.0], False),
        ([2.0], False),
        ([], False),
        ([np.inf, 1.0], False),
    ],
)
def test_losses_get_a_scale_that_holds_what_is_finite(values: list[float], log: bool):
    scale = value_scale("loss", values, 300, 0, share=False)
    assert scale.log == log
    assert all(0 <= scale(x) <= 300 for x in values if np.isfinite(x))
    assert len(scale.ticks) >= 1
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)


def test_shares_always_have_the_same_scale():
    assert value_scale("exact match", [0.4, 0.5], 300, 0, share=True).ticks == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert value_scale("exact match", [], 300, 0, share=True).shown(0.2) == "20%"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (1.2, 4.9, [2, 3, 4]), (-3, 3, [-3, -2, -1, 0, 1, 2, 3]), (0, 2**53, None)],
)
def test_round_marks(low: float, high: float, expected: list[float] | None):
    found = round_ticks(low, high)
    assert found == pytest.approx(expected) if expected else len(found) <= 7


def test_few_marks_of_many_lengths_are_lengths():
    lengths = list(range(1, 501))
    assert set(some(lengths)) <= set(map(float, lengths))
    assert len(some(lengths)) <= 9
    assert some(lengths)[0] == 1
    assert some(lengths)[-1] == 500
