"""What a page and the tables of a report say, read back."""

import csv
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

BLOCK = re.compile(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', re.DOTALL)


def data(page: pathlib.Path) -> dict[str, Any]:
    """The JSON block that the page's script reads."""
    found = BLOCK.search(page.read_text(encoding="utf-8"))
    return json.loads(found[1]) if found else {}


def maps(run: dict[str, Any]) -> tuple[str, ...]:
    """The attention weights of every text of a run, packed as they are."""
    return tuple(text["weights"] for text in run["texts"])


def read_aloud(run: dict[str, Any]) -> str:
    """The texts that a run shows, one after another."""
    return " ".join("".join(text["tokens"]).replace("␣", " ") for text in run["texts"])


def said(run: dict[str, Any]) -> set[int]:
    """Every whole number that the page says of a run, beside its config and its maps."""
    rest = {name: value for name, value in run.items() if name not in ("config", "texts", "loss")}
    return {int(number) for number in re.findall(r"(?<![\w.])\d{1,9}(?![\w.])", json.dumps(rest))}


def scores(folder: pathlib.Path) -> Iterator[tuple[str, str, float]]:
    """(run, metric, value) of every number that is one measurement: a cell of one run, or the one length past training."""
    cells: dict[tuple[str, str], list[str]] = {}
    for row in _rows(folder / "runs.csv"):
        if row["counts_as"] == "failed":  # counts as the worst there is, in every statistic
            continue
        cells.setdefault((row["task"], row["cell"]), []).append(row["run"])
        past = {name.removesuffix("_past"): text for name, text in row.items() if name.endswith("_past") and text}
        yield from ((row["run"], metric, float(text)) for metric, text in past.items())
    for row in _rows(folder / "lengths.csv"):
        runs = cells.get((row["task"], row["cell"]), [])
        if len(runs) == int(row["runs"]) == 1 and row["median"]:
            yield runs[0], row["metric"], float(row["median"])


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
