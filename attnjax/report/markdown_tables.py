"""The tables of a report as Markdown: one for each task, best encoding first."""

from collections.abc import Sequence

import numpy as np

from attnjax.report.formatting import NONE, decimal, interval, lengths_of, markdown, markdown_table, span
from attnjax.report.scores import FIT
from attnjax.report.summary import Counts, Row, Summary, Task, guess

LEGEND = (
    "Every cell is the interquartile mean over all runs that ended with its 95 % bootstrap interval (50,000 resamples of "
    "the runs). A failed run counts with the worst score there is. *Fitted*: how many of the runs that ended answer at "
    f"least {FIT:.0%} of the examples within the training range exactly. The *best single run* is what a maximum over "
    "seeds would print: it grows with the number of runs, and is no result.\n"
)


def table_md(summary: Summary) -> str:
    """The whole file: notes, a table per task, one over all tasks, and what the columns mean."""
    parts = [f"# {markdown(summary.sweep.name)}\n", *(f"> {markdown(note)}\n" for note in summary.notes)]
    parts += [task_table(task) for task in summary.tasks if task.metrics]
    if summary.overall:
        parts.append(overall_table(summary))
    return "\n".join([*parts, LEGEND])


def task_table(task: Task) -> str:
    """One task: a row per variant, a column per metric, and how the runs ended."""
    first = task.rows[task.metrics[0].key]
    best = task.metrics[0].best
    header = ["encoding", *(markdown(metric.label) for metric in task.metrics)]
    header += [f"within training: {markdown(task.metrics[0].label)}", "fitted", "failed", f"best single run ({best})"]
    rows = [cells(task, place) for place in ranking(first)]
    if task.chance:
        levels = [guess(task, task.rows[metric.key][0]) for metric in task.metrics]
        rows.append(["*chance*", *map(decimal, levels), *[""] * 4])
    where = f"Trained on {lengths_of(*task.panel.trained)}; columns are means over test lengths {span(first[0].scored.beyond)}"
    title = markdown(task.panel.label)
    return f"## {title}\n\n{where}, where they do not say otherwise.\n\n{markdown_table(header, rows)}"


def ranking(rows: Sequence[Row]) -> list[int]:
    """The places of the rows, best first; those without a score last."""
    sign = rows[0].scored.metric.sign
    values = [np.inf if row.past is None else -sign * row.past.value for row in rows]
    return sorted(range(len(rows)), key=lambda place: values[place])


def cells(task: Task, place: int) -> list[str]:
    """The row of one variant."""
    rows = [task.rows[metric.key][place] for metric in task.metrics]
    count = task.counts[place]
    label = markdown(rows[0].scored.variant.label)
    numbers = [interval(row.past) for row in rows]
    return [label, *numbers, interval(rows[0].within), *endings(count), decimal(rows[0].best)]


def endings(count: Counts) -> list[str]:
    """How the runs of a variant ended: fitted k of n, failed k of n, and how many have not ended."""
    fitted = NONE if count.fit is None else f"{count.fit} of {count.ended}"
    waiting = f", {count.unfinished} unfinished" if count.unfinished else ""
    return [fitted, f"{count.failed} of {count.ended}{waiting}"]


def overall_table(summary: Summary) -> str:
    """The encodings over all tasks that have them."""
    header = ["encoding", "metric", "tasks", "runs", "IQM past training", "mean"]
    rows = [
        [
            markdown(row.label),
            markdown(row.metric.label),
            str(row.tasks),
            str(len(row.runs)),
            interval(row.past),
            decimal(row.mean),
        ]
        for row in summary.overall
    ]
    return f"## All tasks\n\nStratified by task.\n\n{markdown_table(header, rows)}"
