"""What stands where in Python source, to the byte: which bracket closes which, and where a name was defined.

The truth is Python's own `tokenize` and `ast`, which read source and never run it. Offsets count bytes of the file, since
the models read bytes: a character beyond ASCII is several. Files that Python cannot parse, or that are not UTF-8, are
skipped and said so.
"""

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

OPENING, CLOSING = "([{", ")]}"
ENCODINGS = ("utf-8", "utf-8-sig", "ascii")
BOM = b"\xef\xbb\xbf"
LONE_RETURN = re.compile(rb"\r(?!\n)")


class Link(NamedTuple):
    """From one byte, `row`, to the bytes start .. stop - 1 before it."""

    row: int
    start: int
    stop: int


class Lines:
    """The lines of a file, and where each begins. Raises ValueError for bytes that cannot be told apart into lines."""

    def __init__(self, data: bytes):
        if LONE_RETURN.search(data):
            raise ValueError("has a carriage return that ends no line")
        self.lines = data.splitlines(keepends=True) or [b""]
        self.starts = [0, *accumulate(map(len, self.lines))]
        if data.startswith(BOM):
            # Python drops the mark before it counts columns.
            self.lines[0], self.starts[0] = self.lines[0][len(BOM) :], len(BOM)

    def byte(self, line: int, column: int) -> int:
        """The offset of a place that `ast` gives: lines from 1, columns in bytes from 0."""
        return self.starts[line - 1] + column

    def character(self, line: int, column: int) -> int:
        """The offset of a place that `tokenize` gives: lines from 1, columns in characters from 0."""
        text = self.lines[line - 1] if line <= len(self.lines) else b""
        return self.byte(line, column if text.isascii() else len(text.decode("utf-8")[:column].encode("utf-8")))


def parse(data: bytes) -> ast.Module:
    """The syntax tree of a file. Raises ValueError, with the reason, where it is not UTF-8 or not Python."""
    with warnings.catch_warnings():
        # An invalid escape in a string of somebody else's file is no concern of ours.
        warnings.simplefilter("ignore")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            if encoding not in ENCODINGS:
                raise ValueError(f"is written in {encoding}, not UTF-8")
            return ast.parse(data)
        except SyntaxError as error:
            raise ValueError(f"is no Python: {error.msg}, line {error.lineno}") from None
        except (RecursionError, MemoryError) as error:
            raise ValueError(f"is too deeply nested: {type(error).__name__}") from None


def bracket_links(data: bytes) -> list[Link]:
    """From each closing bracket to the bracket it closes, in the order of the closing ones.

    Brackets in strings, f-strings and comments are text and left out. Raises ValueError for source that is no Python.
    """
    lines, open_, found = Lines(data), [], []
    for text, place in _operators(data):
        if text in OPENING:
            open_.append((text, lines.character(*place)))
        elif text in CLOSING:
            kind, start = open_.pop() if open_ else ("", 0)
            if not kind or OPENING.index(kind) != CLOSING.index(text):
                raise ValueError(f"has a {text!r} on line {place[0]} that closes nothing")
            found.append(Link(lines.character(*place), start, start + 1))
    return found


def inside(links: Iterable[Link], start: int, stop: int) -> list[Link]:
    """The links that lie in the bytes start .. stop - 1 as a whole, counted from `start`."""
    kept = (link for link in links if start <= link.start and link.stop <= stop and start <= link.row < stop)
    return [Link(*(place - start for place in link)) for link in kept]


def _operators(data: bytes) -> Iterator[tuple[str, tuple[int, int]]]:
    """(operator, place) of every operator outside of strings. Since Python 3.12 an f-string is many tokens."""
    depth = 0
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            name = tokenize.tok_name[token.type]
            depth += name.endswith("STRING_START") - name.endswith("STRING_END")
            if token.type == tokenize.OP and not depth:
                yield token.string, token.start
    except (tokenize.TokenError, SyntaxError) as error:
        raise ValueError(f"is no Python: {error.args[0]}") from None
