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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from attnjax.records import lines
from attnjax.records.files import NewerError, Problem, opened, problem, write
from attnjax.records.values import jsonable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

METRICS, RESULTS = FILES = ("metrics.jsonl", "results.jsonl")
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


class Rows(NamedTuple):
    """What `read_rows` made of the records of a file, a problem for each line that gave none, and `unchecked` as above."""

    rows: tuple[Any, ...]
    problems: list[Problem]
    unchecked: int


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


def replace(path: pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
    """A file of these records alone, in the place of an earlier one. Raises OSError where the disk refuses."""
    write(path, "".join(map(lines.text, records)))


def read(path: pathlib.Path) -> Records:
    """Every sound record; a missing file has none, nor has one that cannot be read, which is told as damage.

    Raises ValueError, naming the file, only for a sound line that a newer version wrote.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "metrics.jsonl"
      >>> append(path, {"step": 100, "loss": 0.25}, {"step": 200, "loss": 0.125})
      >>> _ = path.write_text(path.read_text()[:-3])
      >>> read(path)
      Records(tables=[{'schema': 2, 'step': 100, 'loss': 0.25}], damaged=['line 2 is not JSON (a torn last line)'], unchecked=0)
    """
    rows, problems, unchecked = read_rows(path, lambda table: table)
    damaged = [one.reason if one.line is None else f"line {one.line} {one.reason}" for one in problems]
    return Records(list(rows), damaged, unchecked)


def read_rows(path: pathlib.Path, convert: Callable[[dict[str, Any]], Any]) -> Rows:
    """Every sound record, converted: one that `convert` answers with a sentence is a problem, None is passed over.

    Raises NewerError, naming the file, for a sound line that a newer version wrote.
    """
    rows, problems, more, unchecked = [], [], 0, 0
    try:
        for line in each(path):
            found = line.problem if line.table is None else convert(line.table)
            unchecked += line.table is not None and not line.checked
            if not isinstance(found, str):
                rows += [found] if found is not None else []
            elif len(problems) < TOLD:
                problems.append(Problem(path, found, line.number))
            else:
                more += 1
    except NewerError as error:
        raise NewerError(f"{path}, {error.what}", error.schema, error.known) from None
    except (OSError, ValueError) as error:
        return Rows((), [problem(path, error)], 0)
    return Rows(tuple(rows), problems + [Problem(path, f"has {more} more such lines")] * (more > 0), unchecked)


def each(path: pathlib.Path, *, current: bool = False) -> Iterator[lines.Line]:
    """The lines of a file, one after the other, none where it is missing.

    `current`: with those that another machine has just written. The file is opened to be changed and locked, at which a
    machine drops what it remembers of a shared file; whoever adds to it must know what is there.
    Raises OSError where it cannot be read, and ValueError where it is a link or too large, or written by a newer version.
    """
    flags, lock = (os.O_RDWR, _locked) if current else (os.O_RDONLY, contextlib.nullcontext)
    with contextlib.suppress(FileNotFoundError), opened(path, flags) as file, lock(file):
        yield from lines.read(file)


def keep(path: pathlib.Path, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
    """Leave only the sound records that are `wanted`, in one step, each line as it stands: none gets a checksum late.

    Raises as `each` does, and leaves the file as it was.
    """
    kept, dropped = [], 0
    for line in each(path, current=True):
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
