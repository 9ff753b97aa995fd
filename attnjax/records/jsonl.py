"""Logs: files with a JSON table on each line, to which one process at a time appends.

A process that is killed leaves at most one torn line, which readers report and `keep` drops.
"""

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from attnjax import safety
from attnjax.records.files import Problem, VersionError, newer, problem
from attnjax.records.values import jsonable, whole

METRICS, RESULTS = FILES = ("metrics.jsonl", "results.jsonl")
"""What a run records while it trains."""
SCHEMA = 3
"""Version of a line; configs, manifests and the other files have their own."""
LARGEST = 2**28
"""Bytes of a file beyond which it is not read: no run writes that much."""
TAIL = 2**14
"""Bytes at the end of a file in which its last record is looked for."""
MEASURED = ("schema", "run", "value", "count", "seconds")
TOLD = 100
"""Damaged lines of a file that are reported one by one."""


class Records(NamedTuple):
    """The records of a file in their order, and a problem for each line that gave none."""

    rows: list[Any]
    problems: list[Problem]


def append(path: pathlib.Path, *records: Mapping[str, Any]) -> None:
    """Add records, all of them or none. Raises OSError where the disk refuses; the file then is as it was."""
    safety.refuse_link(path)
    data = _text(records)
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            data = data if file.read(1) == b"\n" else b"\n" + data
        if (file.write(data) or 0) < len(data):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def last(path: pathlib.Path) -> dict[str, Any]:
    """Return the last record of a file that may still grow; empty where there is none. Raises as `safety.read` does."""
    with safety.opened(path, LARGEST) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        lines = file.read().splitlines()
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # torn, or cut where reading began
            if isinstance(table := safety.parse_json(line.decode()), dict):
                return table
    return {}


def replace(path: pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of these records alone, in the place of an earlier one. Raises OSError where the disk refuses."""
    safety.write(path, _text(records))


def read(path: pathlib.Path, convert: Callable[[dict[str, Any]], Any] = lambda table: table) -> Records:
    """Return every sound record, converted: one that `convert` answers with a sentence is a problem, None is passed over.

    A missing file has none, nor has one that cannot be read, which is a problem. Raises VersionError, naming the file, for a
    sound line that a newer version wrote.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "metrics.jsonl"
      >>> append(path, {"step": 100, "loss": 0.25}, {"step": 200, "loss": 0.125})
      >>> _ = path.write_text(path.read_text()[:-3])
      >>> rows, (problem,) = read(path)
      >>> rows, problem.line, problem.reason
      ([{'schema': 3, 'step': 100, 'loss': 0.25}], 2, 'is not JSON (a torn last line)')
    """
    rows, problems = [], []
    try:
        for number, found in _lines(path):
            found = convert(found) if isinstance(found, dict) else found
            if isinstance(found, str):
                problems.append(Problem(path, found, number))
            elif found is not None:
                rows.append(found)
    except FileNotFoundError:
        return Records([], [])
    except VersionError:
        raise
    except (OSError, ValueError) as error:
        return Records([], [problem(path, error)])
    more = [Problem(path, f"has {len(problems) - TOLD} more such lines")] if len(problems) > TOLD else []
    return Records(rows, problems[:TOLD] + more)


def keep(path: pathlib.Path, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
    """Leave only the sound records that are `wanted`, in one step.

    Raises OSError or ValueError, and leaves the file as it was, where it cannot be read.
    """
    with contextlib.suppress(FileNotFoundError):
        found = [table for _, table in _lines(path)]
        kept = [table for table in found if isinstance(table, dict) and wanted(table)]
        if len(kept) < len(found):
            replace(path, kept)


def sync(path: pathlib.Path) -> None:
    """Bring what was written into a file, where there is one, to the disk."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        os.fsync(file.fileno())


def identity(record: Mapping[str, Any]) -> str:
    """Return what a result measured, without what came out: two records with the same identity are one measurement."""
    kept = {name: value for name, value in record.items() if name not in MEASURED}
    return json.dumps(jsonable(kept), sort_keys=True)


def _text(records: Iterable[Mapping[str, Any]]) -> bytes:
    tables = (jsonable({"schema": SCHEMA, **record}) for record in records)
    return "".join(json.dumps(table, separators=(",", ":"), allow_nan=False) + "\n" for table in tables).encode()


def _lines(path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield the number of each line that is not blank, and its table or why it has none."""
    lines = safety.read(path, LARGEST).split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, _table(path, number, line, last=number == len(lines))


def _table(path: pathlib.Path, number: int, line: bytes, *, last: bool) -> dict[str, Any] | str:
    try:
        table = safety.parse_json(line.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        return f"is not JSON{' (a torn last line)' * last}"
    except ValueError as error:
        return f"is damaged: {error}"
    schema = table.pop("schema", None) if isinstance(table, dict) else None
    if not whole(schema):
        return "is no JSON object with a schema version"
    if schema > SCHEMA:
        raise newer(f"{path}, line {number}", schema, SCHEMA)
    return {"schema": schema, **table}
