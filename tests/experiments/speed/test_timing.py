"""The order and number of calls of contenders, on a clock that is told the time."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.speed.timing import cold, counted, interleaved, timed


class Clock:
    """A `time` whose seconds pass only when somebody works."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("experiments.speed.timing.time", made)
    return made


def contender(name: str, calls: list[str], seconds, clock: Clock | None = None):
    """Says when it is called and claims to have taken the seconds, one after another."""
    left = iter(seconds)

    def run() -> float:
        calls.append(name)
        taken = next(left)
        if clock is not None:
            clock.now += taken
        return taken

    return run


def test_order_rotates_and_warm_calls_do_not_count():
    calls: list[str] = []
    seconds = {"a": (1, 2, 3, 4), "b": (5, 6, 7, 8), "c": (9, 10, 11, 12)}
    three = {name: contender(name, calls, [99, 98, *taken]) for name, taken in seconds.items()}
    taken = interleaved(three, rounds=4, warm=2)
    assert taken == {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8], "c": [9, 10, 11, 12]}
    assert "".join(calls) == "aabbcc" + "abc" + "bca" + "cab" + "abc"


@pytest.mark.parametrize(
    ("rounds", "seconds", "made"),
    [
        (15, 35.0, 3),  # over after the second round, and three are made in any case
        (15, 60.0, 4),  # not over after 60 s: only what exceeds the budget is
        (15, 70.0, 4),
        (15, 100.0, 6),
        (2, 1000.0, 2),
    ],
)
def test_budget(clock, rounds, seconds, made):
    """A round takes 20 s on this clock, and the warm one before it does not count."""
    pair = {name: contender(name, [], [10.0] * 40, clock) for name in "ab"}
    taken = interleaved(pair, rounds=rounds, seconds=seconds)
    assert [len(taken[name]) for name in "ab"] == [made, made]


def test_a_short_contender_waits_for_itself_and_not_for_the_one_before():
    calls: list[str] = []
    pair = {"a": contender("a", calls, [5, 1, 2, 3, 4]), "b": contender("b", calls, [20, 30, 40])}
    assert interleaved(pair, rounds=2) == {"a": [2, 4], "b": [30, 40]}
    assert "".join(calls) == "ab" + "aab" + "baa"


def test_without_a_warm_run_the_first_says_whether_a_contender_is_short():
    calls: list[str] = []
    pair = {"a": contender("a", calls, [5, 1, 2, 3, 4, 6]), "b": contender("b", calls, [20, 30, 40])}
    assert interleaved(pair, rounds=2, warm=0) == {"a": [1, 3], "b": [20, 30]}
    assert "".join(calls) == "aab" + "baa"


def test_timed_calls_with_the_arguments_and_waits_for_the_result(clock):
    seen = []

    def ready() -> None:
        clock.now += 3.0

    def function(*args):
        seen.append(args)
        clock.now += 2.0
        return SimpleNamespace(block_until_ready=ready)

    assert timed(function, 1, "x")() == 5.0
    assert seen == [(1, "x")]


def test_a_cold_block_leaves_the_settings_as_they_were():
    names = ("jax_enable_compilation_cache", "jax_disable_most_optimizations")
    before = [jax.config.values[name] for name in names]
    jax.config.update("jax_enable_compilation_cache", True)
    try:
        double = jax.jit(lambda x: 2 * x)
        double(np.ones(3))
        with cold(), counted() as compilations:
            double(np.ones(3))
            assert not jax.config.values["jax_enable_compilation_cache"]
        assert compilations == ["jit(<lambda>)"]
        assert jax.config.values["jax_enable_compilation_cache"]
    finally:
        jax.config.update("jax_enable_compilation_cache", before[0])
    assert [jax.config.values[name] for name in names] == before
