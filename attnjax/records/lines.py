"""Lines of a file of records: a JSON table each, which ends with the CRC-32 of the bytes before its last key.

    {"schema":2,"step":100,"loss":0.25,"crc32":"89abcdef"}

The end, `,"crc32":"` with eight hex digits and `"}`, is the same in all schemas from 2 on, so that a version can tell a
damaged line from one of a newer version. A line of schema 1 has no checksum: it is read, and said to be without.
"""

import itertools
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from attnjax.config.files import parse_json
from attnjax.config.options import shown
from attnjax.records.files import NewerError
from attnjax.records.values import jsonable

SCHEMA = 2
"""Version of a line; configs, manifests and the other files have their own."""

LONGEST, MOST, LARGEST = 2**20, 2**21, 2**28
"""Bytes of a line, lines of a file, and bytes of a file, beyond which it is not read: no run writes that much."""

CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"}')
WIDTH = len(',"crc32":"89abcdef"}')


class Line(NamedTuple):
    """A line: its number from 1, and its table or why it has none. `checked`: its checksum was found and is right.

    `raw` is the line as it stands in the file, of a line longer than `LONGEST` only its start.
    """

    number: int
    raw: bytes
    table: dict[str, Any] | None
    problem: str
    checked: bool


def text(record: Mapping[str, Any]) -> str:
    """The line of a record, with its end of line. Raises ValueError where it is longer than any line that is read."""
    table = jsonable({"schema": SCHEMA, **record})
    body = json.dumps(table, separators=(",", ":"), allow_nan=False)[:-1]
    if len(body) + WIDTH > LONGEST:
        raise ValueError(f"a record must have at most {LONGEST} bytes, got one of {len(body) + WIDTH}: {shown(body)}")
    return f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}\n'


def read(descriptor: int) -> Iterator[Line]:
    """Each line of an open file that is not blank.

    Raises ValueError where the file is larger than `LARGEST` or has more than `MOST` lines, and its subclass NewerError for
    a line with a right checksum that is of a newer schema.
    """
    for number, raw in numbered(descriptor):
        try:
            table, checked = decoded(raw)
        except DamagedError as error:
            yield Line(number, raw, None, str(error), False)
        else:
            if table["schema"] > SCHEMA:
                raise NewerError(f"line {number}", table["schema"], SCHEMA)
            yield Line(number, raw, table, "", checked)


def numbered(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes with the end of line) of each line that is not blank; of a longer one the start alone.

    Raises ValueError as `read` does for what is too large.
    """
    if os.fstat(descriptor).st_size > LARGEST:
        raise ValueError(f"is larger than {LARGEST // 2**20} MiB, more than is read")
    with open(descriptor, "rb", closefd=False) as file:
        for number in itertools.count(1):
            line = rest = file.readline(LONGEST + 1)
            if not line:
                return
            if number > MOST:
                raise ValueError(f"has more than {MOST} lines, more than are read")
            while len(rest) > LONGEST and not rest.endswith(b"\n"):
                rest = file.readline(LONGEST + 1)
            if line.strip():
                yield number, line


class DamagedError(ValueError):
    """A line that is no record."""


def decoded(raw: bytes) -> tuple[dict[str, Any], bool]:
    """The table of a line, without its checksum, and whether it had one. Raises DamagedError where it is none.

    A table of schema 1 may have no checksum. Of a line that ends as one with a checksum, the checksum must be right.
    """
    if len(raw) > LONGEST:
        raise DamagedError(f"is longer than {LONGEST} bytes")
    line = raw.removesuffix(b"\n").removesuffix(b"\r")
    found = CHECKSUM.fullmatch(line[-WIDTH:])
    if found and int(found[1], 16) != zlib.crc32(line[:-WIDTH]):
        raise DamagedError("is damaged: its checksum does not agree")
    try:
        table = parse_json((line[:-WIDTH] + b"}" if found else line).decode("utf-8"))
    except UnicodeDecodeError:
        raise DamagedError("is not UTF-8 text") from None
    except json.JSONDecodeError:
        torn = "" if raw.endswith(b"\n") else " (a torn last line)"
        raise DamagedError(f"is not JSON{torn}") from None
    except ValueError as error:
        raise DamagedError(f"is damaged: {error}") from None
    if not isinstance(table, dict):
        raise DamagedError("is not a JSON object")
    schema = table.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise DamagedError(f"has no schema version, got {shown(schema)}")
    if not found and schema > 1:
        raise DamagedError(f"is damaged: it has no checksum, as lines of schema {schema} have")
    return table, found is not None
