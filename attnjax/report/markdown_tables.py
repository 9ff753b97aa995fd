"""The tables of a report as Markdown: one for each task, best encoding first and those that did not fit it last."""

import numpy as np

from attnjax.records.values import DECIMALS
from attnjax.report import intervals
from attnjax.report.comparisons import Difference
from attnjax.report.examples import documents
from attnjax.report.formatting import NONE, decimal, interval, lengths_of, markdown, markdown_table, probability, span
from attnjax.report.reach import RISE, SHARE
from attnjax.report.scores import FIT
from attnjax.report.significance import MOST
from attnjax.report.statistics import FEWEST_OF_STRATUM
from attnjax.report.summary import Counts, Summary, Task, guess

LEGEND = (
    "A failed run counts with the worst score there is. *Fitted*: how many of the runs that ended answer at "
    f"least {FIT:.0%} of the examples within the training range exactly, or, of Markov chains, come within {RISE} nats of the "
    "best prediction at the longest training length; what fewer than half of them do past it says nothing, so such rows stand "
    "last, in italics, and are not compared. *Length factor*: the largest tested multiple of the longest training length up "
    f"to which a run holds, that is, has a loss at most {RISE} nats above that at the training length, or exact match of at "
    f"least {SHARE}. *Area*: the mean of the metric over log2(length) from there to the longest tested. The *best single run* "
    "is what a maximum over seeds would print: it grows with the number of runs, and is no result.\n\n"
    "[table.csv](table.csv) names the runs of each row, [lengths.csv](lengths.csv) has every point of the figures, and "
    "[runs.csv](runs.csv) each run by its id, which is the name of its folder in the records.\n"
)

ON_THE_PAGE = (("Method", "method"), ("Runs", "runs"), ("Skipped records", "skipped"))
"""Sections that notes name and only report.html has: titles and anchors."""


def table_md(summary: Summary) -> str:
    """The whole file: notes, a table per task, one over all tasks, and what the columns mean."""
    parts = [f"# {markdown(summary.sweep.name)}\n", *(f"> {note_md(note)}\n" for note in summary.notes)]
    for task in summary.tasks:
        parts += [task_table(task), paired_table(task)] if task.metrics else []
    if summary.overall:
        parts.append(overall_table(summary))
    return "\n".join([*parts, LEGEND])


def note_md(note: str) -> str:
    """A note, whose sections of the page are links to them.

    Example:
      >>> note_md("Few runs (see Method).")
      'Few runs (see [Method](report.html#method)).'
    """
    text = markdown(note)
    for title, anchor in ON_THE_PAGE:
        text = text.replace(f"(see {title})", f"(see [{title}](report.html#{anchor}))")
    return text


def task_table(task: Task) -> str:
    """One task: a row per variant, a column per metric, and how the runs ended."""
    first = task.rows[task.metrics[0].key]
    best = task.metrics[0].best
    header = ["encoding", *(markdown(metric.label) for metric in task.metrics)]
    header += [f"within training: {markdown(task.metrics[0].label)}", *over_examples_header(task)]
    header += ["length factor", "area over log length"]
    header += ["fitted", "failed", f"best single run ({best})"]
    rows = [cells(task, place) for place in ranking(task)]
    if task.chance:
        levels = [guess(task, task.rows[metric.key][0]) for metric in task.metrics]
        rows.append(["*chance*", *map(decimal, levels), *[""] * (len(header) - 1 - len(levels))])
    where = f"Trained on {lengths_of(*task.panel.trained)}; columns are means over test lengths {span(first[0].scored.beyond)}"
    title = markdown(task.panel.label)
    cell = f"Cells: median, {ends_of(task)}."
    return f"## {title}\n\n{where}, where they do not say otherwise. {cell}\n\n{markdown_table(header, rows)}"


def over_examples_header(task: Task) -> list[str]:
    """The column of the mean of the first metric over runs and examples, or documents, if some variant has that."""
    known = [row.scored for row in task.rows[task.metrics[0].key] if row.over_examples is not None]
    cut = any(documents(scored.runs, scored.beyond, 0) is not None for scored in known)
    return [f"mean, 95 % interval over runs and {'documents' if cut else 'examples'}"] if known else []


