"""The numbers of a report as text: Markdown for a README, a few lines for the terminal."""

from attnjax.report import intervals, page
from attnjax.report.formatting import markdown, markdown_table
from attnjax.report.page import Table
from attnjax.report.tables import Summary
from attnjax.report.tuning import Tuning

ROWS = 8
"""Most rows of the table in the terminal."""


def table_md(summary: Summary, tuned: Tuning | None) -> str:
    """Return the whole of table.md: the answer, notes, the numbers and differences of each task, and the tuning."""
    parts = [
        f"# {markdown(summary.sweep.name)}\n",
        f"{markdown(page.sentence(summary))}\n",
        as_markdown(page.answer(summary)),
    ]
    parts += [f"{markdown(page.legend(summary))}\n", *(f"> {markdown(note)}\n" for note in summary.notes)]
    for task in summary.tasks:
        parts += [f"## {markdown(task.panel.label)}\n", as_markdown(page.numbers(task))]
        parts += [as_markdown(page.differences(task))] if task.compared else []
    if tuned:
        parts += ["## Tuning\n", f"{markdown(tuned.text)}\n", as_markdown(page.tuned(tuned))]
    parts.append(
        "[answer.csv](answer.csv) names the runs of each row, and [lengths.csv](lengths.csv) has every point of the figure.\n"
    )
    return "\n".join(parts)


def as_markdown(table: Table) -> str:
    """Return a table of the page as Markdown; rows that did not fit in italics, the best in bold."""
    rows = []
    for row in table.rows:
        cells = []
        for cell in row.cells:
            text = markdown(" ".join(filter(None, (cell.text, cell.small))))
            mark = "*" if row.grey or cell.kind == "unfitted" else "**" if cell.kind in ("best", "yes") else ""
            cells.append(f"{mark}{text}{mark}" if text else text)
        rows.append(cells)
    left_out = {place for place, name in enumerate(table.header) if name == "records"}
    kept = lambda cells: [cell for place, cell in enumerate(cells) if place not in left_out]
    return markdown_table(kept(list(map(markdown, table.header))), map(kept, rows))


def terminal(summary: Summary) -> str:
    """Return the answer table in columns, best first where there is one task, at most 8 rows, and the sentence.

    Control characters in names were replaced when the records were read.
    """
    tasks, table = summary.tasks, page.answer(summary)
    order = {label: place for place, label in enumerate(tasks[0].answer.variant)} if len(tasks) == 1 else {}
    rows = sorted(table.rows, key=lambda row: order.get(row.cells[0].text, 0))
    lines = [["encoding", *(task.panel.label for task in tasks)]]
    lines.append(["", *(f"{task.metric.short} {page.arrow(task)}" for task in tasks)])
    for row in rows[:ROWS]:
        number = [
            f"{cell.text} {cell.small.partition(', holds')[0]}{' *' * (cell.kind == 'best')}" for cell in row.cells
        ]
        lines.append([cell.strip() for cell in number])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    more = [f"and {len(rows) - ROWS} more"] if len(rows) > ROWS else []
    ends = intervals.caption(summary.answer.done + summary.answer.failed)
    return "\n".join(
        [*text, *more, f"past the trained lengths: median, {ends}; * the best", "", page.sentence(summary)]
    )
