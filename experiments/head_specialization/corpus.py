"""Python source that a language model was never trained on, in windows of bytes, with the links inside each window.

    found = read_sources(Text())                   the test files of the standard library, parsed
    windows = cut(found.sources, 128, per_file=4)  [W, 128] bytes, and where brackets and names point

A file belongs to the split that `tasks/text.py` gives it. Windows of one file are parts of one document.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attnjax.tasks.text import Text, files_of
from attnjax.typing import Bool, Int
from experiments.head_specialization.names import name_links
from experiments.head_specialization.source import Link, bracket_links, inside, parse


class Source(NamedTuple):
    """One file: its name in the folder, its bytes, and its links, both kinds."""

    name: str
    data: bytes
    brackets: list[Link]
    names: list[Link]


class Sources(NamedTuple):
    """The files that could be read, and (name, why) of those that could not."""

    sources: list[Source]
    skipped: list[tuple[str, str]]


class Windows(NamedTuple):
    """Windows of equal length: their bytes, the document of each, and targets [W, T, T] of brackets and of names."""

    tokens: Int[np.ndarray, "W T"]
    document: Int[np.ndarray, " W"]
    bracket: Bool[np.ndarray, "W T T"]
    name: Bool[np.ndarray, "W T T"]


def read_source(name: str, data: bytes) -> Source:
    """One file with its links. Raises ValueError, with the reason, for what is no Python in UTF-8."""
    tree = parse(data)
    return Source(name, data, bracket_links(data), name_links(data, tree))


def read_sources(text: Text, split: str = "test", files: int | None = None) -> Sources:
    """The files of a split, in the order in which `Text` reads them, the first `files` that are Python.

    Raises ValueError for a single file, which is split by place, for a missing folder, and where no file is left.
    """
    found, skipped = [], []
    for name, data in held_out(text, split):
        if len(found) == files:
            break
        try:
            found.append(read_source(name, data))
        except ValueError as error:
            skipped.append((name, str(error)))
    if not found:
        raise ValueError(f"no file of the {split} split of {text} is Python in UTF-8; {len(skipped)} were skipped")
    return Sources(found, skipped)


def held_out(text: Text, split: str) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of every file that `text.for_split(split)` reads, in its order."""
    if split not in ("validation", "test"):
        raise ValueError(f"split must be validation or test, which training never reads, got {split!r}")
    if not text.root.is_dir():
        raise ValueError(f"documents are files of a folder; {text.path!r} is none")
    for file in files_of(text.path, split, text.pattern, text.split_by):
        yield file.relative_to(text.root).as_posix(), file.read_bytes()


def cut(sources: Sequence[Source], length: int, per_file: int = 4) -> Windows:
    """At most `per_file` windows of `length` bytes from each file, evenly spread over it, none upon another.

    Links count where they lie inside a window as a whole. Shorter files have none; ValueError where all are shorter.
    """
    parts = [
        (number, start)
        for number, source in enumerate(sources)
        for start in _starts(len(source.data), length, per_file)
    ]
    if not parts:
        raise ValueError(f"none of the {len(sources)} files has {length} bytes")
    bytes_of = lambda number, start: np.frombuffer(sources[number].data, np.uint8, length, start)
    masks = lambda kind: np.stack(
        [as_mask(inside(getattr(sources[number], kind), start, start + length), length) for number, start in parts]
    )
    tokens = np.stack([bytes_of(number, start) for number, start in parts]).astype(np.int32)
    return Windows(tokens, np.array([number for number, _ in parts]), masks("brackets"), masks("names"))


def as_mask(links: Sequence[Link], length: int) -> Bool[np.ndarray, "T T"]:
    """Links as targets: row i is true at the keys it points to. Raises ValueError for a link that does not fit."""
    mask = np.zeros((length, length), bool)
    for link in links:
        if not 0 <= link.start < link.stop <= length or not 0 <= link.row < length:
            raise ValueError(f"{link} does not lie in {length} tokens")
        mask[link.row, link.start : link.stop] = True
    return mask


def _starts(size: int, length: int, per_file: int) -> list[int]:
    """Where the windows of a file begin: in the middle of as many equal parts."""
    count = min(per_file, size // length)
    return [(2 * i + 1) * size // (2 * count) - length // 2 for i in range(count)] if count else []
