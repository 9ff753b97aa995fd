"""The command of an experiment that is measured into records, from which its pages and figures are rendered."""

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence


def parser(name: str, about: str | None, out: str) -> argparse.ArgumentParser:
    """The options of every such command, `--out` and `--render`, to which an experiment adds its own.

    Args:
      name: the folder in `experiments/`.
      about: the docstring of the module.
      out: the folder of records and page, unless it is given.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = pathlib.Path
    made.add_argument("--out", type=folder, default=folder(out), help=f"where records and page go ({out})")
    made.add_argument("--render", type=folder, help="measure nothing; write the page of the records in this folder")
    return made


def run(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], None],
    render: Callable[[pathlib.Path], Iterable[pathlib.Path]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Measure and render, or render only; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    chosen = parser.parse_args(arguments)
    try:
        if chosen.render is None:
            measure(chosen)
        print(*render(chosen.render or chosen.out), sep="\n")
    except (ValueError, OSError) as error:
        print(f"{parser.prog.rpartition('.')[2]}: error: {error}", file=sys.stderr)
        return 2
    return 0
