"""Our cells beside published ones, from the records of all sweeps that have some.

python -m experiments.published                                  reads experiments/*/records, writes table.md, table.csv,
                                                                 agreement.csv and the figure here
python -m experiments.published runs/kazemnejad_cpu --out /tmp/table      with further sweeps, which come first
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.published.collecting import collect
from experiments.published.page import draw, files

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sweeps", nargs="*", type=Path, help="further folders of sweeps, which come before the committed ones"
    )
    parser.add_argument("--experiments", type=Path, default=HERE.parent, help="the folder of experiments with records")
    parser.add_argument("--out", type=Path, default=HERE, help="where to write")
    parser.add_argument("--no-figure", action="store_true", help="text files alone")
    given = parser.parse_args(arguments)
    try:
        collection = collect(given.experiments, more=given.sweeps)
        given.out.mkdir(parents=True, exist_ok=True)
        for name, text in files(collection).items():
            (given.out / name).write_bytes(text.encode())
        if not given.no_figure:
            draw(collection, given.out)
    except (ValueError, OSError) as error:
        print(f"published: error: {error}", file=sys.stderr)
        return 2
    print(f"{len(collection.pairs)} cells in {given.out / 'table.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
