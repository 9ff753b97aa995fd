"""Scores of single examples: tables of runs and examples, and means at each position, from what the runs stored.

All runs of a task measured the same examples in the same order, so that row r and column w of a table are run r and
example w, and two variants can be compared example by example.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnjax.report.intervals import Estimate, of_runs_and_examples
from attnjax.report.records import SPLITS, Run
from attnjax.report.scores import Curve, Scored, curve, final

POINTS = 128
"""Most points of a curve over positions; neighbouring positions are averaged where there are more."""


def stored(run: Run, length: int, metric: str, *, positions: bool = False) -> Float[np.ndarray, " W"] | None:
    """The scores of each example at a length, or of each position, of the test examples where there are some.

    None where a run stored none, or at another evaluation than that with which it counts.
    """
    counted = final(run)
    if run.examples is None or not counted or run.examples.step != counted[0].step:
        return None
    known = run.examples.by_position if positions else run.examples.scores
    names = ((split, length, metric) for split in reversed(SPLITS) if split != "validation")
    return next((known[name] for name in names if name in known), None)


def table(runs: Sequence[Run], lengths: Sequence[int], metric: str) -> Float[np.ndarray, "R W"] | None:
    """The mean over these lengths of each example of each run; None where one is missing, or their numbers differ."""
    found = [[stored(run, length, metric) for length in lengths] for run in runs]
    sizes = {-1 if values is None else len(values) for row in found for values in row}
    if len(sizes) != 1 or sizes == {-1}:
        return None
    return np.mean(np.array(found, np.float64), axis=1)


def past_examples(scored: Scored) -> Float[np.ndarray, "R W"] | None:
    """The score past training of each run on each example."""
    return table(scored.runs, scored.beyond, scored.metric.key)


def over_examples(scored: Scored, lengths: Sequence[int]) -> Estimate | None:
    """The mean over runs and examples at these lengths, with an interval over both; None where there is none."""
    scores = table(scored.runs, lengths, scored.metric.key)
    return None if scores is None else of_runs_and_examples(scores)


def by_position(scored: Scored, length: int, name: str) -> Curve | None:
    """The "loss" or "accuracy" at each target position of examples of one length, 1 the first; None where no run stored it."""
    known = [values for run in scored.runs if (values := stored(run, length, name, positions=True)) is not None]
    if not known or len({len(values) for values in known}) != 1:
        return None
    scores, places = np.array(known, np.float64), np.arange(1, len(known[0]) + 1, dtype=float)
    bins = np.array_split(np.arange(len(places)), min(POINTS, len(places)))
    middle = np.array([places[part].mean() for part in bins])
    return curve(scored.variant, middle, np.array([[row[part].mean() for part in bins] for row in scores]))
