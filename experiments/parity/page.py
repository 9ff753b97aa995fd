"""parity.md from parity.jsonl: the table of all architectures."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from attnjax.report.formatting import NONE, markdown, markdown_table

RECORDS, PAGE = "parity.jsonl", "parity.md"
GOALS = (("float64", 1e-9), ("float32", 1e-4))
COLUMNS = ("output", "caches", "loss", "gradients")

TEXT = """# Parity with transformers

Largest difference between us and transformers, relative to the largest number of the array compared; of gradients, the
worst of all tensors. *Caches*: the same output from two chunks that go through our caches. *Same tokens*: greedy tokens equal
to those of `generate` of transformers. *There and back*: load, save in several files, load gives every bit again, and
transformers reads what we saved with equal output to the last bit.

{table}
{verdict}

Made on {date} with {versions}.
"""


def read(folder: pathlib.Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the first line says of date and versions, and the records. Raises ValueError where there are none."""
    path = folder / RECORDS
    try:
        about, *records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} holds no record of parity: {error}") from error
    return about, records


def render(folder: pathlib.Path) -> pathlib.Path:
    """Write the page of a folder's record."""
    about, records = read(folder)
    (folder / PAGE).write_text(page(about, records), encoding="utf-8")
    return folder / PAGE


def page(about: Mapping[str, Any], records: list[dict[str, Any]]) -> str:
    """The whole page."""
    versions = ", ".join(f"{name} {value}" for name, value in about.items() if name != "date")
    wrong = [f"{one['case']}: {what}" for one in records for what in failures(one)]
    verdict = "; ".join(wrong) if wrong else f"All {len(records)} are within {goals()}."
    return TEXT.format(table=table(records), verdict=markdown(verdict), date=about["date"], versions=markdown(versions))


def goals() -> str:
    """The tolerances in words."""
    return " and ".join(f"{goal:g} in {dtype}" for dtype, goal in GOALS)


def table(records: list[dict[str, Any]]) -> str:
    """A row for each case."""
    names = [f"{column}, {dtype}" for dtype, _ in GOALS for column in COLUMNS]
    header = ("architecture", "class", "T", *names, "same tokens", "there and back")
    return markdown_table(header, [_cells(one) for one in records])


def failures(record: Mapping[str, Any]) -> list[str]:
    """What of a record is out of tolerance, or not equal."""
    found = [
        f"{column} in {dtype} differs by {value:.1e}"
        for dtype, goal in GOALS
        for column in COLUMNS
        if (value := record[dtype][column]) is not None and not value <= goal
    ]
    made = record.get("generated")
    found += ["other tokens"] if made and made["equal"] < made["tokens"] else []
    return found + ([] if _returns(record) else ["does not come back"])


def _cells(record: Mapping[str, Any]) -> list[str]:
    numbers = [record[dtype][column] for dtype, _ in GOALS for column in COLUMNS]
    made = record.get("generated")
    return [
        markdown(record["case"]),
        markdown(record["class"]),
        str(record["tokens"]),
        *(NONE if value is None else f"{value:.0e}" if value else "0" for value in numbers),
        f"{made['equal']} of {made['tokens']}" if made else NONE,
        "yes" if _returns(record) else "**no**",
    ]


def _returns(record: Mapping[str, Any]) -> bool:
    return record["round_trip"] and record.get("transformers_reads_it", True)
