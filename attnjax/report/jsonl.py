"""Read the JSON files of a sweep when part of them may be torn, foreign, damaged or missing.

Damage is never fatal: what cannot be read is returned as `Skipped` beside what can, and a torn line loses that line
only. The one thing refused is a record of a newer schema, because reading it as an old one could give a wrong number.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
"""The newest record layout that this version understands."""

MAX_OBJECT = 16 * 2**20
MAX_LOG = 2**30
MAX_LINE = 2**20
"""Bytes beyond which a file or a line is not read: no sweep writes that much into one."""

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Skipped:
    """Something in the directory that was not used: a path relative to it, a line (None for a whole file), and why."""

    path: str
    line: int | None
    reason: str


@dataclass(frozen=True)
class Source:
    """A file below the root of a sweep."""

    root: Path
    path: Path

    @property
    def name(self) -> str:
        return printable(self.path.relative_to(self.root).as_posix())

    def readable(self, most: int) -> bool:
        """Whether this is an ordinary file of at most so many bytes; a link could lead anywhere and is not followed."""
        return self.path.is_file() and not self.path.is_symlink() and self.path.stat().st_size <= most

    def skip(self, reason: str, line: int | None = None) -> Skipped:
        """A note that this file, or one line of it, was left out."""
        return Skipped(self.name, line, reason)


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


def read_object(source: Source) -> tuple[dict[str, Any], list[Skipped]]:
    """The JSON object in a file, empty where there is none; raises `ValueError` for a newer schema."""
    if not source.path.exists():
        return {}, [source.skip("is missing")]
    if not source.readable(MAX_OBJECT):
        return {}, [source.skip(f"is not a file of at most {MAX_OBJECT // 2**20} MiB, or is a link")]
    try:
        value = parse(source.path.read_bytes())
    except OSError as error:
        return {}, [source.skip(f"cannot be read: {error.strerror}")]
    if isinstance(value, str):
        return {}, [source.skip(value)]
    refuse_newer(value, source.name)
    return value, []


def read_lines(source: Source) -> tuple[list[tuple[int, dict[str, Any]]], list[Skipped]]:
    """(line number, JSON object) for every sound line of an append-only log; raises `ValueError` for a newer schema."""
    if not source.path.exists():
        return [], []
    if not source.readable(MAX_LOG):
        return [], [source.skip(f"is not a file of at most {MAX_LOG // 2**30} GiB, or is a link")]
    records, skipped = [], []
    try:
        for line, raw in numbered(source.path):
            value = "is longer than any record" if len(raw) > MAX_LINE else parse(raw)
            if isinstance(value, str):
                torn = "" if raw.endswith(b"\n") else " (a torn last line)"
                skipped.append(source.skip(value + torn, line))
            else:
                refuse_newer(value, f"{source.name}, line {line},")
                records.append((line, value))
    except OSError as error:
        skipped.append(source.skip(f"cannot be read: {error.strerror}"))
    return records, skipped


def numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, bytes with their end of line) for every line that is not blank."""
    with path.open("rb") as file:
        for line, raw in enumerate(file, 1):
            if raw.strip():
                yield line, raw
