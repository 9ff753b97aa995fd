"""Sentences about what a reader must know before believing the numbers of a report: what is missing, damaged, failed or few."""

from collections import Counter
from collections.abc import Iterator, Sequence

from attnjax.records.typed import Run, Sweep
from attnjax.records.values import printable, text
from attnjax.report import intervals
from attnjax.report.comparisons import text_of
from attnjax.report.metrics import declared
from attnjax.report.scores import FIT, RISE, outcome, windows_differ
from attnjax.report.tables import Summary, Task

WAITING = ("pending", "running", "preempted", "absent")
"""States of runs that may still end."""
MOST = 20
"""Names that a note lists."""


def notes(summary: Summary) -> list[str]:
    """Return all notes, what is missing first."""
    return [
        *incompleteness(summary.sweep),
        *_ends(summary),
        *_lost(summary),
        *_resumed(summary.sweep),
        *_tests(summary.tasks),
        *_few(summary),
    ]


def incompleteness(sweep: Sweep) -> Iterator[str]:
    """Yield why the report may lack runs."""
    waiting = Counter(
        run.state if run.state in WAITING else "damaged" for run in sweep.runs if outcome(run) == "unfinished"
    )
    if waiting:
        states = ", ".join(f"{count} {state}" for state, count in sorted(waiting.items()))
        done = sum(outcome(run) == "done" for run in sweep.runs)
        yield f"Not complete: {done} of {len(sweep.runs)} runs are done ({states}). The numbers are without the others."
    if unknown := [run for run in sweep.runs if run.state == "unknown" and outcome(run) == "done"]:
        yield f"Without a readable status, and counted as done by their results: {ids(unknown)}."
    if not isinstance(sweep.spec.get("runs"), list):
        yield "Perhaps not complete: sweep.json, which says how many runs were planned, cannot be read."


def _ends(summary: Summary) -> Iterator[str]:
    runs = summary.sweep.runs
    if failed := [run for run in runs if outcome(run) == "failed"]:
        yield f"Failed: {len(failed)} of {len(runs)} runs. They count with the worst score there is."
    if early := sorted(run.fitted_at for run in runs if run.fitted_at is not None):
        yield (
            f"Ended when they had fitted their task (train.until): {len(early)} of {len(runs)} runs, at steps {early[0]} to "
            f"{early[-1]}. They count with what they measured there."
        )
    grey = [f"{label} on {task.panel.label}" for task in summary.tasks for label in task.unfitted]
    if grey:
        yield (
            f"Not fitted, and so greyed, not ranked and not compared: {listed(sorted(grey))}. Fewer than half of the runs "
            f"answer {FIT:.0%} of the examples within the training range exactly, or, of Markov chains, come within "
            f"{RISE} nats of the best possible prediction."
        )


def _lost(summary: Summary) -> Iterator[str]:
    measured = {one.metric.key for task in summary.tasks for one in task.scores}
    if absent := [name for name in declared(text(summary.sweep.spec.get("protocol"))) if name not in measured]:
        yield f"The protocol names a metric that no run measured: {printable(', '.join(absent))}."
    known = {run.cell for run in summary.sweep.runs if run.config}
    if homeless := [run for run in summary.sweep.runs if run.cell not in known]:
        yield f"Without a readable config, and so of no known cell: {ids(homeless)}."
    curves = [one.curve for task in summary.tasks for one in task.scores]
    if partial := sorted({run for curve in curves for run in curve.index[curve.isna().any(axis=1)]}):
        yield f"Some lengths are missing in the records of {listed(partial)}: left out of the scores that need them."
    if skipped := len(summary.sweep.skipped):
        yield f"Not used: {skipped} files or lines that are damaged or do not belong to the sweep (see Skipped records)."


def _resumed(sweep: Sweep) -> Iterator[str]:
    told = [(run, names) for run in sweep.runs if isinstance(names := run.manifest.get("changed_on_resume"), list)]
    if mixed := [run for run, names in told if "data_sha256" in names]:
        yield f"Resumed on another text than they began with: {ids(mixed)}. Their numbers are of neither."
    changed = [[name for name in names if isinstance(name, str)] for _, names in told]
    if reasons := Counter(name for several in changed for name in several):
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(reasons.items()))
        yield (
            f"Resumed under other conditions: {sum(map(bool, changed))} of {len(sweep.runs)} runs ({counts}). Their "
            "numbers are those of an uninterrupted run up to rounding, not bit by bit."
        )


def _tests(tasks: Sequence[Task]) -> Iterator[str]:
    for task in tasks:
        groups: dict[str, list[Run]] = {}
        for run in task.panel.runs:
            if text_of(run):
                groups.setdefault(text_of(run), []).append(run)
        first, *others = sorted(groups.values(), key=len, reverse=True) or [[]]
        if others:
            yield (
                f"Different texts on {task.panel.label}, by their sha256: {len(first)} runs read one, and others another: "
                f"{ids([run for group in others for run in group])}. Their losses do not compare, and they are not paired."
            )
        if any(windows_differ(task.panel, one.metric, one.lengths) for one in task.scores):
            yield (
                f"Variants on {task.panel.label} were tested on different windows, or count different tokens of them: no "
                "n-gram model stands beside all of them, and losses do not compare."
            )


def _few(summary: Summary) -> Iterator[str]:
    ended = summary.answer.done + summary.answer.failed
    few = int(ended[ended > 0].min()) if (ended > 0).any() else 0
    if 0 < few < intervals.FEWEST:
        yield (
            f"Fewest runs of a cell that ended: {few}. With fewer than {intervals.FEWEST} a cell has the range of its "
            "runs and no interval, and hardly any difference can be shown."
        )


def ids(runs: Sequence[Run]) -> str:
    """Return the ids of some runs as text."""
    return listed([run.id for run in runs])


def listed(names: Sequence[str]) -> str:
    """Return names as text, at most 20 of them."""
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
