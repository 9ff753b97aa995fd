"""What a reader must know before believing the numbers, as sentences."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from attnjax.report.groups import homeless
from attnjax.report.records import Run, Sweep
from attnjax.report.scores import Scored, outcome
from attnjax.report.summary import Task

WAITING = ("pending", "running", "preempted", "absent")
"""States of runs that may still end."""


def notes(sweep: Sweep, tasks: Sequence[Task]) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = incompleteness(sweep)
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


def incompleteness(sweep: Sweep) -> list[str]:
    """Why this is not yet, or cannot be known to be, a report of all runs; nothing where it is one."""
    found, runs = [], sweep.runs
    left = [run for run in runs if outcome(run) == "unfinished"]
    waiting = Counter(run.state for run in left if run.state in WAITING)
    if left:
        done = sum(outcome(run) == "done" for run in runs)
        text = f"Not complete: {done} of {len(runs)} runs are done"
        if waiting:
            states = ", ".join(f"{count} {state}" for state, count in sorted(waiting.items()))
            are, were = ("is", "was") if waiting.total() == 1 else ("are", "were")
            text += f"; {waiting.total()} {are} still in training or {were} not started ({states})"
        if lost := len(left) - waiting.total():
            text += f"; the records of {lost} more are damaged or missing (see Skipped records)"
        found.append(f"{text}. The numbers are without them.")
    if unknown := [run for run in runs if run.state == "unknown" and outcome(run) == "done"]:
        found.append(f"Without a readable status, and counted as done by their results: {ids(unknown)}.")
    if not isinstance(sweep.spec.get("runs"), list):
        found.append("Perhaps not complete: sweep.json, which says how many runs were planned, cannot be read.")
    return found


def incomplete(scores: Scored) -> list[Run]:
    """The runs that lack a length which others of their task have."""
    return [run for run, curve in zip(scores.runs, scores.curve, strict=True) if np.isnan(curve).any()]


def ids(runs: Sequence[Run]) -> str:
    """The ids of some runs, in words."""
    return ", ".join(run.id for run in runs[:20]) + (" ..." if len(runs) > 20 else "")
