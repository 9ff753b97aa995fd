"""The benchmark history: every measurement that was committed, in one file of lines, and a page of how figures changed.

    python -m experiments.speed.history                                            history.md from history.jsonl
    python -m experiments.speed.history --add experiments/speed/attention/speed.jsonl    adds a record first

A line is a row of a record with the date, commit, versions and machine of its record. Adding a record twice changes nothing.
"""

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnjax import safety
from experiments.speed import records, table

HERE = pathlib.Path(__file__).parent
HISTORY, PAGE = HERE / "history.jsonl", HERE / "history.md"
MACHINE = ("date", "commit", "attnjax", "jax", "python", "processor", "cores", "device")
WHAT = ("suite", "case", "ours", "peer", "sizes")
Line = dict[str, Any]

HEAD = """# Benchmark history

Every committed measurement of `python -m experiments.speed`, oldest first, from [history.jsonl](history.jsonl). A cell has our
median, and in parentheses the ratio: the peer's figure over ours, so that ours is better above 1. Only ratios can be compared
between machines, and on a shared machine the same program differs by up to a factor of 1.7 between minutes
([noise](README.md)).

`python -m experiments.speed.history --add experiments/speed/attention/speed.jsonl` adds a record, and makes this page anew.

## Measurements

"""


def main(arguments: list[str] | None = None) -> None:
    """Add records, if any, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=pathlib.Path, nargs="+", default=[], metavar="RECORD", help="a speed.jsonl")
    chosen = parser.parse_args(arguments)
    lines = read(HISTORY) if HISTORY.exists() else []
    for path in chosen.add:
        lines = added(lines, lines_of(path))
    safety.write(HISTORY, "".join(json.dumps(line) + "\n" for line in lines).encode())
    safety.write(PAGE, page(lines).encode())
    print(PAGE)


def read(path: pathlib.Path) -> list[Line]:
    """Return the lines of the history."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def lines_of(path: pathlib.Path) -> list[Line]:
    """Return the lines of a record. Raises ValueError for one of a smoke run, whose times do not count."""
    machine, rows = records.read(path)
    if machine.get("smoke"):
        raise ValueError(f"{path} is the record of a smoke run, whose times do not count")
    about = {name: machine.get(name) for name in MACHINE}
    kept = ("unit", "our_figure", "peer_figure", "ratio", "goal")
    fields = [dataclasses.asdict(row) for row in rows]
    # Through JSON, so that lines that are new and lines that were read are equal where they say the same.
    return json.loads(json.dumps([{**about, **{name: row[name] for name in (*WHAT, *kept)}} for row in fields]))


def added(lines: Sequence[Line], new: Iterable[Line]) -> list[Line]:
    """Return lines with those that are new, in the order of their dates.

    Example:
      >>> old = [{"date": "2026-11-23", "case": "a"}]
      >>> [line["case"] for line in added(old, [{"date": "2026-11-22", "case": "b"}, old[0]])]
      ['b', 'a']
    """
    return sorted([*lines, *(line for line in new if line not in lines)], key=lambda line: line["date"])


def page(lines: Sequence[Line]) -> str:
    """Return the page: measurements, then for each suite the cases that were measured more than once."""
    text = HEAD + "| date (UTC) | commit | suites | jax | machine |\n|---|---|---|---|---|\n"
    for date in dict.fromkeys(line["date"] for line in lines):
        mine = [line for line in lines if line["date"] == date]
        about, suites = mine[0], ", ".join(dict.fromkeys(line["suite"] for line in mine))
        machine = f"{about['processor']}, {about['cores']} cores, Python {about['python']}"
        text += f"| {when(date)} | {str(about['commit'])[:7]} | {suites} | {about['jax']} | {machine} |\n"
    once = []
    for suite in dict.fromkeys(line["suite"] for line in lines):
        mine = [line for line in lines if line["suite"] == suite]
        if len({line["date"] for line in mine}) > 1:
            text += f"\n## {suite}\n\n{suite_table(mine)}"
        else:
            once.append(suite)
    if once:
        text += f"\nMeasured once, and so without a history yet: {', '.join(once)}.\n"
    return text


def suite_table(lines: Sequence[Line]) -> str:
    """Return the table of one suite: a row per case and peer, a column per measurement."""
    dates = sorted({line["date"] for line in lines})
    found: dict[str, dict[str, Line]] = {}
    for line in lines:
        found.setdefault(json.dumps([line[name] for name in WHAT]), {})[line["date"]] = line
    heads = ("case", "sizes", "peer", *map(when, dates))
    text = "".join("| " + " | ".join(row) + " |\n" for row in (heads, ["---"] * 3 + ["---:"] * len(dates)))
    for by_date in found.values():
        about = next(iter(by_date.values()))
        cells = [cell(by_date[date]) if date in by_date else "" for date in dates]
        text += "| " + " | ".join([about["case"], sizes_of(about["sizes"], lines), about["peer"], *cells]) + " |\n"
    return text


def sizes_of(sizes: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Return the sizes of a case in which the cases of its suite differ."""
    differ = [key for key, value in sizes.items() if any(line["sizes"].get(key) != value for line in lines)]
    return table.sizes_text({key: sizes[key] for key in differ if not isinstance(sizes[key], dict)})


def cell(line: Line) -> str:
    """Return our median and the ratio."""
    ours, ratio = (records.Spread.of([line[name][0]]) for name in ("our_figure", "ratio"))
    return f"{table.figure_text(ours, line['unit'])} ({table.ratio_text(ratio)})"


def when(date: str) -> str:
    """Return a date to the minute.

    Example:
      >>> when("2026-11-22T17:49:31.113+00:00")
      '2026-11-22 17:49'
    """
    return date[:16].replace("T", " ")


if __name__ == "__main__":
    main()
