"""Reads and writes JSON and text files of a folder of runs: atomically, and never through a link.

Every function enters the folder of its file through `attnjax.folder.enter`. A file that cannot be read or written is an
`OSError` with its name; a file with wrong content is a `ValueError`. Only the second is damage.
"""

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from attnjax.config.files import SIZE, decoded, parse_json
from attnjax.config.names import safe_name
from attnjax.config.options import shown
from attnjax.config.schema import SCHEMA
from attnjax.folder import PARTIAL, LinkError, enter
from attnjax.records.values import jsonable


class NewerError(ValueError):
    """Records that a newer version wrote: to read them as old ones could give a wrong number."""

    def __init__(self, what: str, schema: int, known: int):
        self.what, self.schema, self.known = what, schema, known
        super().__init__(
            f"{what} was written by a newer version of attnjax: it has schema {schema}, and this version reads schemas up "
            f"to {known}. Update attnjax"
        )


class Problem(NamedTuple):
    """Something that was not used: its path, why, a line (None for the whole), and what kind of problem this is."""

    path: pathlib.Path
    reason: str
    line: int | None = None
    kind: Literal["damaged", "missing", "newer"] = "damaged"

    def __str__(self) -> str:
        return f"{self.path} {self.reason}" if self.line is None else f"{self.path}, line {self.line} {self.reason}"


def problem(path: pathlib.Path, error: Exception) -> Problem:
    """The problem that an error describes, without the path, with which most messages begin."""
    if isinstance(error, FileNotFoundError):
        return Problem(path, "is missing", kind="missing")
    if isinstance(error, OSError):
        return Problem(path, f"cannot be read: {error.strerror or error}")
    kind = "newer" if isinstance(error, NewerError) else "damaged"
    return Problem(path, str(error).removeprefix(f"{path} ").removeprefix(f"{path.parent} "), kind=kind)


def inside(root: pathlib.Path, *names: str) -> pathlib.Path:
    """root/name/... after making sure that it lies in root and is reached through no link. Raises ValueError."""
    path = root
    for name in names:
        path = path / safe_name(name, "a name in a folder of results")
        if path.is_symlink():
            raise LinkError(path)
    return path


def real(root: pathlib.Path) -> pathlib.Path:
    """The folder that the user named, which may be a link or end in dots, by its own name."""
    return pathlib.Path(os.path.realpath(root)) if root.is_symlink() or root.name in ("", "..") else root


def write(path: pathlib.Path, text: str, *, durable: bool = True) -> None:
    """Replace a file by one with this text, in one step. `durable`: it is on the disk when this returns.

    Raises OSError and leaves the old file as it was where the disk refuses.
    """
    with enter(path.parent) as folder:
        folder.write(path.name, text.encode(), durable=durable)


def create(path: pathlib.Path, text: str) -> bool:
    """The same for a file that must not exist yet; False where it does."""
    with enter(path.parent) as folder:
        return folder.create(path.name, text.encode())


def write_table(path: pathlib.Path, table: dict[str, Any], *, durable: bool = True) -> None:
    """A JSON table in a file, see `write`."""
    write(path, json.dumps(jsonable(table), indent=1, allow_nan=False) + "\n", durable=durable)


def read_text(path: pathlib.Path, limit: int = SIZE) -> str:
    """A text file. Raises OSError where it cannot be read, ValueError where it is too large, a link, or not UTF-8."""
    with enter(path.parent) as folder:
        return decoded(folder.read(path.name, limit), path)


def read_table(path: pathlib.Path) -> dict[str, Any]:
    """The JSON table in a file, with a schema that this code reads.

    Raises OSError where the file cannot be read, and ValueError, naming it, where it is damaged, a link, or (its subclass
    NewerError) of a newer schema.
    """
    return parse_table(read_text(path), path)


def parse_table(text: str, path: pathlib.Path) -> dict[str, Any]:
    """The JSON table in the text of a file."""
    try:
        table = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged or no JSON: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path} is damaged: it must hold a table, got {shown(table)}")
    schema = table.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise ValueError(
            f"{path} is damaged: it must have a schema version, a whole number of at least 1, got {shown(schema)}"
        )
    if schema > SCHEMA:
        raise NewerError(str(path), schema, SCHEMA)
    return table


def sweep_up(directory: pathlib.Path) -> None:
    """Remove unfinished temporary files of killed processes from a folder to which no other process writes."""
    with enter(directory) as folder:
        for name in folder.names():
            if name.startswith(".") and name.endswith(PARTIAL):
                folder.remove(name)


def check_writable(folder: pathlib.Path) -> None:
    """Make a folder and try it. Raises ValueError where it cannot be made, written to, or has no space left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with enter(folder) as tried:
            probe = f".probe-{os.getpid()}{PARTIAL}"
            tried.write(probe, b"\0" * 2**16)
            tried.remove(probe)
    except OSError as error:
        raise ValueError(f"results cannot be written to {folder}: {error.strerror or error}") from None


def check_could_write(folder: pathlib.Path) -> None:
    """Raise ValueError where a folder could not be made or written to, without trying it."""
    nearest = next((path for path in (folder, *folder.absolute().parents) if path.exists()), pathlib.Path("/"))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        number = errno.EACCES if nearest.is_dir() else errno.EEXIST if nearest == folder else errno.ENOTDIR
        raise ValueError(f"results cannot be written to {folder}: {os.strerror(number)}")


@contextlib.contextmanager
def opened(path: pathlib.Path, flags: int) -> Iterator[int]:
    """A file descriptor, closed afterwards, of a file that is no link."""
    with enter(path.parent) as folder, folder.opened(path.name, flags) as descriptor:
        yield descriptor
