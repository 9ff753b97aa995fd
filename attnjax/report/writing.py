"""Writes all files of a report from a folder of records, which is read once.

    report.html                  the page (self-contained)
    figure.png, figure.svg       the first metric of every task against length, and the paired differences
    answer.csv lengths.csv differences.csv runs.csv    the tables, see `tables`
    tuning.csv                   the scores of the tuning runs, where the sweep was tuned

The same records give the same bytes: nothing here knows the time, the machine or where the folder lies.
"""

import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from attnjax import safety
from attnjax.records.files import real
from attnjax.records.packed import is_packed
from attnjax.records.stored import read
from attnjax.records.typed import Sweep
from attnjax.report import drawing, figures, intervals, page
from attnjax.report.formatting import csv_table
from attnjax.report.notes import notes
from attnjax.report.tables import Summary, summarise
from attnjax.report.tuning import Tuning, choices_in, tuning

ROWS = 8
"""Most rows of the table in the terminal."""


def write(root: Path, out: str | Path | None) -> list[Path]:
    """Write the report of a folder and return its files, see `attnjax.report.build`."""
    drawing.check_library()
    target = root / "report" if out is None else real(Path(out))
    if target.resolve() == root.resolve():
        raise ValueError(f"the report of {root} cannot be written among its records: give another folder, or none")
    summary, tuned = numbers(root)
    links = {} if is_packed(root) else _links(root, target, summary.sweep)
    with drawing.settings():
        wide, narrow = (figures.overview(summary.tasks, layout) for layout in (figures.WIDE, figures.NARROW))
        svg = drawing.svg(wide)
        files = {"figure.png": drawing.png(wide), "figure.svg": svg, **_tables(summary, tuned)}
        files["report.html"] = page.page(summary, tuned, links, svg, drawing.svg(narrow))
    try:
        return safety.write_all(target, files)
    except ValueError as error:  # a link in the place of the folder
        raise ValueError(f"the report cannot be written to {target}: {error}. Remove it, or give --out") from error
    except OSError as error:
        raise ValueError(f"the report cannot be written to {target}: {error.strerror or error}") from error


def numbers(root: Path) -> tuple[Summary, Tuning | None]:
    """Return all numbers of a folder with their notes, and how it was tuned, None where it was not."""
    choices, remarks = choices_in(root)
    keys = {key for candidate in choices.candidates for key in candidate} if choices else ()
    summary = summarise(read(root), keys)
    tuned = tuning(summary, choices) if choices else None
    return replace(summary, notes=(*notes(summary), *remarks, *(tuned.notes if tuned else ()))), tuned


def _tables(summary: Summary, tuned: Tuning | None) -> dict[str, str]:
    tables = {name: getattr(summary, name) for name in ("answer", "lengths", "differences", "runs")}
    tables |= {"tuning": tuned.table} if tuned else {}
    return {f"{name}.csv": csv_table(table) for name, table in tables.items()}


def _links(root: Path, target: Path, sweep: Sweep) -> dict[str, str]:
    """The folder of each run id, relative to the page; empty if there is no relative path."""
    try:
        way = os.path.relpath(root.resolve(), target.resolve())
    except ValueError:  # another drive
        return {}
    start = "/".join(quote(part) for part in Path(way).parts)
    return {run.id: f"{start}/{run.id}/" for run in sweep.runs if run.state != "absent"}


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
