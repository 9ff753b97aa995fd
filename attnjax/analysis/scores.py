"""Scores of heads: the share of attention that a head gives to the targets of a pattern, beside baseline and chance.

    score      mass on the targets, mean over all rows that have one
    baseline   the same for the best head that attends by offset alone: the one offset that hits most, chosen on half of the
               documents and counted on the other half, both ways (fixed offsets: Clark et al. 2019, arXiv:1906.04341, table 1)
    chance     the same for a head that attends to all visible keys alike

Intervals are percentiles of a bootstrap over documents (95 %). A head *beats* the baseline where the interval of the
difference, head less baseline paired by document, lies above 0, and that over chance too. What offsets find by definition
(the previous token, the first) no head can beat there: such a head is one whose interval lies above 1/2, by the "more than
half of the attention" of Clark et al., section 3.1.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attnjax.analysis.counting import Counts
from attnjax.analysis.patterns import POSITIONAL
from attnjax.report.statistics import SEED, percentiles
from attnjax.typing import Bool, Float, Int

RESAMPLES = 10_000
LEAST = 1e-4
"""A smaller gain does not count, because sums of attention in float32 are uncertain by up to this."""


class HeadScores(NamedTuple):
    """The scores of all heads for one pattern.

    `gain` is the lower end of the interval of the score less the larger of baseline and chance.
    `offset` is the best offset on all documents. Without rows all numbers are NaN; intervals need two documents.
    """

    score: Float[np.ndarray, "L N"]
    low: Float[np.ndarray, "L N"]
    high: Float[np.ndarray, "L N"]
    gain: Float[np.ndarray, "L N"]
    baseline: float
    chance: float
    offset: int
    rows: int
    documents: int


def score_heads(counts: Mapping[str, Counts], resamples: int = RESAMPLES) -> dict[str, HeadScores]:
    """The scores of every pattern."""
    return {name: scores(one, resamples) for name, one in counts.items()}


def scores(counts: Counts, resamples: int = RESAMPLES) -> HeadScores:
    """Scores, baseline and intervals of one pattern. Documents without a row that has a target are left out."""
    counts = with_rows(counts)
    D, total = len(counts.rows), counts.rows.sum()
    if not D:
        nothing = np.full(counts.mass.shape[1:], np.nan)
        return HeadScores(nothing, nothing, nothing, nothing, np.nan, np.nan, 0, 0, 0)
    draws = resampled(D, resamples)
    share = lambda sums: np.tensordot(draws, sums, 1) / (draws @ counts.rows).reshape(-1, *[1] * (sums.ndim - 1))
    over = lambda other: percentiles(share(counts.mass - other[:, None, None]))[0]
    low, high = percentiles(share(counts.mass))
    positional = baseline_hits(counts)
    unknown = np.nan if D < 2 else 0.0
    return HeadScores(
        score=counts.mass.sum(0) / total,
        low=low + unknown,
        high=high + unknown,
        gain=np.minimum(over(positional), over(counts.chance)) + unknown,
        baseline=float(positional.sum() / total),
        chance=float(counts.chance.sum() / total),
        offset=int(counts.offsets[counts.hits.sum(0).argmax()]),
        rows=int(total),
        documents=D,
    )


def stands_out(name: str, found: HeadScores) -> Bool[np.ndarray, "L N"]:
    """Which heads have the pattern: above 1/2 if an offset defines the pattern, otherwise above baseline and chance.

    The interval is over documents. Random parameters can stand out as well where the baseline is no more than chance, as for
    separators (`experiments/head_specialization`): compare with the model before training.
    """
    return found.low > 0.5 if name in POSITIONAL else found.gain > LEAST


def best_head(counts: Counts) -> float:
    """The score of the best head, chosen on half of the documents and counted on the other half, both ways.

    The largest of several scores on the documents it was chosen on would be too high. NaN for fewer than two documents.
    """
    counts = with_rows(counts)
    if len(counts.rows) < 2:
        return np.nan
    return float(_crossed(counts.mass.reshape(len(counts.rows), -1)).sum() / counts.rows.sum())


def baseline_hits(counts: Counts) -> Float[np.ndarray, " D"]:
    """The hits of the best offset in each document, chosen on the other half of the documents; NaN for fewer than two."""
    return _crossed(counts.hits) if len(counts.rows) > 1 else np.full(len(counts.rows), np.nan)


def with_rows(counts: Counts) -> Counts:
    """The documents that have a row with a target."""
    kept = counts.rows > 0
    mass, rows, hits, chance = (part[kept] for part in counts[:-1])
    return Counts(mass, rows, hits, chance, counts.offsets)


def resampled(documents: int, resamples: int = RESAMPLES) -> Int[np.ndarray, "Z D"]:
    """How often each document is in each resample; the same for the same arguments."""
    drawn = np.random.default_rng(SEED).integers(documents, size=(resamples, documents))
    places = drawn + documents * np.arange(resamples)[:, None]
    return np.bincount(places.ravel(), minlength=resamples * documents).reshape(resamples, documents)


def _crossed(candidates: Float[np.ndarray, "D C"]) -> Float[np.ndarray, " D"]:
    """Of each document, the sum of the candidate that is best on the other half: even places, or odd ones."""
    half = np.arange(len(candidates)) % 2
    best = [candidates[half != side].sum(0).argmax() for side in (0, 1)]
    return candidates[np.arange(len(candidates)), np.asarray(best)[half]]
