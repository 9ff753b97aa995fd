"""The sections of the page with the results; each is a function of the numbers."""

from collections.abc import Mapping, Sequence

import numpy as np

from attnjax.records.values import as_dict
from attnjax.report.formatting import decimal, interval, lengths_of, probability, span
from attnjax.report.groups import natural, shown
from attnjax.report.intervals import Estimate
from attnjax.report.markdown_tables import endings, ends_of, over_examples_header, paired_caption, ranking
from attnjax.report.markup import Content, Markup, element, table
from attnjax.report.metrics import Metric
from attnjax.report.scores import outcome
from attnjax.report.statistics import FEWEST_OF_STRATUM
from attnjax.report.style import order
from attnjax.report.summary import POSITION_METRICS, Row, Summary, Task, guess

LEVEL = 0.05
"""A corrected p at or below this is coloured."""


def section(name: str, title: str, *children: Content) -> Markup:
    """A section with a heading that can be linked to."""
    return element("section", element("h2", title), *children, id=name)


def folded(title: str, *children: Content) -> Markup:
    """A folded part of the page, which opens on a click."""
    return element("details", element("summary", title), *children)


def header(summary: Summary) -> Markup:
    """The first part of the page: what was run, and the notes."""
    sweep, tasks = summary.sweep, [task.panel.label for task in summary.tasks]
    cells = sum(len(task.panel.variants) for task in summary.tasks)
    ends = [outcome(run) for run in sweep.runs]
    counts = ", ".join(f"{ends.count(end)} {end}" for end in ("done", "failed", "unfinished") if end in ends)
    text = f"{len(sweep.runs)} runs ({counts}) of {cells} cells on {', '.join(tasks)}."
    notes = element("ul", [element("li", note) for note in summary.notes], class_="notes") if summary.notes else None
    return element("header", element("h1", sweep.name), element("p", text), notes)


def glance(summary: Summary) -> Markup:
    """Every encoding on every task under its first metric, in one table."""
    tasks = [task for task in summary.tasks if task.metrics]
    rows = [
        {
            row.scored.variant.label: (row, count.unfitted)
            for row, count in zip(task.rows[task.metrics[0].key], task.counts, strict=True)
        }
        for task in tasks
    ]
    variants = {v.label: order(v.encoding) for task in tasks for v in task.panel.variants}
    labels = sorted(variants, key=lambda label: (variants[label], natural(label)))
    header = [
        "encoding",
        *(f"{task.panel.label}: {task.metrics[0].short} {arrow(task.metrics[0])}" for task in tasks),
    ]
    body = [[label, *(row_cell(*known.get(label, (None, False))) for known in rows)] for label in labels]
    return section("glance", "Past training, at a glance", table(header, body, "all encodings on all tasks"))


def arrow(metric: Metric) -> str:
    """The arrow that says whether higher or lower is better."""
    return "↑" if metric.higher else "↓"


def navigation(summary: Summary, more: Sequence[tuple[str, str]]) -> Markup:
    """Links to the sections; `more` of them, by name and title, stand before the method."""
    links = [("glance", "At a glance")]
    links += [(f"task-{number}", task.panel.label) for number, task in enumerate(summary.tasks)]
    links += [("overall", "All tasks")] if summary.overall else []
    links += more
    links += [
        ("method", "Method"),
        ("protocol", "Protocol"),
        ("configs", "Configs"),
        ("manifests", "Machines and versions"),
    ]
    links += [("runs", "Runs"), ("skipped", "Skipped records")]
    items = [element("li", element("a", title, href=f"#{name}")) for name, title in links]
    return element("nav", element("ul", items), aria_label="Sections")


