"""Scores of single examples: tables of runs and examples, and means at each position, from what the runs stored.

All runs of a task measured the same examples in the same order, so that row r and column w of a table are run r and
example w, and two variants can be compared example by example.
"""

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from attnjax.records.examples import DOCUMENT
from attnjax.records.values import as_dict
from attnjax.report.intervals import Estimate, of_runs_and_examples
from attnjax.report.records import SPLITS, Run
from attnjax.report.scores import Curve, Scored, curve, outcome

POINTS = 100
"""Most bins of a curve over positions."""


def stored(run: Run, length: int, metric: str, *, positions: bool = False) -> Float[np.ndarray, " W"] | None:
    """The scores of each example at a length, or of each position, of the test examples where there are some.

    None for a run that is not done, and where it stored none, or at another evaluation than that with which it counts.
    """
    if run.examples is None or outcome(run) != "done" or run.examples.step != run.final[0].step:
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


def documents(runs: Sequence[Run], lengths: Sequence[int], examples: int) -> Float[np.ndarray, " W"] | None:
    """The document that each of so many examples was cut from; None where the task draws them independently.

    Where some run did not store them, or the runs were tested on different texts, all may be of one document, and are. Windows
    of a text end at the same bytes at every length, so that those of the longest serve all.
    """
    found = [stored(run, max(lengths), DOCUMENT) for run in runs] if lengths else []
    if all(one is None for one in found) and not any(cut_from_text(run) for run in runs):
        return None
    first = found[0] if found else None
    same = first is not None and all(one is not None and np.array_equal(first, one) for one in found)
    return first if same else np.zeros(examples)


def text_of(run: Run) -> str:
    """The digests of the text that a run was trained and tested on, as one word; "" where its manifest has none."""
    return json.dumps(run.manifest.get("data_sha256"), sort_keys=True) if run.manifest.get("data_sha256") else ""


def cut_from_text(run: Run) -> bool:
    """Whether the examples of a run are windows of files."""
    return as_dict(run.config.get("task")).get("name") == "text"


def past_examples(scored: Scored) -> Float[np.ndarray, "R W"] | None:
    """The score past training of each run on each example."""
    return table(scored.runs, scored.beyond, scored.metric.key)


def over_examples(scored: Scored, lengths: Sequence[int]) -> Estimate | None:
    """The mean over runs and examples, or documents, at these lengths, with an interval over both; None where there is none."""
    scores = table(scored.runs, lengths, scored.metric.key)
    return None if scores is None else of_runs_and_examples(scores, documents(scored.runs, lengths, scores.shape[1]))


def by_position(scored: Scored, length: int, name: str, longest: int) -> Curve | None:
    """The "loss" or "accuracy" at each target position of examples of one length, 1 the first; None where no run stored it.

    A failed run has the worst there is at every position, as everywhere in a report.
    Positions are averaged in bins whose width grows with the position; none holds positions on both sides of `longest`, the
    longest training length.
    """
    known = [values for run in scored.runs if (values := stored(run, length, name, positions=True)) is not None]
    if not known or len({len(values) for values in known}) != 1:
        return None
    worst = {"loss": np.inf, "accuracy": 0.0}[name]
    known += [np.full(len(known[0]), worst) for run in scored.runs if outcome(run) == "failed"]
    scores, edges = np.array(known, np.float64), bins(len(known[0]), longest)
    parts = [slice(start - 1, end - 1) for start, end in pairwise(edges)]
    middle = np.array([(start + end - 1) / 2 for start, end in pairwise(edges)])
    return curve(scored.variant, middle, np.stack([scores[:, part].mean(axis=1) for part in parts], axis=1))


def bins(last: int, longest: int) -> list[int]:
    """The first position of each bin of the positions 1 .. last, and last + 1.

    Example:
      >>> bins(128, 64)[:6], [edge for edge in bins(128, 64) if 58 < edge < 72], bins(128, 64)[-1]
      ([1, 2, 3, 4, 5, 6], [59, 62, 65, 68], 129)
    """
    growing = np.unique(np.rint(np.geomspace(1, last + 1, POINTS)).astype(int)).tolist()
    return sorted({*growing, longest + 1} if 0 < longest < last else growing)
