"""The search for factors of LongRoPE stays within its bounds, starts included."""

import numpy as np
import pytest

from attnjax.long.factor_search import check_factors, search_factors


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("step", [1.5, 4.0])
def test_no_factor_leaves_the_bounds(rounds, step):
    """The least loss lies far outside on either side, and so do the starts."""
    asked = []

    def loss(factors):
        asked.append(factors)
        return abs(factors[0] - 0.01) + abs(factors[1] - 100)

    found = search_factors(loss, [(0.5, 16.0), (16.0, 16.0)], rounds=rounds, most=8.0, step=step)
    assert found == (1.0, 8.0)
    assert all(1 <= one <= 8 for factors in asked for one in factors)


def test_starts_within_the_bounds_stay_as_they_are():
    assert search_factors(lambda factors: sum(factors), [(3.0, 5.0), (2.5, 4.0)], rounds=0, most=8.0) == (2.5, 4.0)


def test_a_start_beyond_the_bounds_can_come_back():
    assert search_factors(lambda factors: abs(factors[0] - 4), [(16.0,)], most=8.0, step=2.0) == (4.0,)


@pytest.mark.parametrize("value", [np.bool_(True), True, np.ones(1), "1", None, 0.0, float("nan"), float("inf")])
def test_factors_are_positive_numbers(value):
    assert check_factors([np.float32(1.5), np.int32(2)]) == (1.5, 2.0)
    with pytest.raises(ValueError, match="factors of LongRoPE must be positive numbers"):
        check_factors([value])
