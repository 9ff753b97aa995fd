"""The table of length factors, from the runs of configs/length_table.py.

    attnjax sweep length_table:copy --extend --workers 2     and so for each task; all are in runs/length_table
    python -m experiments.length_table runs/length_table     keeps what has ended in records.jsonl, and makes the table
    python -m experiments.length_table                       makes the table from records.jsonl alone

With `--pilot runs/length_table_pilot` it prints what the pilot scored at the trained lengths, and makes nothing.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from attnjax.report.records import encoding_names, read
from experiments import recorded
from experiments.length_table.figure import draw
from experiments.length_table.page import agreement_csv, called, summary, table_csv, table_md
from experiments.length_table.records import SUBJECT, keep, task_of
from experiments.length_table.results import Results, results

PAGES = {"table.md": table_md, "table.csv": table_csv, "agreement.csv": agreement_csv}


def load(path: pathlib.Path) -> Results:
    """The numbers of a file of records. Raises ValueError where it is damaged or of something else."""
    return recorded.read(path, SUBJECT, results)


def pilot(folder: pathlib.Path) -> list[str]:
    """A line for each run of the pilot that ended, with its scores at the longest trained length."""
    found = []
    for run in read(folder).runs:
        scores = {row.metric: row.value for row in run.results if row.split == "validation"}
        told = ", ".join(f"{name} {value:.3f}" for name, value in sorted(scores.items()) if name != "token_accuracy")
        if run.config:
            found.append(f"{called(task_of(run))}, {'+'.join(encoding_names(run.config))}: {told or run.state}")
    return sorted(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.length_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", type=pathlib.Path, help="folders of sweeps of length_table")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent, help="where the table is")
    parser.add_argument("--pilot", type=pathlib.Path, metavar="DIR", help="the folder of length_table:pilot")
    options = parser.parse_args(arguments)
    try:
        if options.pilot:
            print(*pilot(options.pilot), sep="\n")
            return 0
        for sentence in keep(options.runs, options.out) if options.runs else []:
            print(f"left out: {sentence}")
        made = recorded.render(options.out, load, PAGES, draw)
        for column in load(options.out / recorded.RECORDS).columns:
            print(summary(column))
    except (ValueError, OSError) as error:
        print(f"length_table: error: {error}", file=sys.stderr)
        return 2
    print(*made, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