def ends_of(task: Task) -> str:
    """What the ends of the estimates of a task are, from how many runs its variants have."""
    return intervals.caption([len(row.scored.runs) for row in task.rows[task.metrics[0].key]])


def ranking(task: Task) -> list[int]:
    """The places of the variants: best first, those without a score last, and after them those that did not fit the task."""
    rows = task.rows[task.metrics[0].key]
    sign = rows[0].scored.metric.sign
    values = [np.inf if row.past is None else -sign * round(row.past.value, DECIMALS) for row in rows]
    worth = lambda place: 0.0 if place in task.unfitted else values[place]
    return sorted(range(len(rows)), key=lambda place: (place in task.unfitted, worth(place), place))


def cells(task: Task, place: int) -> list[str]:
    """The row of one variant."""
    rows = [task.rows[metric.key][place] for metric in task.metrics]
    count = task.counts[place]
    label = markdown(task.label(place))
    reach = task.reach[place] if task.reach else None
    reached = [interval(reach.factor, 2), interval(reach.area)] if reach else [NONE, NONE]
    numbers = [interval(row.past) for row in rows]
    over = [interval(rows[0].over_examples)] if over_examples_header(task) else []
    found = [label, *numbers, interval(rows[0].within), *over, *reached, *endings(count), decimal(rows[0].best)]
    return [f"*{cell}*" for cell in found] if count.unfitted else found


def paired_table(task: Task) -> str:
    """The differences of pairs of runs of any two variants."""
    if not task.differences:
        return ""
    labels = [markdown(variant.label) for variant in task.panel.variants]
    rows = [
        [labels[item.first], labels[item.second], str(item.mean.runs), interval(item.mean), *map(probability, p)]
        for item in task.differences
        for p in [(item.p, item.holm)]
    ]
    header = ["encoding", "less", "pairs", "mean difference", "p", "p, Holm"]
    return f"{markdown(paired_caption(task))}\n\n{markdown_table(header, rows)}"


def paired_caption(task: Task) -> str:
    """What the table of paired differences shows, from the data."""
    kept = [item for item in task.differences if np.isfinite(item.mean.value)]
    kinds = dict.fromkeys(map(interval_over, kept))
    over = "".join(f", {words}" for words in [" or ".join(filter(None, kinds))] if words)
    over += ", else over pairs alone" if over and "" in kinds else ""
    ends = f", {intervals.caption([item.mean.runs for item in kept]).replace('runs', 'pairs')}" if kept else ""
    most = max((item.mean.runs for item in kept), default=0)
    flips = "all" if most <= MOST else f"all, or beyond {MOST} pairs of {2**MOST:,} random,"
    lost = len(task.differences) - len(kept)
    failed = f" {lost} pair{'s' * (lost > 1)} with failed runs have no difference, and count as p = 1." if lost else ""
    return (
        f"Differences past training of pairs of runs that share their seeds, by {task.metrics[0].label}: mean{ends}"
        f"{over}; p of {flips} sign flips, and Holm's over all pairs of encodings.{failed}"
    )


def interval_over(item: Difference) -> str:
    """What the interval of a difference is over beside pairs."""
    if not item.examples:
        return ""
    return f"over pairs and {item.examples} examples" + (f" of {item.documents} documents" if item.documents else "")


def endings(count: Counts) -> list[str]:
    """How the runs of a variant ended: fitted k of n, failed k of n, and how many have not ended."""
    fitted = NONE if count.fit is None else f"{count.fit} of {count.ended}"
    waiting = f", {count.unfinished} unfinished" if count.unfinished else ""
    return [fitted, f"{count.failed} of {count.ended}{waiting}"]


def overall_table(summary: Summary) -> str:
    """The encodings over all tasks that have them."""
    header = ["encoding", "metric", "tasks", "not fitted on", "runs", "IQM past training", "mean"]
    rows = [
        [
            markdown(row.label),
            markdown(row.metric.label),
            str(row.tasks),
            str(row.unfitted),
            str(len(row.runs)),
            interval(row.past),
            decimal(row.mean),
        ]
        for row in summary.overall
    ]
    text = f"Stratified by task; intervals only where each task has {FEWEST_OF_STRATUM} runs or more."
    return f"## All tasks\n\n{text}\n\n{markdown_table(header, rows)}"
