"""From numbers to pixels and to the marks of an axis."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scale:
    """A line of pixels from `start` to `end` for values from `low` to `high`, equal ratios being equal steps where
    `log`.
    """

    label: str
    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]
    percent: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, here = (float(np.log(x)) if self.log else x for x in (self.low, self.high, value))
        share = (here - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def shown(self, value: float) -> str:
        """A value as a mark of the axis."""
        return f"{100 * value:g}%" if self.percent else f"{value:.6g}"


def length_scale(label: str, places: Sequence[float], start: float, end: float, kept: float = 0) -> Scale:
    """A scale that holds these places, doubling per step where they span a factor of 8, with a little room on both
    sides. `kept`: a place that has a mark if it is one of them.
    """
    low, high = (float(places[0]), float(places[-1])) if places else (0.0, 1.0)
    log = low > 0 and high >= 8 * low
    room = (high / low) ** 0.04 if log else 0.04 * (high - low) or 1.0
    ends = (low / room, high * room) if log else (low - room, high + room)
    return Scale(label, *ends, start, end, log, tuple(some(places, kept=kept)))


def value_scale(label: str, values: Sequence[float], start: float, end: float, *, share: bool) -> Scale:
    """A scale for scores: 0 to 1 for a share, otherwise what holds the finite values, logarithmic over a wide range."""
    if share:
        return Scale(label, -0.02, 1.02, start, end, log=False, ticks=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), percent=True)
    finite = [float(x) for x in values if np.isfinite(x)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if low > 0 and high > 8 * low:
        ticks = [base * 10.0**power for power in range(-12, 13) for base in (1, 2, 5)]
        return Scale(
            label, low / 1.1, high * 1.1, start, end, True, tuple(x for x in ticks if low / 1.1 <= x <= high * 1.1)
        )
    room = 0.05 * (high - low) or 0.5
    return Scale(label, low - room, high + room, start, end, False, tuple(round_ticks(low - room, high + room)))


def round_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two ends, at most so many."""
    steps = (base * 10.0**power for power in range(-12, 16) for base in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= most - 1)
    return [float(f"{i * step:.9g}") for i in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]


def some(places: Sequence[float], most: int = 9, kept: float = 0) -> list[float]:
    """All places where they are few, else those nearest to equal steps: doubling ones where they span a wide range. If `kept`
    is one of the places, it is chosen in place of the nearest other.

    Example:
      >>> some([8, 12, 16, 17, 18, 19, 20, 21, 22, 24, 32, 64, 128], most=6, kept=16)
      [8.0, 16.0, 32.0, 64.0, 128.0]
    """
    if len(places) <= most:
        return [float(x) for x in places]
    low, high = float(places[0]), float(places[-1])
    wanted = np.geomspace(low, high, most - 1) if low > 0 and high >= 8 * low else np.linspace(low, high, most - 1)
    chosen = {float(places[int(np.argmin(np.abs(np.asarray(places) - x)))]) for x in wanted}
    if kept in places and kept not in chosen:
        chosen = chosen - {min(chosen, key=lambda x: abs(x - kept))} | {float(kept)}
    return sorted(chosen)
