"""Compares two variants of a task past training, by the differences of runs that share their seeds.

Runs of two variants with the same seed, data seed and text saw the same batches, and where they were evaluated alike the same
test examples, so their difference is free of what they share. Only variants that fitted the task are compared: where one has
not learned the training lengths, a difference past them says nothing about positions. Holm's correction is over all pairs of
variants of the task.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from jaxtyping import Float

from attnjax.records.examples import DOCUMENT
from attnjax.records.typed import SPLITS, Run
from attnjax.records.values import DECIMALS, as_dict
from attnjax.report.groups import Variant
from attnjax.report.intervals import NONE, Estimate, of_mean, of_runs_and_examples
from attnjax.report.scores import Scores, outcome
from attnjax.report.significance import holm, sign_flip

MOST_COMPARED = 16
"""Variants of a task beyond which nobody could read a table of all pairs, so none is made."""


@dataclass(frozen=True)
class Difference:
    """The mean of the scores past training of one variant less those of another.

    `mean` has a t interval over pairs of runs, or, where scores of `examples` were stored, one over pairs and examples, or over
    pairs and the `documents` that these were cut from. `p` is that of all sign flips of the pairs; 1, without an interval,
    where a run of a pair has failed. `pairs` are (run, other run, difference).
    """

    first: Variant
    second: Variant
    mean: Estimate
    pairs: tuple[tuple[str, str, float], ...]
    p: float
    holm: float = 1.0
    examples: int = 0
    documents: int = 0


def differences(scored: Scores, fitted: Sequence[Variant]) -> list[Difference]:
    """Return the differences of all pairs of these variants; none of more than 16 variants."""
    if len(fitted) > MOST_COMPARED:
        return []
    found = [difference(scored, one, other) for one, other in combinations(fitted, 2)]
    known = [item for item in found if item is not None]
    adjusted = holm([item.p for item in known])
    return [replace(item, holm=p) for item, p in zip(known, adjusted, strict=True)]


def difference(scored: Scores, first: Variant, second: Variant) -> Difference | None:
    """Return the difference of two variants; None without two pairs of runs with scores that share their seeds and text."""
    past = scored.runs.past.dropna()
    ours, theirs = ({seeds_of(run): run for run in one.runs if run.id in past.index} for one in (first, second))
    known = sorted(seeds for seeds in ours.keys() & theirs.keys() if min(seeds) >= 0)
    shared = [(ours[seeds], theirs[seeds]) for seeds in known if same_text(ours[seeds], theirs[seeds])]
    if len(shared) < 2:
        return None
    with np.errstate(invalid="ignore"):  # inf - inf, of two failed runs
        per_run = np.array([past[a.id] - past[b.id] for a, b in shared])
    pairs = tuple((a.id, b.id, float(x)) for (a, b), x in zip(shared, per_run, strict=True))
    if not np.isfinite(per_run).all():  # it stays among the tests that Holm corrects for
        return Difference(first, second, Estimate(np.nan, np.nan, np.nan, NONE, len(pairs)), pairs, 1.0)
    p = sign_flip(np.round(per_run, DECIMALS))
    table = example_differences(scored, shared)
    if table is not None:
        places = documents([run for pair in shared for run in pair], scored.beyond, table.shape[1])
        crossed = of_runs_and_examples(table, places)
        if crossed is not None:
            count = 0 if places is None else len(np.unique(places))
            return Difference(first, second, crossed, pairs, p, examples=table.shape[1], documents=count)
    return Difference(first, second, of_mean(per_run), pairs, p)


def seeds_of(run: Run) -> tuple[int, int]:
    """Return the two seeds of a run, -1 for one that is not known."""
    found = [run.config.get(name) for name in ("seed", "data_seed")]
    return (found[0] if isinstance(found[0], int) else -1, found[1] if isinstance(found[1], int) else -1)


def text_of(run: Run) -> str:
    """Return the digests of the text that a run was trained and tested on, as one word; "" where its manifest has none."""
    return json.dumps(run.manifest.get("data_sha256"), sort_keys=True) if run.manifest.get("data_sha256") else ""


def same_text(one: Run, other: Run) -> bool:
    """Return whether two runs were trained on the same text, or one failed before its manifest named one."""
    unknown = any(not text_of(run) and outcome(run) == "failed" for run in (one, other))
    return unknown or text_of(one) == text_of(other)


def example_differences(scored: Scores, shared: Sequence[tuple[Run, Run]]) -> Float[np.ndarray, "R W"] | None:
    """Return the differences of every pair of runs at every example.

    None where a run has no scores of examples, and where runs were evaluated in other batches, which draw other examples.
    """
    drawn = {
        tuple(repr(as_dict(run.config.get("evaluate")).get(name)) for name in ("count", "batch"))
        for pair in shared
        for run in pair
    }
    tables = [table([pair[side] for pair in shared], scored.beyond, scored.metric.key) for side in (0, 1)]
    if len(drawn) > 1 or tables[0] is None or tables[1] is None or tables[0].shape != tables[1].shape:
        return None
    return tables[0] - tables[1]


def stored(run: Run, length: int, metric: str) -> Float[np.ndarray, " W"] | None:
    """Return the scores of each example at a length, of the test examples where there are some.

    None for a run that is not done, and where it stored none, or at another evaluation than that with which it counts.
    """
    if run.examples is None or outcome(run) != "done" or run.examples.step != run.final[0].step:
        return None
    names = ((split, length, metric) for split in reversed(SPLITS) if split != "validation")
    return next((run.examples.scores[name] for name in names if name in run.examples.scores), None)


def table(runs: Sequence[Run], lengths: Sequence[int], metric: str) -> Float[np.ndarray, "R W"] | None:
    """Return the mean over these lengths of each example of each run; None where one is missing, or their numbers differ."""
    found = [[stored(run, length, metric) for length in lengths] for run in runs]
    sizes = {-1 if values is None else len(values) for row in found for values in row}
    if len(sizes) != 1 or sizes == {-1}:
        return None
    return np.mean(np.array(found, np.float64), axis=1)


def documents(runs: Sequence[Run], lengths: Sequence[int], examples: int) -> Float[np.ndarray, " W"] | None:
    """Return the document that each of so many examples was cut from; None where the task draws them independently.

    Where some run did not store them, or the runs were tested on different texts, all may be of one document, and are. Windows
    of a text end at the same bytes at every length, so that those of the longest serve all.
    """
    found = [stored(run, max(lengths), DOCUMENT) for run in runs] if lengths else []
    if all(one is None for one in found) and not any(
        as_dict(run.config.get("task")).get("name") == "text" for run in runs
    ):
        return None
    first = found[0] if found else None
    same = first is not None and all(one is not None and np.array_equal(first, one) for one in found)
    return first if same else np.zeros(examples)