def task(number: int, task: Task, figures: Mapping[str, Markup], links: Mapping[str, str]) -> Markup:
    """One task: the first metric as a chart, the table, and the rest folded."""
    if not task.metrics:
        return section(
            f"task-{number}", task.panel.label, element("p", "No run has measured anything at a test length yet.")
        )
    first = task.rows[task.metrics[0].key][0].scored
    text = f"{described(task)} The score past training is the mean over test lengths {span(first.beyond)}."
    text += f" Cells: median, {ends_of(task)}."
    charts = [figures.get(f"t{number}-m{place}") for place in range(len(task.metrics))]
    parts: list[Content] = [element("p", text), element("h3", task.metrics[0].label), charts[0], table_of(task, links)]
    for chart, metric in zip(charts, task.metrics, strict=True):
        shown = chart if metric is not task.metrics[0] else None
        parts.append(folded(f"By length: {metric.label}", shown, by_length(task, metric)))
    positions = [figures.get(f"t{number}-positions-{name}") for name, _ in POSITION_METRICS]
    if any(positions):
        parts.append(folded("Loss and accuracy by position in the longest windows", positions))
    if task.differences:
        parts.append(folded("Paired differences", paired(task)))
    if task.improvement:
        parts.append(folded("Probability of improvement", improvement(task)))
    elif len(task.panel.variants) > 1:
        parts.append(
            element(
                "p",
                "Without a table of who beats whom: there are too many encodings, or too few that fitted.",
                class_="soft",
            )
        )
    learning = figures.get(f"t{number}-learning")
    parts.append(folded("Learning curves", learning) if learning else None)
    return section(f"task-{number}", task.panel.label, parts)


def described(task: Task) -> str:
    """What was trained, in a sentence."""
    fields = as_dict(task.panel.variants[0].config.get("task"))
    options = [f"{key}={shown(value)}" for key, value in sorted(as_dict(fields.get("options")).items())]
    return f"{task.panel.task}{' with ' if options else ''}{', '.join(options)}, trained on {lengths_of(*task.panel.trained)}."


def cell(estimate: Estimate | None, digits: int = 3, **attributes: str | None) -> Markup:
    """A table cell with a number and, below it, its interval."""
    number, _, ends = interval(estimate, digits).partition(" ")
    return element("td", number, element("small", ends) if ends else None, **attributes)


def row_cell(row: Row | None, unfitted: bool) -> Markup:
    """The score past training of one variant, with its records; grey where it did not fit the task."""
    if row is None:
        return element("td", "")
    return cell(row.past, class_="unfitted" if unfitted else None, title=row.scored.variant.source)


def table_of(task: Task, links: Mapping[str, str]) -> Markup:
    """The table of a task, best first: scores past training and within it, how the runs ended, and which they are."""
    first = task.metrics[0]
    header = [
        "encoding",
        *(metric.label for metric in task.metrics),
        f"within training: {first.short}",
        *over_examples_header(task),
        "length factor",
        "area over log length",
        "fitted",
        "failed",
    ]
    header += [f"best single run ({first.best}; no result)", "mean of fitted runs alone", "records"]
    places = ranking(task)
    rows = [table_row(task, place, links) for place in places]
    if task.chance:
        levels = [decimal(guess(task, task.rows[metric.key][0])) for metric in task.metrics]
        rows.append(["chance", *levels, *[""] * (len(header) - 1 - len(levels))])
    sources = [task.panel.variants[place].source for place in places]
    return table(header, rows, f"{task.panel.label}: scores past training", sources)


def table_row(task: Task, place: int, links: Mapping[str, str]) -> list[Content]:
    """The table row of one variant."""
    rows = [task.rows[metric.key][place] for metric in task.metrics]
    grey = "unfitted" if place in task.unfitted else None
    reach = task.reach[place] if task.reach else None
    cells = [cell(estimate, class_=grey) for estimate in (*(row.past for row in rows), rows[0].within)]
    cells += [cell(rows[0].over_examples, class_=grey)] if over_examples_header(task) else []
    cells += [cell(reach.factor, 2, class_=grey), cell(reach.area, class_=grey)] if reach else [cell(None)] * 2
    texts = [*endings(task.counts[place]), decimal(rows[0].best), decimal(rows[0].fitted)]
    cells += [element("td", text, class_=grey) for text in texts]
    runs = task.panel.variants[place].runs
    records = folded(f"{len(runs)} runs", [run_link(run.id, links) for run in runs])
    return [element("span", task.label(place), class_=grey), *cells, element("td", records)]


def run_link(run: str, links: Mapping[str, str]) -> Markup:
    """The id of a run, as a link to its folder where there is one."""
    return element("a", element("code", run), href=links[run]) if run in links else element("code", run)


