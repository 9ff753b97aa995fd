"""Makes a figure, tables with intervals, and one page from the stored records of a sweep.

Every number is a pure function of the records; nothing here imports JAX. Pandas, Matplotlib and jinja2 are imported when a
report is made, so that others can use the names of metrics and encodings without them.
"""

from pathlib import Path

__all__ = ["answer", "build"]


def build(directory: str | Path, out: str | Path | None = None) -> list[Path]:
    """Write the report of the sweep in `directory` to `out` (default: directory/report) and return its files.

    `directory` may be a packed folder: the page then leads to no folders of runs. An earlier report is replaced, file by
    file, when all of the new one is made. `out` may be a link; directory/report may not, and a link in it is replaced.

    Raises:
        ValueError: `directory` holds nothing that can be reported, or records of a newer schema; `out` cannot be
            written; matplotlib is not installed.
    """
    from attnjax.report.writing import write

    return write(Path(directory), out)


def answer(directory: str | Path) -> str:
    """Return the answer of a sweep as plain text of a few lines, for the terminal.

    Raises ValueError where the folder holds nothing that can be reported.
    """
    from attnjax.report.writing import numbers, terminal

    root = Path(directory)
    return terminal(numbers(root)[0])
