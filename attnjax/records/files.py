"""Reads and writes JSON and text files of a folder of runs.

A file that cannot be read or written is an `OSError` with its name; a file with wrong content is a `ValueError`.
"""

import json
import os
import pathlib
from typing import Any, NamedTuple

from attnjax import safety
from attnjax.config.files import SIZE
from attnjax.config.kinds import shown
from attnjax.config.schema import SCHEMA
from attnjax.records.values import jsonable


class VersionError(ValueError):
    """Records that another version wrote: to read them as those of this one could give a wrong number."""


def newer(what: str, schema: int, known: int) -> VersionError:
    """Return the error of records that a newer version wrote."""
    return VersionError(
        f"{what} was written by a newer version of attnjax: it has schema {schema}, and this version reads schemas up "
        f"to {known}. Update attnjax"
    )


class Problem(NamedTuple):
    """Something that was not used: its path, why, and a line, None for the whole."""

    path: pathlib.Path
    reason: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path} {self.reason}" if self.line is None else f"{self.path}, line {self.line} {self.reason}"


def problem(path: pathlib.Path, error: Exception) -> Problem:
    """Return the problem that an error describes, without the path, with which most messages begin."""
    if isinstance(error, FileNotFoundError):
        return Problem(path, "is missing")
    if isinstance(error, OSError):
        return Problem(path, f"cannot be read: {error.strerror or error}")
    return Problem(path, str(error).removeprefix(f"{path} ").removeprefix(f"{path.parent} "))


def real(root: pathlib.Path) -> pathlib.Path:
    """Return the folder that the user named, which may be a link or end in dots, by its own name."""
    return pathlib.Path(os.path.realpath(root)) if root.is_symlink() or root.name in ("", "..") else root


def write_table(path: pathlib.Path, table: dict[str, Any], *, durable: bool = True) -> None:
    """Replace a file by one with this JSON table, in one step. `durable`: it is on the disk when this returns."""
    text = json.dumps(jsonable(table), indent=1, allow_nan=False) + "\n"
    safety.write(path, text.encode(), durable=durable)


def read_table(path: pathlib.Path, limit: int = SIZE) -> dict[str, Any]:
    """Return the JSON table in a file, with a schema that this code reads.

    Raises OSError where the file cannot be read, and ValueError, naming it, where it is damaged, a link, or (its subclass
    VersionError) of a newer schema.
    """
    return parse_table(safety.read_text(path, limit), path)


def parse_table(text: str, path: pathlib.Path) -> dict[str, Any]:
    """Return the JSON table in the text of a file."""
    try:
        table = safety.parse_json(text)
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
        raise newer(str(path), schema, SCHEMA)
    return table


def check_writable(folder: pathlib.Path) -> None:
    """Make a folder and write a file in it. Raises ValueError where that is impossible, or no space is left."""
    probe = folder / f".probe-{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        safety.write(probe, b"\0" * 2**16)
        probe.unlink()
    except OSError as error:
        raise ValueError(f"results cannot be written to {folder}: {error.strerror or error}") from None
