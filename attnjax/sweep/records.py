"""Append-only files of records, one JSON table a line: a crash costs at most the line being written.

One `write` per append, under a lock where the system has one, so that lines of several processes never mix. A line without
an end, left by a crash, is closed by the next append, and read as what it is: damaged, counted, in nobody's way. Each line
carries a checksum, see `lines`.
"""

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from attnjax.sweep import lines
from attnjax.sweep.files import jsonable, opened, write

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FILES = ("metrics.jsonl", "results.jsonl")
"""What a run records while it trains."""
MEASURED = ("schema", "run", "value", "count", "seconds")
TOLD = 100
"""Damaged lines of a file that are told one by one."""


class Records(NamedTuple):
    """The tables of a file in their order, and one sentence about each line that could not be read.

    `unchecked` of the tables come from lines without a checksum, which an earlier version wrote.
    """

    tables: list[dict[str, Any]]
    damaged: list[str]
    unchecked: int = 0


def append(path: pathlib.Path, *records: Mapping[str, Any]) -> None:
    """Add records, all of them or none. Raises OSError where the disk refuses; the file then is as it was."""
    data = "".join(map(lines.text, records)).encode()
    with opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file, _locked(file):
        size = os.fstat(file).st_size
        if size:
            os.lseek(file, size - 1, os.SEEK_SET)
            data = data if os.read(file, 1) == b"\n" else b"\n" + data
        if os.write(file, data) < len(data):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, "no space left for a record", str(path))


def read(path: pathlib.Path) -> Records:
    """Every sound record; a missing file has none, nor has one that cannot be read, which is told as damage.

    Raises ValueError, naming the file, only for a sound line that a newer version wrote.
    """
    found, damaged, more, unchecked = [], [], 0, 0
    try:
        for line in each(path):
            if line.table is not None:
                found.append(line.table)
                unchecked += not line.checked
            elif len(damaged) < TOLD:
                damaged.append(f"line {line.number} {line.problem}")
            else:
                more += 1
    except lines.NewerError as error:
        raise ValueError(f"{path}, {error}") from None
    except (OSError, ValueError) as error:
        return Records([], [_unreadable(path, error)])
    return Records(found, damaged + [f"and {more} more lines"] * (more > 0), unchecked)


def each(path: pathlib.Path) -> Iterator[lines.Line]:
    """The lines of a file, one after the other, none where it is missing.

    Raises OSError where it cannot be read, and ValueError where it is a link or too large, or written by a newer version.
    """
    with contextlib.suppress(FileNotFoundError), opened(path, os.O_RDONLY) as file:
        yield from lines.read(file)


def keep(path: pathlib.Path, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
    """Leave only the sound records that are `wanted`, in one step, each line as it stands: none gets a checksum late.

    Raises as `each` does, and leaves the file as it was.
    """
    kept, dropped = [], 0
    for line in each(path):
        if line.table is not None and wanted(line.table):
            kept.append(line.raw.decode().rstrip("\r\n") + "\n")
        else:
            dropped += 1
    if dropped:
        write(path, "".join(kept))


def unchecked(path: pathlib.Path) -> int:
    """How many lines of a file end without a checksum; 0 where the file cannot be read. Quicker than `read`."""
    try:
        with opened(path, os.O_RDONLY) as file:
            return sum(not lines.CHECKSUM.search(raw[-lines.WIDTH - 2 :]) for _, raw in lines.numbered(file))
    except (OSError, ValueError):
        return 0


def sync(path: pathlib.Path) -> None:
    """Bring what was appended to the disk; to what is no file nothing was."""
    with contextlib.suppress(FileNotFoundError, ValueError), opened(path, os.O_RDWR) as file:
        os.fsync(file)


def _unreadable(path: pathlib.Path, error: Exception) -> str:
    """What is wrong with a whole file, without its name, which callers put before it."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error).removeprefix(f"{path} ")


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
