"""Damage to the bytes and lines of a file. Each function takes (draw, path), and returns in words what it did."""

import json
import os
import pathlib
import random

from tests.fuzz import values

Draw = random.Random
LONG = 3 * 2**20
SPARSE = 2**29


def flip(draw: Draw, path: pathlib.Path) -> str:
    data = bytearray(path.read_bytes())
    if not data:
        return "nothing to flip"
    places = [draw.randrange(8 * len(data)) for _ in range(draw.choice((1, 1, 1, 8)))]
    for place in places:
        data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
    return f"flipped bits {places}"


def truncate(draw: Draw, path: pathlib.Path) -> str:
    size = int(path.stat().st_size * draw.random())
    os.truncate(path, size)
    return f"cut to {size} bytes"


def empty(draw: Draw, path: pathlib.Path) -> str:
    os.truncate(path, 0)
    return "emptied"


def overwrite(draw: Draw, path: pathlib.Path) -> str:
    data = bytearray(path.read_bytes())
    start, size = draw.randrange(len(data) + 1), draw.choice((1, 16, 600))
    block = draw.choice((bytes(size), b"\xff" * size, draw.randbytes(size)))
    insert = draw.random() < 0.3
    data[start : start if insert else start + size] = block
    path.write_bytes(data)
    return f"{'inserted' if insert else 'overwrote with'} {size} bytes at {start}"


def grow(draw: Draw, path: pathlib.Path) -> str:
    """Half a gigabyte of zeros without an end of line, of which the disk holds nothing."""
    os.truncate(path, SPARSE)
    return f"made a sparse file of {SPARSE} bytes"


BYTES = (flip, flip, flip, truncate, truncate, empty, overwrite, overwrite)


def tear(draw: Draw, path: pathlib.Path) -> str:
    lines, number = _lines(draw, path)
    lines[number] = lines[number][: draw.randrange(len(lines[number]) + 1)]
    return _write(path, lines, f"tore line {number}")


def repeat(draw: Draw, path: pathlib.Path) -> str:
    lines, number = _lines(draw, path)
    lines.insert(draw.randrange(len(lines)), lines[number])
    return _write(path, lines, f"repeated line {number}")


def lose(draw: Draw, path: pathlib.Path) -> str:
    lines, number = _lines(draw, path)
    del lines[number]
    return _write(path, lines, f"deleted line {number}")


def shuffle(draw: Draw, path: pathlib.Path) -> str:
    lines, _ = _lines(draw, path)
    draw.shuffle(lines)
    return _write(path, lines, "shuffled the lines")


def change_line(draw: Draw, path: pathlib.Path) -> str:
    """One value of one line, its JSON sound."""
    lines, number = _lines(draw, path)
    try:
        table = json.loads(lines[number])
    except (ValueError, RecursionError):
        return "no JSON to change"
    what, text = values.change(draw, table)
    lines[number] = text.encode("utf-8", "surrogatepass") + b"\n"
    return _write(path, lines, f"line {number}: {what}")


def add_line(draw: Draw, path: pathlib.Path) -> str:
    """A line of 3 MB, or 100,000 deep, or with numbers that no JSON has, or from the future, or with markup."""
    lines, number = _lines(draw, path)
    kinds = {
        "a long line": b'{"step": 1, "x": "' + b"x" * LONG + b'"}',
        "a long line of no JSON": b"x" * LONG,
        "a deep line": b"[" * 100_000,
        "NaN": b'{"schema": 1, "step": NaN, "loss": Infinity, "value": -Infinity}',
        "a later schema": b'{"schema": 3, "step": 1}',
        "markup": json.dumps({"step": 2, "metric": values.MARKUP, "value": 0.5, "length": 2}).encode(),
        "zeros": bytes(5000),
    }
    kind = draw.choice(sorted(kinds))
    lines.insert(number, kinds[kind] + b"\n")
    return _write(path, lines, f"inserted {kind} at {number}")


LINES = (tear, repeat, lose, shuffle, change_line, change_line, add_line)


def _lines(draw: Draw, path: pathlib.Path) -> tuple[list[bytes], int]:
    lines = path.read_bytes().splitlines(keepends=True) or [b"\n"]
    return lines, draw.randrange(len(lines))


def _write(path: pathlib.Path, lines: list[bytes], what: str) -> str:
    path.write_bytes(b"".join(lines))
    return what
