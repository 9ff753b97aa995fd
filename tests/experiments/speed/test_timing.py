"""Statistics of rounds against hand calculations, and the order and number of calls, on a clock that is told the time."""

from types import SimpleNamespace

import pytest

from experiments.speed.timing import Contender, Spread, interleaved, ratio, timed


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


def contender(name: str, calls: list[str], seconds, clock: Clock | None = None) -> Contender:
    """Says when it is called and claims to have taken the seconds, one after another."""
    left = iter(seconds)

    def run() -> float:
        calls.append(name)
        taken = next(left)
        if clock is not None:
            clock.now += taken
        return taken

    return Contender(name, run)


@pytest.mark.parametrize(
    ("values", "spread"),
    [
        ([5.0], (5, 5, 5)),
        ([1.0, 3.0], (2, 1.5, 2.5)),
        ([5.0, 1.0, 4.0, 2.0, 3.0], (3, 2, 4)),
        ([4.0, 3.0, 2.0, 1.0], (2.5, 1.75, 3.25)),
        ([1.0, 1.0, 100.0], (1, 1, 50.5)),
    ],
)
def test_median_and_quartiles(values, spread):
    assert Spread.of(values) == spread


def test_a_ratio_is_taken_inside_a_round():
    """Rounds 1/1, 10/2 and 4/4; the ratio of the medians would be 4/2."""
    assert ratio([1.0, 10.0, 4.0], [1.0, 2.0, 4.0]) == (1, 1, 3)


def test_a_ratio_needs_the_same_rounds():
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is shorter"):
        ratio([1.0, 2.0], [1.0])


def test_order_rotates_and_warm_calls_do_not_count():
    calls: list[str] = []
    three = [contender(name, calls, [99, 98, *seconds]) for name, seconds in (("a", (1, 2, 3, 4)), ("b", (5, 6, 7, 8)))]
    three.append(contender("c", calls, [99, 98, 9, 10, 11, 12]))
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
    pair = [contender(name, [], [10.0] * 40, clock) for name in "ab"]
    taken = interleaved(pair, rounds=rounds, seconds=seconds)
    assert [len(taken[name]) for name in "ab"] == [made, made]


def test_a_short_contender_waits_for_itself_and_not_for_the_one_before():
    calls: list[str] = []
    pair = [contender("a", calls, [5, 1, 2, 3, 4]), contender("b", calls, [20, 30, 40])]
    assert interleaved(pair, rounds=2) == {"a": [2, 4], "b": [30, 40]}
    assert "".join(calls) == "ab" + "aab" + "baa"


def test_contenders_have_different_names():
    with pytest.raises(ValueError, match=r"contenders must have different names, got \['a', 'a'\]"):
        interleaved([Contender("a", lambda: 1.0), Contender("a", lambda: 1.0)])


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
