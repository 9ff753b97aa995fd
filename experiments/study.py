"""What the pages of experiments share: scores of all runs as a table, estimates, the tables of a README, and figures.

    python -m experiments.study NAME                     draws the figure of experiments/NAME again and fills its README.md
    python -m experiments.study NAME --runs runs/NAME    takes the scores of these runs over before

experiments/NAME/analysis.py has `tables() -> {name: markdown}` for the marked places of the README, and `figure()`; without
`figure` it is that of `attnjax report`.
A median has the interval of order statistics, a mean that of t, each over runs; of fewer than 6 runs it is their range.
"""

import argparse
import importlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnjax.positions.t5 import bucket
from attnjax.records import stored
from attnjax.records.packed import pack
from attnjax.records.table import table
from attnjax.registry import ENCODINGS
from attnjax.report import build, drawing
from attnjax.report.formatting import interval
from attnjax.report.intervals import of_mean, of_runs

HERE = Path(__file__).parent
Frame = Any
"""A pandas table, whose labels no type checker knows."""
PLACE = re.compile(r"<!-- table:(?P<name>[\w.-]+) -->.*?<!-- /table:(?P=name) -->", re.DOTALL)


def load(name: str) -> Frame:
    """Returns every score of the runs in experiments/NAME: of tests, at the last step, without validation.

    Columns are those of `attnjax.results`, and task, encoding and longest, the longest trained length.
    """
    sweep = stored.read(HERE / name)
    frame = table(sweep)
    frame = frame[(frame.split != "validation") & (frame.step == frame.groupby("run").step.transform("max"))]
    by_id: dict[str, Any] = {run.id: run.config for run in sweep.runs}
    configs = frame.run.map(by_id)
    return frame.assign(
        task=configs.map(lambda config: config["task"]["name"]),
        encoding=configs.map(lambda config: config["model"]["encoding"]["name"]),
        longest=configs.map(lambda config: config["task"]["length_max"]),
    )


def baselines(name: str, metric: str = "loss_sliding") -> Frame:
    """Returns what n-gram models score on the windows of the runs: columns task, length, and one per model."""
    rows = {}
    for run in stored.read(HERE / name).runs:
        for length, found in run.manifest.get("baselines", {}).items():
            if metric in found:
                rows[run.config["task"]["name"], int(length)] = found[metric]
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index = pd.MultiIndex.from_tuples(rows, names=["task", "length"])
    return frame.reset_index()


def ngrams(name: str) -> Any:
    """Returns what n-grams of up to 5 bytes lose on the test windows of text, by model; `experiments.ngrams` computes it."""
    return pd.read_csv(HERE / name / "ngrams.csv", index_col="model").nats


def untrained_rows(tokens: int) -> int:
    """Returns how many of the 32 rows of T5's table are of distances that no sequence of so many tokens has.

    Example:
      >>> untrained_rows(33), untrained_rows(64), untrained_rows(128)
      (10, 5, 0)
    """
    return 31 - int(bucket(np.array(tokens - 1)))


def label(encoding: str) -> str:
    """Returns the name of an encoding as people say it."""
    return ENCODINGS[encoding].label


def curves(frame: Frame, *keys: str, metric: str) -> Frame:
    """Returns one metric with a row per run, indexed by `keys` and seed, and a column per length."""
    return frame[frame.metric == metric].pivot(index=[*keys, "seed"], columns="length", values="value")


def median(values: Any, digits: int = 2) -> str:
    """Returns the median of runs and its interval as text.

    Example:
      >>> median([1, 2, 3, 4, 5, 6]), median([1, 2, 4]), median([1, 1])
      ('3.50 [1.00, 6.00]', '2.00 (range 1.00 to 4.00)', '1.00')
    """
    return _told(of_runs(np.asarray(values, float)), digits)


def mean(values: Any, digits: int = 2) -> str:
    """Returns the mean of runs, or of differences of pairs, and its interval as text."""
    return _told(of_mean(np.asarray(values, float)), digits)


def _told(estimate: Any, digits: int) -> str:
    if estimate.low == estimate.high or np.isnan(estimate.low):
        return f"{estimate.value:.{digits}f}"
    return interval(estimate, digits)


def fill(path: Path, tables: Mapping[str, str]) -> None:
    """Replaces the text between `<!-- table:NAME -->` and `<!-- /table:NAME -->` in a page.

    A text of several lines stands between blank lines; a text of one line stays within its sentence.

    Raises:
      ValueError: a table has no place in the page, or a place has no table; the place of one line begins a line within a
        paragraph, which would end there, because a line that begins with a comment is HTML.

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
        if "\n" not in text and re.search(r"[^\n]\n$", page[: match.start()]):
            raise ValueError(f"{path.name}: the place {name} must not begin a line")
        text = f"\n\n{text}\n\n" if "\n" in text else text
        return f"<!-- table:{name} -->{text}<!-- /table:{name} -->"

    path.write_text(PLACE.sub(filled, page), encoding="utf-8")


def markdown(frame: Frame, form: Callable[[float], str] = "{:.3f}".format) -> str:
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
    with drawing.settings():
        drawing.save(figure, folder / name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Renders an experiment."""
    parser = argparse.ArgumentParser(prog="python -m experiments.study", description=__doc__.partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("--runs", type=Path, help="a folder of runs, whose scores are kept in experiments/NAME")
    chosen = parser.parse_args(arguments)
    folder = HERE / chosen.name
    if chosen.runs:
        pack(chosen.runs, folder)
    analysis = importlib.import_module(f"experiments.{chosen.name}.analysis")
    fill(folder / "README.md", analysis.tables())
    if hasattr(analysis, "first_page"):
        fill(HERE.parent / "README.md", analysis.first_page())
    if hasattr(analysis, "figure"):
        with drawing.settings():
            save(analysis.figure(), folder)
    elif (folder / "runs.jsonl").exists():
        overview(folder)


def overview(folder: Path) -> None:
    """Takes the figure of the folder's report: all encodings on every task by length, and differences of pairs."""
    with tempfile.TemporaryDirectory() as made:
        build(folder, Path(made, "report"))
        for name in ("figure.png", "figure.svg"):
            shutil.copy(Path(made, "report", name), folder / name)


if __name__ == "__main__":
    sys.exit(main())
