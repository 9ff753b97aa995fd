"""Windows of Python source that no model was trained on, and which bracket closes which in them, to the byte.

The truth is Python's own `tokenize`, which reads source and never runs it. Offsets count bytes, since the models read bytes.
"""

import io
import tokenize
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from attnjax.tasks.text import Text, files_of
from attnjax.typing import Bool, Int

OPENING, CLOSING = "([{", ")]}"
BOM = b"\xef\xbb\xbf"


class Windows(NamedTuple):
    """Windows of equal length: their bytes, the file of each, and from each closing bracket the one that it closes."""

    tokens: Int[np.ndarray, "W T"]
    document: Int[np.ndarray, " W"]
    bracket: Bool[np.ndarray, "W T T"]


def bracket_links(data: bytes) -> list[tuple[int, int]]:
    """Returns (closing, opening) of each pair of brackets; those in strings and comments are text and left out.

    Raises ValueError for what is no Python source in UTF-8.

    Example:
      >>> bracket_links(b"f([1], '(')")
      [(4, 2), (10, 1)]
    """
    lines = data.removeprefix(BOM).splitlines(keepends=True)
    starts = [*accumulate(map(len, lines), initial=len(data) - len(data.removeprefix(BOM)))]
    open_, found = [], []
    for text, (line, column) in _operators(data):
        place = starts[line - 1] + len(lines[line - 1].decode()[:column].encode())
        if text in OPENING:
            open_.append((text, place))
        elif text in CLOSING:
            kind, start = open_.pop() if open_ else ("", 0)
            if not kind or OPENING.index(kind) != CLOSING.index(text):
                raise ValueError(f"{text!r} on line {line} closes nothing")
            found.append((place, start))
    return found


def _operators(data: bytes) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields each operator outside of strings with its line and column. Since Python 3.12 an f-string is many tokens."""
    depth = 0
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            name = tokenize.tok_name[token.type]
            depth += name.endswith("STRING_START") - name.endswith("STRING_END")
            if token.type == tokenize.OP and not depth:
                yield token.string, token.start
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"no Python source: {error}") from None


def held_out(text: Text, length: int, per_file: int = 8, files: int | None = None) -> Windows:
    """Returns windows of the files of the validation and the test split, evenly spread over each, none upon another.

    Brackets count where both lie inside a window. Files that are no Python source are left out, and `files` of each split
    are read at most. Raises ValueError where no file has `length` bytes.
    """
    tokens, document, masks = [], [], []
    for number, data, links in _sources(text, files):
        count = min(per_file, len(data) // length)
        for i in range(count):
            start = (2 * i + 1) * len(data) // (2 * count) - length // 2
            mask = np.zeros((length, length), bool)
            for closing, opening in links:
                if start <= opening and closing < start + length:
                    mask[closing - start, opening - start] = True
            tokens.append(np.frombuffer(data, np.uint8, length, start))
            document.append(number)
            masks.append(mask)
    if not tokens:
        raise ValueError(f"no file of {text} that is not trained on has {length} bytes")
    return Windows(np.stack(tokens).astype(np.int32), np.array(document), np.stack(masks))


def _sources(text: Text, files: int | None) -> Iterator[tuple[int, bytes, list[tuple[int, int]]]]:
    """Yields the number, the bytes and the brackets of each file that is not trained on."""
    number = 0
    for split in ("validation", "test"):
        for path in files_of(text.path, split, text.pattern, text.split_by)[:files]:
            data = path.read_bytes()
            try:
                links = bracket_links(data)
            except ValueError:
                continue
            yield number, data, links
            number += 1
