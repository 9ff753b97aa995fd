"""Seconds of several contenders, taken in turn, so that whatever else the machine does strikes all of them alike.

In each round every contender runs once, in an order that rotates from round to round. A ratio is taken inside a round,
between neighbours in time; the median over rounds is reported, with the quartiles beside it. A contender that takes less than
`SHORT` seconds runs twice, and the second counts: a program gives its memory back after its result is there, which takes
a tenth of a second for half a gigabyte, and each should wait for itself and not for the one before.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

SHORT = 10.0


class Contender(NamedTuple):
    """One way to do the work. `run` does it once and returns the seconds that it took."""

    name: str
    run: Callable[[], float]


class Spread(NamedTuple):
    """Median and quartiles over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one number."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def timed(function: Callable[..., Any], *args: Any) -> Callable[[], float]:
    """A contender's `run`: call a compiled function and wait for its result."""

    def run() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        return time.perf_counter() - start

    return run


def interleaved(
    contenders: Sequence[Contender], *, rounds: int = 15, seconds: float = 30.0, warm: int = 1
) -> dict[str, list[float]]:
    """Seconds of each contender in each round: at least 3 rounds, at most `rounds`, no new one after `seconds`.

    `warm` calls of each come first and are thrown away: compilation, first touch of memory.
    Raises ValueError where two contenders have one name.
    """
    names = [contender.name for contender in contenders]
    if len(set(names)) != len(names):
        raise ValueError(f"contenders must have different names, got {names}")
    seen = {contender.name: min([contender.run() for _ in range(warm)], default=SHORT) for contender in contenders}
    taken: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    for i in range(rounds):
        if i >= 3 and time.perf_counter() - start > seconds:
            break
        first = i % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            if seen[contender.name] < SHORT:
                contender.run()
            taken[contender.name].append(contender.run())
    return taken


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times as long as ours theirs takes, round by round."""
    return Spread.of([a / b for a, b in zip(theirs, ours, strict=True)])
