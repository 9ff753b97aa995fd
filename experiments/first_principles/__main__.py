"""Every worked example: compute, say, draw.

    python -m experiments.first_principles [--out FOLDER] [--only NAME ...]     compute, print, write record, page, figures
    python -m experiments.first_principles --render FOLDER                      page and figures from FOLDER/record.json

A folder that has a record keeps the sections that are not computed anew. Exit status 2 and one line for a mistake.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

DEFAULT = pathlib.Path("runs/first_principles")
WRONG = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="first_principles", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT, help="folder to write to (%(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="compute these sections alone")
    parser.add_argument("--render", type=pathlib.Path, metavar="FOLDER", help="compute nothing")
    options = parser.parse_args(arguments)
    try:
        if options.render is not None:
            return render(options.render)
        return compute(options.out, options.only)
    except (ValueError, OSError) as error:
        print(f"first_principles: {error}", file=sys.stderr)
        return WRONG


def compute(folder: pathlib.Path, only: Sequence[str] | None) -> int:
    """Compute sections into the record of a folder, print them, and write page and figures."""
    from attnjax.report.drawing import settings
    from experiments.first_principles import page, record
    from experiments.first_principles.sections import chosen

    sections = chosen(only)
    with settings():  # without matplotlib it ends here, before minutes of work
        pass
    folder.mkdir(parents=True, exist_ok=True)
    held = record.read(folder) if (folder / record.FILE).exists() else {}
    for section in sections:
        held[section.name] = record.entry(section)
        record.write(folder, held)
        print(f"== {section.title}\n\n{section.text(held[section.name]['numbers'])}\n", flush=True)
    return written(page.write(folder, record.read(folder)))


def render(folder: pathlib.Path) -> int:
    """Page and figures from the record of a folder."""
    from experiments.first_principles import page, record

    return written(page.write(folder, record.read(folder)))


def written(paths: Sequence[pathlib.Path]) -> int:
    """Say what was written."""
    print(f"{paths[0]} and {len(paths) - 1} figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
