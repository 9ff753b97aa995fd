"""Intervals of a cell: over its runs, and over runs and examples at once. Their coverage decided which they are.

**Over R runs** the centre is the median. Below 6 runs no interval of any statistic covers it in 95 % of cases whatever the
distribution is, so what is given is the range [min, max], and it is called so. From 6 runs on it is the interval between two
order statistics, x_(d) and x_(n + 1 - d), which covers the median with probability 1 - 2 P(B < d), B binomial(n, 1/2), for
every continuous distribution. Where that is above 97 %, it is interpolated towards the next pair (Hettmansperger and Sheather
1986, Statistics and Probability Letters 4, 75-79), which is about right where scores lie around their median. It is too narrow
where half of the runs score far from the other half, so that the median lies in a gap, in which an end of the interval may lie,
too: then it covers no more than the pair of order statistics further in, 87.5 % with 7 runs, 89.1 % with 10, 90.8 % with 13.
With 6, 9 or 20 runs nothing is interpolated. A failed run, whose loss is infinite, is a number like any other.

Measured coverage of nominal 95 %, in 20,000 samples of 6, 10 and 20 runs (`tests/report/test_intervals.py` repeats it):

    distribution          this interval         t interval, mean      percentile bootstrap, IQM (50,000 resamples)
    normal                .97  .95  .96         .95  .95  .95         .91  .93  .94
    uniform               .97  .95  .96         .94  .95  .95         .91  .94  .95
    beta(1, 9)            .97  .95  .96         .91  .91  .93         .90  .94  .95
    beta(1/2, 3)          .97  .95  .96         .87  .90  .92         .89  .93  .94
    t, 5 degrees          .97  .95  .96         .96  .96  .95         .91  .92  .95
    80 % near .95,
    20 % near .1          .97  .95  .96         .73  .88  .92         .90  .93  .96

Scores of exactly 0 and 1 tie: the interval covers in 93.8 % of cases with 7 runs and in 94.5 % with 10 where half of the runs
have each, since an interpolated end leaves a tied score, and in more than 95 % otherwise. Where its two ends are the same
score, as where all runs are equal, there is no interval, because 6 equal scores do not say that a seventh would be equal.

**Over runs and examples** (all runs measured the same examples, so the design is crossed) the centre is the mean, whose
variance has three parts: that of runs, that of examples, and the rest. Searle's estimates of them give

    var = (MS_runs + MS_examples - MS_rest) / (R W),      a t interval with Satterthwaite's degrees of freedom.

In 2,000 samples of 6 and 10 runs with 512 windows and eight ratios of the three parts its coverage is 94.2 to 96.4 %; that of a
bootstrap over both (Owen 2007) is 84 to 98 %, and that of a t interval over runs alone 9 to 95 %.

**Over runs and documents.** Windows of one document are alike, so that 512 windows of 30 files are not 512 examples: where
files differ, the interval above covers in 30 to 95 % of cases. Where it is known which document each was cut from, deviations
are summed within documents before they are squared (Liang and Zeger 1986, Biometrika 73, 13-22), in the second part and in the
third, with a factor and degrees of freedom that allow for few documents of unequal size (`correction`). In 1,500 samples of 6
and 10 runs, 512 windows in 8 to 500 documents, of equal and of very unequal sizes, its coverage is 94 to 98 %.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

CONFIDENCE = 0.95
FEWEST = 6
"""Runs below which there is a range and no interval."""
EXACT = 0.97
"""An interval of order statistics whose coverage is at most this is not interpolated."""

ROUNDING = 1e-12
"""Ends that are closer differ by the rounding of equal scores."""

RANGE, INTERVAL, NONE = "range", "95 %", "none"


@dataclass(frozen=True)
class Estimate:
    """A centre, and the ends of what `kind` says: the "range" of the runs, a "95 %" interval, or "none".

    Example:
      >>> of_runs(np.array([0.1, 0.4, 0.2]))
      Estimate(value=0.2, low=0.1, high=0.4, kind='range', runs=3)
    """

    value: float
    low: float
    high: float
    kind: str = INTERVAL
    runs: int = 0


def kind(runs: int, low: float, high: float) -> str:
    """Return what lies between two ends that were computed from this many runs; nothing where they are NaN."""
    if (
        runs < 2
        or math.isnan(low)
        or math.isnan(high)
        or (runs >= FEWEST and math.isclose(low, high, rel_tol=ROUNDING, abs_tol=ROUNDING))
    ):
        return NONE
    return INTERVAL if runs >= FEWEST else RANGE


def estimate(value: float, low: float, high: float, runs: int) -> Estimate:
    """Return an estimate of the kind that its runs allow."""
    low, high = float(low), float(high)
    return Estimate(float(value), low, high, kind(runs, low, high), runs)


def of_runs(scores: Float[np.ndarray, " R"]) -> Estimate:
    """Return the median of the runs, and its interval, or the range of fewer than 6."""
    value, low, high = median_and_ends(scores)
    return estimate(float(value), float(low), float(high), len(scores))


def median_and_ends(
    scores: Float[np.ndarray, "R *X"],
) -> tuple[Float[np.ndarray, "*X"], Float[np.ndarray, "*X"], Float[np.ndarray, "*X"]]:
    """Return (median, low, high) over the first axis: the interval of 6 runs or more, the range of fewer."""
    ordered, runs = np.sort(scores, axis=0), len(scores)
    place, inwards = order_statistics(runs) if runs >= FEWEST else (1, 0.0)
    low = between(ordered[place - 1], ordered[min(place, runs - 1)], inwards)
    high = between(ordered[runs - place], ordered[max(runs - place - 1, 0)], inwards)
    return between(ordered[(runs - 1) // 2], ordered[runs // 2], 0.5), low, high


def between(start: Float[np.ndarray, "*X"], end: Float[np.ndarray, "*X"], share: float) -> Float[np.ndarray, "*X"]:
    """Return the point at this share of the way; infinite where the way leads to or from infinity."""
    if not share:
        return start
    with np.errstate(invalid="ignore"):
        return np.where(start == end, start, (1 - share) * start + share * end)


def order_statistics(runs: int) -> tuple[int, float]:
    """Return (d, share): the interval begins at this share of the way from the d-th lowest score to the next, and ends alike.

    Example:
      >>> order_statistics(6)      # lowest and highest: 1 - 2 / 64 = 96.9 %
      (1, 0.0)
    """
    covered = lambda d: 1 - 2 * sum(math.comb(runs, k) for k in range(d)) / 2**runs
    place = max(d for d in range(1, runs // 2 + 1) if covered(d) >= CONFIDENCE)
    if covered(place) <= EXACT:
        return place, 0.0
    part = (covered(place) - CONFIDENCE) / (covered(place) - covered(place + 1))
    return place, (runs - place) * part / (place + (runs - 2 * place) * part)


def of_mean(scores: Float[np.ndarray, " R"]) -> Estimate:
    """Return the mean and its t interval (Student 1908), or the range of fewer than 6; for differences of pairs.

    Where a score is not finite there is no interval of 6 or more.
    """
    runs, mean = len(scores), float(np.mean(scores))
    if runs < FEWEST:
        return estimate(mean, np.min(scores), np.max(scores), runs)
    half = (
        t_quantile(runs - 1) * float(np.std(scores, ddof=1)) / math.sqrt(runs)
        if np.isfinite(scores).all()
        else math.nan
    )
    return estimate(mean, mean - half, mean + half, runs)


def of_runs_and_examples(
    scores: Float[np.ndarray, "R W"], documents: Float[np.ndarray, " W"] | None = None
) -> Estimate | None:
    """Return the mean over runs and examples and its interval; None for fewer than 6 runs, or where a score is not finite.

    Args:
      scores: of each run on each example.
      documents: the number of the document that each example was cut from, for an interval over documents; None where
        examples were drawn independently. With fewer than 6 documents there is no interval, and None is returned.
    """
    runs, examples = scores.shape
    if runs < FEWEST or examples < 2 or not np.isfinite(scores).all():
        return None
    scores = scores.astype(np.float64)
    mean, by_run, by_example = scores.mean(), scores.mean(axis=1), scores.mean(axis=0)
    rest = scores - by_run[:, None] - by_example + mean
    deviations, unbiased, degrees_of_examples = by_example - mean, examples / (examples - 1), float(examples - 1)
    if documents is not None:
        members = (documents[:, None] == np.unique(documents)).astype(np.float64)
        if members.shape[1] < FEWEST:
            return None
        deviations, rest = deviations @ members, rest @ members
        unbiased, degrees_of_examples = correction(members.mean(axis=0))
    of_example = unbiased * float(np.sum(deviations**2)) / examples**2
    of_rest = unbiased * float(np.sum(rest**2)) / scores.size**2 * runs / (runs - 1)
    parts = np.array([by_run.var(ddof=1) / runs, of_example, of_rest])
    # An estimate below both parts would say that one of them is negative.
    total = max(float(parts[0] + parts[1] - parts[2]), float(parts[0]), float(parts[1]))
    if total <= 0:
        return Estimate(float(mean), float(mean), float(mean), NONE, runs)
    freedom = np.array([runs - 1, degrees_of_examples, (runs - 1) * degrees_of_examples])
    degrees = total**2 / float(np.sum(parts**2 / freedom))
    half = t_quantile(max(degrees, 1.0)) * math.sqrt(total)
    return estimate(float(mean), mean - half, mean + half, runs)


def correction(shares: Float[np.ndarray, " D"]) -> tuple[float, float]:
    """Return the factor that makes the variance of a mean over documents unbiased, and its degrees of freedom.

    With d the deviations of D documents from the mean and p their shares of the examples, the variance is sum p^2 d^2, a
    quadratic form e' A e of independent documents e. Its expectation is tr(A), where the truth is sum p^2; its degrees of
    freedom are tr(A)^2 / tr(A A) (Bell and McCaffrey 2002, Survey Methodology 28, 169-181, for a mean).

    Example:
      >>> [round(x, 6) for x in correction(np.full(10, 0.1))]      # equal documents: n / (n - 1), and n - 1
      [1.111111, 9.0]
    """
    centred = np.eye(len(shares)) - shares
    form = centred.T @ (shares[:, None] ** 2 * centred)
    trace = float(np.trace(form))
    return float(np.sum(shares**2)) / trace, trace**2 / float(np.sum(form**2))


def t_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t distribution."""
    return float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))


def caption(counts: Iterable[float]) -> str:
    """Return what the ends of estimates from these numbers of runs are, in words.

    Example:
      >>> caption([3, 3]), caption([8]), caption([5, 10])
      ('range of 3 runs', '95 % interval of 8 runs', 'range of 5 runs, 95 % interval of 10 runs')
    """
    known = sorted({int(count) for count in counts if count > 0})
    few, many = [n for n in known if 1 < n < FEWEST], [n for n in known if n >= FEWEST]
    parts = [f"range of {span(few)} runs"] if few else []
    parts += [f"95 % interval of {span(many)} runs"] if many else []
    return ", ".join(parts) or "one run, without an interval"


def span(numbers: list[int]) -> str:
    """Return the least and the most of several counts as text."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
