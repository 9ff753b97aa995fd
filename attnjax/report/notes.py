"""What a reader must know before believing the numbers, as sentences."""

from collections.abc import Sequence

import numpy as np

from attnjax.report.groups import homeless
from attnjax.report.records import Run, Sweep
from attnjax.report.scores import Scored
from attnjax.report.summary import Task


def notes(sweep: Sweep, tasks: Sequence[Task]) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = []
    unfinished = sum(count.unfinished for one in tasks for count in one.counts)
    if unfinished:
        found.append(f"Not ended: {unfinished} of {len(sweep.runs)} runs. The numbers are without them.")
    failed = sum(count.failed for one in tasks for count in one.counts)
    if failed:
        found.append(f"Failed: {failed} of {len(sweep.runs)} runs. They count with the worst score there is.")
    lost = homeless(sweep.runs)
    if lost:
        found.append(f"Without a readable config, and so of no known cell: {ids(lost)}.")
    partial = {run.id for one in tasks for rows in one.rows.values() for r in rows for run in incomplete(r.scored)}
    if partial:
        runs = ", ".join(sorted(partial)[:20])
        found.append(f"Some lengths are missing in the records of {runs}: left out of the scores that need them.")
    few = min((count.ended for one in tasks for count in one.counts if count.ended), default=0)
    if few < 10:
        found.append(
            f"Fewest runs of a cell that ended: {few}. With fewer than 10 the intervals are too narrow (see Method)."
        )
    return found


def incomplete(scores: Scored) -> list[Run]:
    """The runs that lack a length which others of their task have."""
    return [run for run, curve in zip(scores.runs, scores.curve, strict=True) if np.isnan(curve).any()]


def ids(runs: Sequence[Run]) -> str:
    """The ids of some runs, in words."""
    return ", ".join(run.id for run in runs[:20]) + (" ..." if len(runs) > 20 else "")
