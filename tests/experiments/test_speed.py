"""Timing in turns, agreement of results, rows of the table, and every suite at its smallest size."""

import jax.numpy as jnp
import pandas as pd
import pytest

from experiments.speed import timing
from experiments.speed.__main__ import SUITES, main


class Clock:
    """A `time` in which every call takes 10 seconds."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 10.0
        return self.now


def test_contenders_take_turns_and_first_calls_do_not_count(monkeypatch):
    calls = []

    def contender(name, seconds):
        left = iter(seconds)
        return lambda: calls.append(name) or next(left)

    # "a" takes less than 10 s, so that it runs twice in each round and the second run counts.
    contenders = {"a": contender("a", (9, 1, 2, 3, 4, 5, 6)), "b": contender("b", (99, 10, 20, 30))}
    monkeypatch.setattr(timing, "time", Clock())
    assert timing.interleaved(contenders, rounds=15, seconds=5.0) == {"a": [2, 4, 6], "b": [10, 20, 30]}
    assert "".join(calls) == "ab" + "aab" + "baa" + "aab"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([float("nan"), 1.0], [1.0, 1.0], float("inf")),
    ],
)
def test_differences_are_relative_to_the_largest_number_of_an_array(ours, theirs, expected):
    assert timing.difference({"x": jnp.array(ours)}, {"x": jnp.array(theirs)}) == expected


def test_an_array_of_rounding_errors_is_compared_with_a_tenth_of_the_largest():
    ours, theirs = (jnp.array([1.0]), jnp.array([1e-3])), (jnp.array([1.0]), jnp.array([2e-3]))
    assert timing.difference(ours, theirs) == pytest.approx(1e-3 / 0.1, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_runs_and_agrees_with_its_peers(suite, tmp_path):
    assert main([suite, "--smoke", "--out", str(tmp_path)]) == 0
    rows = pd.read_csv(tmp_path / "records.csv")
    assert (rows.ratio > 0).all()
    assert not rows.error.gt(2e-2).any()
