"""Comparisons of two variants of a task past training: paired differences, and the probability of improvement.

Runs of two variants with the same seed, data seed and text saw the same batches, and where they were evaluated alike the same
test examples, so their difference is free of what they share. Only variants that fitted the task are compared: where one has
not learned the training lengths, a difference past them says nothing about positions. p is exact up to 16 pairs, and from
65,536 random sign flips beyond them; Holm's correction is over all pairs of encodings of the task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from jaxtyping import Float

from attnjax.records.values import DECIMALS, as_dict
from attnjax.report import intervals
from attnjax.report.examples import documents, past_examples, text_of
from attnjax.report.intervals import Estimate
from attnjax.report.records import Run
from attnjax.report.scores import Scored, outcome
from attnjax.report.significance import holm, rank_sum, sign_flip
from attnjax.report.statistics import probability_of_improvement

MOST_COMPARED = 16
"""Variants of a task beyond which nobody could read a table of all pairs, so none is made."""


@dataclass(frozen=True)
class Difference:
    """The mean of the scores past training of variant `first` less those of `second`, over pairs of runs.

    `mean` has a t interval over pairs, or, where scores of `examples` were stored, one over pairs and examples, or over pairs
    and the `documents` that these were cut from. `p` is that of all sign flips of the pairs; 1, without an interval, where a
    run of a pair has failed.
    """

    first: int
    second: int
    mean: Estimate
    examples: int
    documents: int
    p: float
    holm: float = 1.0


@dataclass(frozen=True)
class Improvement:
    """The probability that a run of one variant beats one of another past training; `p` is that of the rank-sum test."""

    probability: float
    p: float
    holm: float = 1.0


def pairs_of(first: Scored, second: Scored) -> list[tuple[int, int]]:
    """The places of the runs of two variants that share seed and data seed, and the bytes of a text, in order of these.

    A failed run whose manifest does not name its text, since it ended before it was written, is paired by its seeds alone.
    """
    found = [
        (*seeds_of(one), place, other_place)
        for place, one in enumerate(first.runs)
        for other_place, other in enumerate(second.runs)
        if min(seeds_of(one)) >= 0 and seeds_of(one) == seeds_of(other) and of_one_text(one, other)
    ]
    return [pair[2:] for pair in sorted(found)]


def of_one_text(one: Run, other: Run) -> bool:
    """Whether two runs were trained on the same text, or one failed before its manifest named one."""
    unknown = any(not text_of(run) and outcome(run) == "failed" for run in (one, other))
    return unknown or text_of(one) == text_of(other)


def seeds_of(run: Run) -> tuple[int, int]:
    """The two seeds of a run, -1 for one that is not known."""
    found = [run.config.get(name) for name in ("seed", "data_seed")]
    return (found[0] if isinstance(found[0], int) else -1, found[1] if isinstance(found[1], int) else -1)


def differences(rows: Sequence[Scored], compared: Sequence[int]) -> tuple[Difference, ...]:
    """The paired differences of all these variants that share two pairs of runs or more."""
    if len(compared) > MOST_COMPARED:
        return ()
    found = [difference(i, j, rows[i], rows[j]) for i, j in combinations(compared, 2)]
    known = [item for item in found if item is not None]
    adjusted = holm([item.p for item in known])
    return tuple(replace(item, holm=p) for item, p in zip(known, adjusted, strict=True))


def difference(i: int, j: int, first: Scored, second: Scored) -> Difference | None:
    """The paired difference of two variants, None where there is none."""
    shared = [(a, b) for a, b in pairs_of(first, second) if not np.isnan(first.past[a] + second.past[b])]
    with np.errstate(invalid="ignore"):  # inf - inf, of two failed runs
        per_run = np.array([first.past[a] - second.past[b] for a, b in shared])
    test = lambda: sign_flip(np.round(per_run, DECIMALS))
    if len(per_run) < 2:
        return None
    if not np.isfinite(per_run).all():  # it stays among the tests that Holm corrects for
        return Difference(i, j, Estimate(np.nan, np.nan, np.nan, intervals.NONE, len(per_run)), 0, 0, 1.0)
    table = example_differences(first, second, shared)
    if table is None:
        return Difference(i, j, intervals.of_mean(per_run), 0, 0, test())
    places = documents([run for scored in (first, second) for run in scored.runs], first.beyond, table.shape[1])
    crossed = intervals.of_runs_and_examples(table, places)
    if crossed is None:
        return Difference(i, j, intervals.of_mean(per_run), 0, 0, test())
    count = 0 if places is None else len(np.unique(places))
    return Difference(i, j, crossed, table.shape[1], count, test())


def example_differences(
    first: Scored, second: Scored, shared: Sequence[tuple[int, int]]
) -> Float[np.ndarray, "R W"] | None:
    """The differences of every pair of runs at every example.

    None where a run has no scores of examples, and where runs were evaluated in other batches, which draw other examples.
    """
    if len({drawn(run) for scored in (first, second) for run in scored.runs}) > 1:
        return None
    tables = past_examples(first), past_examples(second)
    if tables[0] is None or tables[1] is None or tables[0].shape[1] != tables[1].shape[1]:
        return None
    return np.array([tables[0][a] - tables[1][b] for a, b in shared])


def drawn(run: Run) -> tuple[str, ...]:
    """What decides, beside the seeds, which test examples a run has."""
    settings = as_dict(run.config.get("evaluate"))
    return tuple(repr(settings.get(name)) for name in ("count", "batch"))


def improvements(rows: Sequence[Scored], compared: Sequence[int]) -> Mapping[tuple[int, int], Improvement]:
    """P(a run of i beats a run of j) for every ordered pair of these variants that have scores, of the same texts."""
    if len(compared) > MOST_COMPARED:
        return {}
    known = {i: np.round(rows[i].past[~np.isnan(rows[i].past)], DECIMALS) for i in compared}
    signed = {i: rows[i].metric.sign * past for i, past in known.items()}
    texts = {i: {text_of(run) for run in rows[i].runs if text_of(run)} for i in compared}
    alike = lambda i, j: not texts[i] or not texts[j] or texts[i] == texts[j]
    pairs = [(i, j) for i, j in combinations(compared, 2) if len(signed[i]) and len(signed[j]) and alike(i, j)]
    tests = [rank_sum(signed[i], signed[j]) for i, j in pairs]
    found = {}
    for (i, j), p, adjusted in zip(pairs, tests, holm(tests), strict=True):
        chance = probability_of_improvement([signed[i]], [signed[j]])
        found[i, j], found[j, i] = Improvement(chance, p, adjusted), Improvement(1 - chance, p, adjusted)
    return found
