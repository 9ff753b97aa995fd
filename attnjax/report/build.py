"""`build` makes a report from a folder of records: it reads the records once, and writes every file.

    report.html                  the page (self-contained)
    figure.png, figure.svg       the first metric of every task against length
    figures/                     length, heat, position, improvement and learning figures of every task
    table.md, *.csv              the tables (see `csv_tables`)
    published.md, published.csv, agreement.csv  our cells beside published ones, and Kendall's tau_b, where asked for
    tuning.csv                   the scores of the tuning runs, where the sweep was tuned

The same records give the same bytes: nothing here knows the time, the machine or where the folder lies.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attnjax.records.files import real
from attnjax.records.remote import is_remote, local, mirrored
from attnjax.report import drawing, figures
from attnjax.report.csv_tables import csv_files
from attnjax.report.groups import slugify, unique
from attnjax.report.markdown_tables import table_md
from attnjax.report.page import page
from attnjax.report.placing import placed
from attnjax.report.published import files as published_files, pairs, section
from attnjax.report.records import Run, read
from attnjax.report.summarise import summarise
from attnjax.report.summary import Summary, positions_of
from attnjax.report.tuning import choices_in, noted, tuned


def build(directory: str | Path, out: str | Path | None = None, published: bool = False) -> list[Path]:
    """Write the report of the sweep in `directory` to `out` (default: directory/report) and return its files.

    `directory` may be a URL, see `attnjax.records.remote`; the default of `out` is then report-NAME in the current folder,
    and the page leads to no folders of runs. An earlier report is replaced when all files of the new one are written, and
    stays as it was where one cannot be.
    `out` may be a link; directory/report and what lies in a report may not.

    Raises:
        ValueError: `directory` holds nothing that can be reported, or records of a newer schema; `out` cannot be
            written; matplotlib is not installed.
    """
    here = None if out is None else real(local(out, "reports are written to folders of this machine"))
    with mirrored(directory) as root:
        if is_remote(directory):
            return _build(root, here or Path(f"report-{root.name}"), [], published, linked=False)
        return _build(root, here or root / "report", [] if out is None else [Path(out)], published, linked=True)


def _build(root: Path, target: Path, ignore: list[Path], published: bool, *, linked: bool) -> list[Path]:
    if target.resolve() == root.resolve():
        raise ValueError(f"the report of {root} cannot be written among its records: give another folder, or none")
    choices, remarks = choices_in(root)
    keys = {key for candidate in choices.candidates for key in candidate} if choices else ()
    summary = noted(summarise(read(root, ignore=[target, *ignore]), keys), *remarks)
    found = pairs(summary) if published else None
    summary, tuning = tuned(summary, choices) if choices else (summary, None)
    texts = csv_files(summary) | {"table.md": table_md(summary)}
    if tuning is not None:
        texts["table.md"] += f"\n{tuning.markdown()}"
        texts["tuning.csv"] = tuning.csv()
    texts |= published_files(found) if found is not None else {}
    beside = section(found) if found is not None else None
    links_of = links(root, target, summary.sweep.runs) if linked else {}
    texts["report.html"] = page(summary, links_of, beside, None if tuning is None else tuning.section())
    drawing.check_library()
    try:
        with placed(target) as temporary:
            (temporary / "figures").mkdir()
            made = [*write_texts(temporary, texts), *write_figures(temporary, summary)]
    except ValueError as error:  # a link or a folder in the place of a file
        raise ValueError(f"the report cannot be written to {target}: {error}. Remove it, or give --out") from error
    except OSError as error:
        raise ValueError(f"the report cannot be written to {target}: {error.strerror or error}") from error
    return [target / path.relative_to(temporary) for path in made]


def links(root: Path, target: Path, runs: tuple[Run, ...]) -> dict[str, str]:
    """The folder of each run id, relative to the page; empty if there is no relative path."""
    try:
        way = os.path.relpath(root.resolve(), target.resolve())
    except ValueError:  # another drive
        return {}
    start = "/".join(quote(part) for part in Path(way).parts)
    return {run.id: f"{start}/{run.id}/" for run in runs if run.state != "absent"}


def write_texts(target: Path, texts: dict[str, str]) -> list[Path]:
    """Write the text files with the same line endings on every system."""
    paths = []
    for name, text in sorted(texts.items()):
        paths.append(target / name)
        paths[-1].write_bytes(text.encode("utf-8"))
    return paths


def write_figures(target: Path, summary: Summary) -> list[Path]:
    """Draw and write all figures."""
    with drawing.settings():
        return [path for name, figure in all_figures(summary) for path in drawing.save(figure, target / name)]


def all_figures(summary: Summary) -> Iterator[tuple[str, Any]]:
    """(name, figure) of every figure; each is drawn when the iterator reaches it."""
    tasks = [task for task in summary.tasks if task.metrics]
    yield "figure", figures.overview(tasks)
    for task in tasks:
        slug, taken = task.panel.slug, set()
        for metric in task.metrics:
            name = unique(slugify(metric.key), taken, "-")
            yield f"figures/{slug}-{name}-length", figures.by_length(task, metric)
            yield f"figures/{slug}-{name}-heat", figures.heat_map(task, metric)
        if task.improvement:
            yield f"figures/{slug}-improvement", figures.improvement(task)
        if positions_of(task):
            yield f"figures/{slug}-positions", figures.by_position(task)
        if any(len(curve.x) for curve in task.learning):
            yield f"figures/{slug}-learning", figures.learning(task)