def by_length(task: Task, metric: Metric) -> Markup:
    """Median and interval at every length, a heavy line where training ended; at most 24 lengths, the rest is in
    lengths.csv.
    """
    rows = task.rows[metric.key]
    lengths = rows[0].scored.lengths
    places = np.unique(np.linspace(0, len(lengths) - 1, min(24, len(lengths))).astype(int))
    shown = [lengths[place] for place in places]
    inside = [length for length in shown if length <= task.panel.trained[1]]
    cut = ["cut" if inside and length == inside[-1] else None for length in shown]
    header: list[Content] = ["encoding"]
    rest = "" if len(shown) == len(lengths) else f" {len(shown)} of {len(lengths)} lengths; all are in lengths.csv."
    body = [
        [task.label(place), *length_cells(row, shown, cut, place in task.unfitted)] for place, row in enumerate(rows)
    ]
    header += [element("span", str(length)) for length in shown]
    text = f"Median, {ends_of(task)}; the heavy line ends the training range.{rest}"
    return element(
        "div",
        element("p", text, class_="soft"),
        table(
            header, body, f"{task.panel.label}: {metric.label} by length", [row.scored.variant.source for row in rows]
        ),
    )


def length_cells(row: Row, lengths: list[int], cut: list[str | None], unfitted: bool) -> list[Markup]:
    """The table cells of one variant."""
    known, grey = row.curve.estimates, "unfitted" if unfitted else None
    marks = [" ".join(filter(None, (mark, grey))) or None for mark in cut]
    return [cell(known.get(length), class_=mark) for length, mark in zip(lengths, marks, strict=True)]


def improvement(task: Task) -> Markup:
    """The table of probabilities of improvement; those whose corrected p is at most 0.05 are marked."""
    labels = [variant.label for variant in task.panel.variants]
    compared = [place for place in range(len(labels)) if place not in task.unfitted]
    rows: list[list[Content]] = []
    for i in compared:
        cells: list[Content] = [labels[i]]
        for found in (task.improvement.get((i, j)) for j in compared):
            if found is None:
                cells.append(element("td", ""))
                continue
            mark = None if found.holm > LEVEL else "yes" if found.probability > 0.5 else "no"
            below = element("small", f"p {probability(found.p)}")
            cells.append(element("td", decimal(found.probability, 2), below, class_=mark))
        rows.append(cells)
    text = (
        f"The probability that a run of the row beats a run of the column past training, by {task.metrics[0].label}, and the "
        "exact p of the rank-sum test. Coloured where p, corrected for all pairs (Holm), is at most 0.05. Encodings that "
        "did not fit the task are left out."
    )
    sources = [task.panel.variants[place].source for place in compared]
    header = ["", *(labels[place] for place in compared)]
    return element("div", element("p", text), table(header, rows, "probability of improvement", sources))


def paired(task: Task) -> Markup:
    """The table of differences of pairs of runs; those whose corrected p is at most 0.05 are marked."""
    labels, sign = [variant.label for variant in task.panel.variants], task.metrics[0].sign
    rows: list[list[Content]] = []
    for item in task.differences:
        mark = None if item.holm > LEVEL else "yes" if sign * item.mean.value > 0 else "no"
        ends = [element("td", probability(p)) for p in (item.p, item.holm)]
        pair = f"{labels[item.first]} less {labels[item.second]}"
        rows.append([pair, element("td", str(item.mean.runs)), cell(item.mean, 4, class_=mark), *ends])
    text = (
        f"{paired_caption(task)} Coloured where that is at most 0.05. Encodings that did not fit the task are left out."
    )
    header = ["pair", "pairs of runs", "mean difference", "p", "p, Holm"]
    return element("div", element("p", text), table(header, rows, f"{task.panel.label}: paired differences"))


def overall(summary: Summary) -> Markup | None:
    """Accuracies over all tasks."""
    if not summary.overall:
        return None
    rows = [
        [
            row.label,
            row.metric.label,
            str(row.tasks),
            str(row.unfitted),
            str(len(row.runs)),
            cell(row.past),
            decimal(row.mean),
        ]
        for row in summary.overall
    ]
    header = ["encoding", "metric", "tasks", "not fitted on", "runs", "IQM past training", "mean"]
    text = (
        "Scores past training over all tasks that have the metric; resamples draw runs inside every task, and there is an "
        f"interval only where each task has {FEWEST_OF_STRATUM} runs or more."
    )
    sources = [f"made from the records of {' '.join(row.runs)}" for row in summary.overall]
    return section("overall", "All tasks", element("p", text), table(header, rows, "all tasks", sources))
