"""Append-only files of records, one JSON table a line: a crash costs at most the line being written.

One `write` per append, under a lock where the system has one, so that lines of several processes never mix. A line without
an end, left by a crash, is closed by the next append, and read as what it is: damaged, counted, in nobody's way.
"""

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

from attnjax.config.files import parse_json
from attnjax.config.parse import check_schema
from attnjax.config.schema import SCHEMA
from attnjax.sweep.files import jsonable, opened, write

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LONGEST = 2**20
MEASURED = ("schema", "run", "value", "count", "seconds")


class Records(NamedTuple):
    """The tables of a file in their order, and one sentence about each line that could not be read."""

    tables: list[dict[str, Any]]
    damaged: list[str]


def append(path: pathlib.Path, *records: Mapping[str, Any]) -> None:
    """Add records, all of them or none. Raises OSError where the disk refuses; the file then is as it was."""
    data = "".join(_line(record) for record in records).encode()
    with opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file, _locked(file):
        size = os.fstat(file).st_size
        if size:
            os.lseek(file, size - 1, os.SEEK_SET)
            data = data if os.read(file, 1) == b"\n" else b"\n" + data
        if os.write(file, data) < len(data):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, "no space left for a record", str(path))


def read(path: pathlib.Path) -> Records:
    """Every sound record. Never raises for what stands in the file; a missing file has no records."""
    found = Records([], [])
    if path.is_symlink():
        found.damaged.append("is a link, which is not followed")
        return found
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file), 1):
                try:
                    found.tables.append(_table(line))
                except ValueError as error:
                    found.damaged.append(f"line {number}: {str(error)[:200]}")
    except FileNotFoundError:
        pass
    except OSError as error:
        found.damaged.append(f"cannot be read: {error.strerror or error}")
    return found


def rewrite(path: pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file by these records, in one step."""
    write(path, "".join(map(_line, records)))


def sync(path: pathlib.Path) -> None:
    """Bring what was appended to the disk."""
    with contextlib.suppress(FileNotFoundError), opened(path, os.O_RDWR) as file:
        os.fsync(file)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(jsonable({"schema": SCHEMA, **record}), separators=(",", ":"), allow_nan=False) + "\n"


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines of bounded length; of a longer one only the start, which is then no JSON."""
    while line := file.readline(LONGEST):
        rest = line
        while rest and not rest.endswith(b"\n") and len(rest) == LONGEST:
            rest = file.readline(LONGEST)
        if line.strip():
            yield line


def _table(line: bytes) -> dict[str, Any]:
    try:
        table = parse_json(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    if not isinstance(table, dict):
        raise ValueError("no table")
    check_schema(table.get("schema"), "it")
    return table


@contextlib.contextmanager
def _locked(file: int) -> Iterator[None]:
    """Alone with the file, on systems that can; the lock dies with its process."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
    yield
    # Closing the descriptor unlocks.


def identity(record: Mapping[str, Any]) -> str:
    """What a result measured, without what came out: two records with the same identity are one measurement."""
    kept = {name: value for name, value in record.items() if name not in MEASURED}
    return json.dumps(jsonable(kept), sort_keys=True)
