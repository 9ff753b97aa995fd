"""Facts planted in a text: a line of four rare bytes, and further on a line that asks for them one by one.

    ...
    abcd                    a, b, c, d: one value each of four of the 12 kinds
    ... some hundred bytes of the text ...
    AaBbCcDd                A: the byte that asks for the kind of a; what follows it can be known only from the first line

Every kind has one byte that asks for it and eight that are its values, and none of them stands in Python's source, or hardly
ever. To answer, a model has to find the one byte of that kind before, wherever it is. Models are trained on text with such
pairs, so that looking back is part of the language, and are asked for one needle in plain text.
"""

import bisect
import pathlib

import numpy as np

from attnjax.tasks.text import read

KINDS, VALUES, ASKED = 12, 8, 4
"""Kinds of facts, values of each, and how many kinds a line has."""
REPEATS = 3
"""Lines that ask for the same facts in another order, one after another: all but the first are easy, and teach to copy."""
SPACING = 3 / 8
"""Bytes of text for each group of lines, as a share of the length."""
QUESTIONS = (*range(1, 9), *range(14, 18))
"""The byte that asks for each kind: control characters that no text has."""
FIRST_VALUE = 128
"""Values of kind k are the eight bytes from this plus 8 k on."""
NEAREST = 8
"""The fewest bytes of text between the two lines of a pair."""
ROOM = 48
"""Bytes of a window that are kept free of the gap between the lines of a pair, so that most windows hold both."""
CAP = 4 * 2**20
"""Most bytes of the standard library that are read for training."""


def fact(generator: np.random.Generator) -> tuple[bytes, list[bytes]]:
    """A line that states four values, and `REPEATS` lines that ask for them, each without its end."""
    kinds = generator.permutation(KINDS)[:ASKED].tolist()
    values = {kind: FIRST_VALUE + VALUES * kind + int(generator.integers(VALUES)) for kind in kinds}
    orders = [generator.permutation(kinds).tolist() for _ in range(REPEATS)]
    return bytes(values.values()), [
        bytes(byte for kind in one for byte in (QUESTIONS[kind], values[kind])) for one in orders
    ]


def plant(text: bytes, length: int, seed: int) -> bytes:
    """The text with facts at ends of lines, in windows of `length` mostly stated and asked for.

    A statement is anywhere, and `NEAREST` to `length - ROOM` bytes of text stand between it and what asks for it, apart from
    the way to the next end of a line.
    """
    generator = np.random.default_rng(seed)
    ends = [place + 1 for place, byte in enumerate(text) if byte == ord("\n")] or [len(text)]
    lines: list[tuple[int, int, bytes]] = []
    for pair, start in enumerate(generator.integers(0, len(text), int(len(text) / (SPACING * length))).tolist()):
        gap = int(generator.integers(NEAREST, max(length - ROOM, NEAREST) + 1))
        first = _end(ends, start)
        stated, asked = fact(generator)
        lines += [(first, pair, stated + b"\n"), (_end(ends, first + gap), pair, b"\n".join(asked) + b"\n")]
    parts, last = [], 0
    for place, _, line in sorted(lines, key=lambda one: one[:2]):
        parts += [text[last:place], line]
        last = place
    return b"".join([*parts, text[last:]])


def write(path: pathlib.Path, length: int, cap: int = CAP) -> None:
    """A file with the training files of the standard library and pairs in them, unless it is there already."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(plant(read(None, "train", "*", cap), length, seed=0))
        partial.replace(path)


def _end(ends: list[int], place: int) -> int:
    """The first end of a line at or after a place, or the last one."""
    return ends[min(bisect.bisect_left(ends, place), len(ends) - 1)]
