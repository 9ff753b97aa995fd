"""How far a run reaches past its training lengths: two numbers that are fixed before any run, the same for every sweep.

    length factor          the largest tested L' / L such that at all tested lengths from L to L' the run holds:
                           loss <= loss(L) + 0.05 nats, or exact match >= 0.9 for a task with exact answers
    area over log length   the mean of the metric over log2(length) from L to the longest tested length (trapezoids)

L is the longest training length, which must be among the tested ones. The factor is 0 for a run that does not hold at L
itself, such as one that failed. Neither depends on which lengths beyond L were chosen as much as a mean over them does:
the area weighs every doubling alike, and the factor names the place where the curve breaks.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from attnjax.report.intervals import Estimate, of_runs
from attnjax.report.metrics import Metric
from attnjax.report.scores import Scored

RISE, SHARE = 0.05, 0.9
"""Nats that a loss may rise over that at the longest training length; share of answers that must be right."""


@dataclass(frozen=True)
class Reach:
    """Length factor and area of every run of a variant, NaN where they are not known, and their medians."""

    metric: Metric
    runs: tuple[str, ...]
    factors: Float[np.ndarray, " R"]
    areas: Float[np.ndarray, " R"]
    factor: Estimate | None
    area: Estimate | None


def metric_of(metrics: Collection[Metric]) -> Metric | None:
    """The metric that is measured: exact match where a task has it, else its first loss, None without both."""
    losses = [metric for metric in metrics if metric.key.startswith("loss")]
    return next((metric for metric in metrics if metric.key == "exact_match"), losses[0] if losses else None)


def reach(scored: Scored, longest: int) -> Reach:
    """The reach of all runs of a variant that was trained on lengths up to `longest`."""
    lengths = np.array(scored.lengths)
    past = lengths >= longest
    known = longest > 0 and longest in scored.lengths
    at, values = lengths[past], scored.curve[:, past]
    factors = np.array([length_factor(at / longest, row, scored.metric) if known else np.nan for row in values])
    areas = np.array([area(at, row) if known else np.nan for row in values])
    return Reach(scored.metric, tuple(run.id for run in scored.runs), factors, areas, middle(factors), middle(areas))


def length_factor(ratios: Float[np.ndarray, " X"], values: Float[np.ndarray, " X"], metric: Metric) -> float:
    """The length factor of one run with these values at lengths / L in ascending order, of which the first is 1.

    Example:
      >>> from attnjax.report.metrics import metric
      >>> length_factor(np.array([1, 2, 4, 8.0]), np.array([1.0, 0.95, 0.4, 0.97]), metric("exact_match"))
      2.0
    """
    if np.isnan(values).any():
        return np.nan
    held = holds(values, metric)
    return float(ratios[np.argmin(held) - 1]) if held[0] and not held.all() else float(ratios[-1]) if held[0] else 0.0


def holds(values: Float[np.ndarray, " X"], metric: Metric) -> Bool[np.ndarray, " X"]:
    """At which lengths a run does as well as it must; the first is the longest training length."""
    if metric.higher:
        return values >= SHARE
    return np.isfinite(values) & (values <= values[0] + RISE)


def area(lengths: Float[np.ndarray, " X"], values: Float[np.ndarray, " X"]) -> float:
    """The mean of the values over log2(length), NaN for fewer than two lengths.

    Example:
      >>> area(np.array([16, 32, 128]), np.array([1.0, 0.5, 0.0]))      # one doubling at 0.75, two at 0.25
      0.4166666666666667
    """
    if len(lengths) < 2:
        return np.nan
    if np.isinf(values).any():
        return float(values[np.isinf(values)][0])
    place = np.log2(lengths)
    return float(np.trapezoid(values, place) / (place[-1] - place[0]))


def middle(scores: Float[np.ndarray, " R"]) -> Estimate | None:
    """The median and interval of the runs that have a score."""
    known = scores[~np.isnan(scores)]
    return of_runs(known) if len(known) else None
