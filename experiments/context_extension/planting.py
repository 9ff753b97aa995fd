"""Facts planted in a text, and contexts in which one is asked for.

    ...
    abcd                    a, b, c, d: one value each of four of the 12 kinds
    ... some hundred bytes of the text ...
    AaBbCcDd                A: the byte that asks for the kind of a; what follows it can be known only from the first line

Every kind has one byte that asks for it and eight that are its values; none of them stands in Python's source, or hardly ever.
Models are trained on text with such pairs, so that looking back is part of the language, and are asked for one in plain text.
"""

import bisect
import pathlib
from typing import NamedTuple

import numpy as np

from attnjax.tasks import Text
from attnjax.typing import Int

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
NEAREST, ROOM = 8, 48
"""The fewest bytes of text between the lines of a pair, and bytes of a window that are kept free of that gap."""
CAP = 4 * 2**20
"""Most bytes of the standard library that are read for training."""
KEY = 2306_15595
"""Of every draw: the same contexts for each model and each method."""


def fact(generator: np.random.Generator) -> tuple[bytes, list[bytes]]:
    """Returns a line that states four values, and `REPEATS` lines that ask for them, each without its end."""
    kinds = generator.permutation(KINDS)[:ASKED].tolist()
    values = {kind: FIRST_VALUE + VALUES * kind + int(generator.integers(VALUES)) for kind in kinds}
    orders = [generator.permutation(kinds).tolist() for _ in range(REPEATS)]
    asked = [bytes(byte for kind in order for byte in (QUESTIONS[kind], values[kind])) for order in orders]
    return bytes(values.values()), asked


def plant(text: bytes, length: int, seed: int) -> bytes:
    """Returns the text with facts at ends of lines, in windows of `length` mostly stated and asked for.

    `NEAREST` to `length - ROOM` bytes of text stand between a statement and what asks for it, apart from the way to the next
    end of a line.
    """
    generator = np.random.default_rng(seed)
    ends = [place + 1 for place, byte in enumerate(text) if byte == ord("\n")] or [len(text)]
    end_at = lambda place: ends[min(bisect.bisect_left(ends, place), len(ends) - 1)]
    lines: list[tuple[int, int, bytes]] = []
    for pair, start in enumerate(generator.integers(0, len(text), int(len(text) / (SPACING * length))).tolist()):
        gap, first = int(generator.integers(NEAREST, max(length - ROOM, NEAREST) + 1)), end_at(start)
        stated, asked = fact(generator)
        lines += [(first, pair, stated + b"\n"), (end_at(first + gap), pair, b"\n".join(asked) + b"\n")]
    parts, last = [], 0
    for place, _, line in sorted(lines, key=lambda one: one[:2]):
        parts += [text[last:place], line]
        last = place
    return b"".join([*parts, text[last:]])


def write(path: pathlib.Path, length: int, cap: int = CAP) -> None:
    """Writes the training files of the standard library with facts in them, unless the file is there already."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(plant(np.asarray(Text(cap=cap).data).tobytes(), length, seed=0))
        partial.replace(path)


class Haystack(NamedTuple):
    """Contexts with a needle: rows of `length` + 1 bytes that end with the answers; `counted` marks these."""

    tokens: Int[np.ndarray, "B T+1"]
    counted: Int[np.ndarray, "B T"]


def haystack(text: Int[np.ndarray, " n"], length: int, depth: float, count: int, longest: int) -> Haystack:
    """Returns contexts with the statement at `depth` of the text before the question: 0 is its start, 1 its end.

    Facts are the same at every length up to `longest` and at every depth, and so is the text right before the question.
    Raises ValueError for a length that cannot hold a fact.
    """
    generator = np.random.default_rng(KEY)
    rows, marks = [], []
    for _ in range(count):
        stated, (asked, *_) = fact(generator)
        end = longest + int(generator.random() * (len(text) - longest))
        room = length - len(stated) - len(asked) - 1
        if room < 2:
            raise ValueError(f"a context of {length} bytes cannot hold a fact of {len(stated) + len(asked) + 2}")
        filler = text[end - room : end].tolist()
        breaks = [0, *(i + 1 for i, byte in enumerate(filler) if byte == ord("\n"))]
        at = min(breaks, key=lambda one: abs(one - round(depth * room)))
        rows.append([*filler[:at], *stated, ord("\n"), *filler[at:], ord("\n"), *asked])
        marks.append([0] * (length - len(asked) + 1) + [(place + 1) % 2 for place in range(len(asked) - 1)])
    return Haystack(np.array(rows, np.int32), np.array(marks, np.int32))
