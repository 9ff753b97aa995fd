"""Read the JSON files of a sweep when part of them may be torn, foreign, damaged or missing.

Damage is never fatal: what cannot be read is returned as `Skipped` beside what can, and a torn line loses that line
only. The one thing refused is a record of a newer schema, because reading it as an old one could give a wrong number.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnjax.folder import Folder
from attnjax.sweep import lines

SCHEMA = 1
"""The newest layout of a JSON file that this version understands; lines of logs have their own, see `sweep.lines`."""

MAX_OBJECT = 16 * 2**20
"""Bytes beyond which a JSON file is not read: no sweep writes that much into one."""

TOLD = 100
"""Lines of one file that are told as skipped one by one."""

LINK = "is a link, which is not followed"
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Skipped:
    """Something in the directory that was not used: a path relative to it, a line (None for a whole file), and why."""

    path: str
    line: int | None
    reason: str


class Source:
    """A file in an open folder; `above` is the way from the root of the sweep to this folder, "" for the root."""

    def __init__(self, folder: Folder, file: str, above: str = ""):
        self.folder, self.file, self.name = folder, file, printable(f"{above}/{file}" if above else file)

    def skip(self, reason: str, line: int | None = None) -> Skipped:
        """A note that this file, or one line of it, was left out."""
        return Skipped(self.name, line, reason)

    def unreadable(self, error: Exception) -> Skipped:
        """A note that this file was left out. The full path, which an error begins with, stays out of a report."""
        reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return self.skip(reason.removeprefix(f"{self.folder.path / self.file} "))


def printable(text: str) -> str:
    """The text with U+FFFD for what no file should hold: lone surrogates, control characters, and reversals of
    direction.
    """
    return UNPRINTABLE.sub("\ufffd", text)


def clean(value: Any) -> Any:
    """A JSON value whose strings, keys included, are all `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list) else value


def parse(raw: bytes) -> dict[str, Any] | str:
    """One JSON object, or a sentence that says why the bytes are none."""
    try:
        value = clean(json.loads(raw.decode("utf-8")))
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    except (ValueError, RecursionError):
        return "is not JSON"
    return value if isinstance(value, dict) else "is not a JSON object"


def refuse_newer(record: Mapping[str, Any], place: str) -> None:
    """Raise `ValueError` for a record of a schema that this version does not know."""
    schema = record.get("schema", SCHEMA)
    if isinstance(schema, int | float) and not isinstance(schema, bool) and schema > SCHEMA:
        raise ValueError(
            f"{place} was written by a newer version of attnjax: it has schema {schema}, and this version reads "
            f"schemas up to {SCHEMA}. Update attnjax, or report with the version that wrote the records."
        )


def read_bytes(source: Source) -> bytes | Skipped:
    """The content of a file, or why it was left out."""
    try:
        return source.folder.read(source.file, MAX_OBJECT)
    except FileNotFoundError:
        return source.skip("is missing")
    except (OSError, ValueError) as error:
        return source.unreadable(error)


def read_object(source: Source) -> tuple[dict[str, Any], list[Skipped]]:
    """The JSON object in a file, empty where there is none; raises `ValueError` for a newer schema."""
    raw = read_bytes(source)
    value = raw if isinstance(raw, Skipped) else parse(raw)
    if isinstance(value, Skipped | str):
        return {}, [source.skip(value) if isinstance(value, str) else value]
    refuse_newer(value, source.name)
    return value, []


def read_lines(source: Source) -> Iterator[lines.Line]:
    """Each line of an append-only log that is not blank, none where it is missing, its text made `printable`.

    Raises OSError where it cannot be read, ValueError where it is a link or too large, or was written by a newer version.
    """
    try:
        with source.folder.opened(source.file) as descriptor:
            for line in lines.read(descriptor):
                yield line._replace(table=clean(line.table))
    except FileNotFoundError:
        return
