"""What committed results say of an encoding: its rows of the length table and of the reports of studies, as Markdown."""

import csv
import pathlib

from attnjax import registry
from attnjax.report.formatting import markdown_table

TABLE = pathlib.PurePath("experiments/length_table/table.csv")
NOT_RUN = (
    "The [length table](../experiments/length_table/README.md), which trains every encoding of a decoder on six tasks with "
    "tuned learning rates and ten seeds, **has not been run yet**, so there is no row of it here."
)
LEGEND = (
    "The length factor is the largest tested multiple of the longest trained length up to which a run holds: exact match of at "
    "least 0.9, or a loss at most 0.05 nats above that at the trained length. *Fitted* is the number of runs that learned the "
    "trained lengths; where fewer than half did, the factor says nothing."
)


def section(root: pathlib.Path, name: str) -> str:
    """Return the text below "What our tables say" on the page of an encoding."""
    told = [length_table(root, name), studies(root, name)]
    return "\n\n".join([*filter(None, told), LEGEND if any("|" in text for text in told) else ""]).strip()


def length_table(root: pathlib.Path, name: str) -> str:
    """Return the rows of the length table of an encoding, or a sentence that says why there are none."""
    if not (root / TABLE).exists():
        return NOT_RUN
    rows = [row for row in rows_of(root / TABLE) if row["encoding"] == name]
    if not rows:
        return "The [length table](../experiments/length_table/README.md) has no runs of this encoding."
    cells = [[row["task"], factor(row), f"{row['fitted']} of {row['runs']}", row["rank"]] for row in rows]
    table = markdown_table(("task", "length factor", "fitted", "rank"), cells)
    return f"In the [length table](../experiments/length_table/README.md), with tuned learning rates:\n\n{table}"


def studies(root: pathlib.Path, name: str) -> str:
    """Return the rows of committed reports in which it is the only variant of this encoding; "" where there are none."""
    found = []
    for path in sorted(root.glob("experiments/*/report/table.csv")):
        study = path.parent.parent.name
        for row in rows_of(path):
            main = row["metric"] == row["reach_metric"]
            if main and row["encoding"] == name and row["variant"] == registry.ENCODINGS[name].label:
                fitted = f"{row['fitted']} of {row['fitted_of']}" if row["fitted_of"] else ""
                link = f"[{study}](../experiments/{study}/README.md)"
                found.append([link, row["task"], f"up to {row['trained_max']}", factor(row), fitted])
    if not found:
        return ""
    table = markdown_table(("study", "task", "trained on", "length factor", "fitted"), found)
    return f"In the committed studies, whose configs may give it options:\n\n{table}"


def factor(row: dict[str, str]) -> str:
    """Return a length factor with the ends that the row has for it.

    Example:
      >>> ends = {"length_factor_low": "1.5", "length_factor_high": "3", "length_factor_interval": "range"}
      >>> factor({"length_factor": "2", **ends})
      '2 (range 1.5 to 3)'
    """
    if not row["length_factor"]:
        return ""
    low, high = row["length_factor_low"], row["length_factor_high"]
    if not low or low == high:
        return row["length_factor"]
    return f"{row['length_factor']} ({row['length_factor_interval']} {low} to {high})"


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
