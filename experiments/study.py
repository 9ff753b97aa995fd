"""What the pages of experiments share: scores of all runs as a table, markdown, the tables of a README, and figures.

    python -m experiments.study NAME      draws experiments/NAME/figure.svg and .png again and fills its README.md

experiments/NAME/analysis.py has `tables() -> {name: markdown}` for the marked places of the README, and `figure()`.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).parent
PLACE = re.compile(r"<!-- table:(?P<name>[\w.-]+) -->.*?<!-- /table:(?P=name) -->", re.DOTALL)


def fill(path: Path, tables: Mapping[str, str]) -> None:
    """Replaces the text between `<!-- table:NAME -->` and `<!-- /table:NAME -->` in a page.

    A text of several lines stands between blank lines; a text of one line stays within its sentence.

    Raises:
      ValueError: a table has no place in the page, or a place has no table.

    Example:
      >>> import tempfile
      >>> page = Path(tempfile.mkdtemp(), "README.md")
      >>> _ = page.write_text("Best: <!-- table:best -->?<!-- /table:best -->.")
      >>> fill(page, {"best": "RoPE"})
      >>> page.read_text()
      'Best: <!-- table:best -->RoPE<!-- /table:best -->.'
    """
    page = path.read_text(encoding="utf-8")
    places = {match["name"] for match in PLACE.finditer(page)}
    if wrong := sorted(places ^ tables.keys()):
        raise ValueError(f"{path.name} has the places {sorted(places)}, not those of the tables: {', '.join(wrong)}")

    def filled(match: re.Match[str]) -> str:
        name, text = match["name"], tables[match["name"]].strip()
        text = f"\n\n{text}\n\n" if "\n" in text else text
        return f"<!-- table:{name} -->{text}<!-- /table:{name} -->"

    path.write_text(PLACE.sub(filled, page), encoding="utf-8")


def markdown(frame: pd.DataFrame, form: Callable[[float], str] = "{:.3f}".format) -> str:
    """A table in Markdown, without the index: floats by `form`, nothing for a missing value, numbers to the right.

    Example:
      >>> print(markdown(pd.DataFrame({"encoding": ["rope", "t5"], "loss": [1.5, float("nan")]})))
      | encoding | loss |
      |---|---:|
      | rope | 1.500 |
      | t5 |  |
    """

    def cell(value: Any) -> str:
        if pd.isna(value):
            return ""
        return (form(value) if isinstance(value, float) else str(value)).replace("|", "\\|")

    numeric = [pd.api.types.is_numeric_dtype(frame[name]) for name in frame]
    rows = [[cell(value) for value in row] for row in frame.itertuples(index=False)]
    lines = [[str(name) for name in frame], *rows]
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, f"|{'|'.join('---:' if right else '---' for right in numeric)}|", *body])


def save(figure: Any, folder: Path, name: str = "figure") -> None:
    """Writes NAME.svg and NAME.png, whose bytes depend on the figure alone."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "attnjax", "svg.fonttype": "path"}):
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{name}.png", dpi=130, metadata={"Software": None})


def main(arguments: Sequence[str] | None = None) -> None:
    """Renders the experiments that are named."""
    parser = argparse.ArgumentParser(prog="python -m experiments.study", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME")
    for name in parser.parse_args(arguments).names:
        analysis = importlib.import_module(f"experiments.{name}.analysis")
        fill(HERE / name / "README.md", analysis.tables())
        save(analysis.figure(), HERE / name)


if __name__ == "__main__":
    sys.exit(main())
