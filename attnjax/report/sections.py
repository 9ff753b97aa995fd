"""The sections of the page with the results; each is a function of the numbers."""

from collections.abc import Mapping, Sequence

import numpy as np

from attnjax.records.values import as_dict
from attnjax.report.formatting import decimal, interval, lengths_of, span
from attnjax.report.groups import natural, shown
from attnjax.report.markdown_tables import endings, ranking
from attnjax.report.markup import Content, Markup, element, table
from attnjax.report.metrics import Metric
from attnjax.report.scores import outcome
from attnjax.report.statistics import Estimate
from attnjax.report.style import order
from attnjax.report.summary import Row, Summary, Task, guess


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
    rows = [{row.scored.variant.label: row for row in task.rows[task.metrics[0].key]} for task in tasks]
    variants = {v.label: order(v.encoding) for task in tasks for v in task.panel.variants}
    labels = sorted(variants, key=lambda label: (variants[label], natural(label)))
    header = [
        "encoding",
        *(f"{task.panel.label}: {task.metrics[0].short} {arrow(task.metrics[0])}" for task in tasks),
    ]
    body = [[label, *(row_cell(known.get(label)) for known in rows)] for label in labels]
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
    charts = [figures.get(f"t{number}-m{place}") for place in range(len(task.metrics))]
    parts: list[Content] = [element("p", text), element("h3", task.metrics[0].label), charts[0], table_of(task, links)]
    for chart, metric in zip(charts, task.metrics, strict=True):
        shown = chart if metric is not task.metrics[0] else None
        parts.append(folded(f"By length: {metric.label}", shown, by_length(task, metric)))
    if task.improvement:
        parts.append(folded("Probability of improvement", improvement(task)))
    elif len(task.panel.variants) > 1:
        parts.append(
            element(
                "p", "Without a table of who beats whom: there are too many variants, or too few scores.", class_="soft"
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


def row_cell(row: Row | None) -> Markup:
    """The score past training of one variant, with its records."""
    return element("td", "") if row is None else cell(row.past, title=row.scored.variant.source)


def table_of(task: Task, links: Mapping[str, str]) -> Markup:
    """The table of a task, best first: scores past training and within it, how the runs ended, and which they are."""
    first = task.metrics[0]
    header = [
        "encoding",
        *(metric.label for metric in task.metrics),
        f"within training: {first.short}",
        "fitted",
        "failed",
    ]
    header += [f"best single run ({first.best}; no result)", "mean of fitted runs alone", "records"]
    places = ranking(task.rows[first.key])
    rows = [table_row(task, place, links) for place in places]
    if task.chance:
        levels = [decimal(guess(task, task.rows[metric.key][0])) for metric in task.metrics]
        rows.append(["chance", *levels, *[""] * 6])
    sources = [task.panel.variants[place].source for place in places]
    return table(header, rows, f"{task.panel.label}: scores past training", sources)


def table_row(task: Task, place: int, links: Mapping[str, str]) -> list[Content]:
    """The table row of one variant."""
    rows = [task.rows[metric.key][place] for metric in task.metrics]
    cells = [cell(estimate) for estimate in (*(row.past for row in rows), rows[0].within)]
    texts = [*endings(task.counts[place]), decimal(rows[0].best), decimal(rows[0].fitted)]
    cells += [element("td", text) for text in texts]
    runs = task.panel.variants[place].runs
    records = folded(f"{len(runs)} runs", [run_link(run.id, links) for run in runs])
    return [rows[0].scored.variant.label, *cells, element("td", records)]


def run_link(run: str, links: Mapping[str, str]) -> Markup:
    """The id of a run, as a link to its folder where there is one."""
    return element("a", element("code", run), href=links[run]) if run in links else element("code", run)


def by_length(task: Task, metric: Metric) -> Markup:
    """IQM and interval at every length, a heavy line where training ended; at most 24 lengths, the rest is in
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
    body = [[row.scored.variant.label, *length_cells(row, shown, cut)] for row in rows]
    header += [element("span", str(length)) for length in shown]
    text = f"IQM [95 % interval]; the heavy line ends the training range.{rest}"
    return element(
        "div",
        element("p", text, class_="soft"),
        table(
            header, body, f"{task.panel.label}: {metric.label} by length", [row.scored.variant.source for row in rows]
        ),
    )


def length_cells(row: Row, lengths: list[int], cut: list[str | None]) -> list[Markup]:
    """The table cells of one variant."""
    curve = row.curve
    known = {
        int(x): Estimate(*map(float, numbers))
        for x, *numbers in zip(curve.x, curve.value, curve.low, curve.high, strict=True)
    }
    return [cell(known.get(length), class_=mark) for length, mark in zip(lengths, cut, strict=True)]


def improvement(task: Task) -> Markup:
    """The table of probabilities of improvement; those whose interval excludes 1/2 are marked."""
    labels = [variant.label for variant in task.panel.variants]
    rows = []
    for i, label in enumerate(labels):
        cells: list[Content] = [label]
        for j in range(len(labels)):
            estimate = task.improvement.get((i, j))
            mark = None if estimate is None else "yes" if estimate.low > 0.5 else "no" if estimate.high < 0.5 else None
            cells.append(cell(estimate, 2, class_=mark))
        rows.append(cells)
    text = (
        f"The probability that a run of the row beats a run of the column past training, by {task.metrics[0].label}. "
        "Coloured where the 95 % interval excludes one half; not corrected for the number of pairs."
    )
    sources = [variant.source for variant in task.panel.variants]
    return element("div", element("p", text), table(["", *labels], rows, "probability of improvement", sources))


def overall(summary: Summary) -> Markup | None:
    """Accuracies over all tasks."""
    if not summary.overall:
        return None
    rows = [
        [row.label, row.metric.label, str(row.tasks), str(len(row.runs)), cell(row.past), decimal(row.mean)]
        for row in summary.overall
    ]
    header = ["encoding", "metric", "tasks", "runs", "IQM past training", "mean"]
    text = "Scores past training over all tasks that have the metric; resamples draw runs inside every task."
    sources = [f"made from the records of {' '.join(row.runs)}" for row in summary.overall]
    return section("overall", "All tasks", element("p", text), table(header, rows, "all tasks", sources))
