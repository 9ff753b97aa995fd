"""A language model over bytes: random crops of a file, of a folder, or of Python's own standard library.

    inputs = x[e - length : e]     targets = x[e - length + 1 : e + 1]     e uniform in length .. n - 1

x is one array of the n bytes of the split; a crop is a pure function of key and length. Crops of one key end at the same
byte whatever their length (unless one would begin before the text, and is drawn anew): a longer one is the same place with
more context. Compiled programs take x as an argument (`arrays` and `given`): an array of 8 bits on the device, and no
program carries the corpus inside. `Text.sha256` names the bytes: results from two corpora with the same digest compare,
and the standard library differs from one Python version to the next.

A folder is split by file: a stable hash of the file's relative path puts it into train (90 of 100), validation (5) or
test (5), and orders the files, so that `cap` keeps a fair sample. Each file is followed by a byte 0. A single file is
split by place: its first 90 %, the next 5 %, the last 5 %.

With `split_by="group"` files that share half of their long lines (`near_duplicates`) are placed together, by the hash of the
first of their names. Of the test bytes of Python 3.11's standard library that stand in lines of 20 bytes or more, 13 %
also occur as a line of a training file where files are placed alone, and 7 % where groups are: mostly lines that any Python
file may have.
"""

import dataclasses
import fnmatch
import functools
import hashlib
import itertools
import os
import stat
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.tasks.base import Alphabet, Example, Task
from attnjax.tasks.checks import check_choice, check_count
from attnjax.tasks.draws import padded, take
from attnjax.tasks.near_duplicates import groups, long_lines
from attnjax.typing import Array, ArrayLike, Int, Key

SPLITS = ("train", "validation", "test")
SPLIT_BY = ("file", "group")
BOUNDS = (0, 90, 95, 100)
"""Percent of the hash range, or of a single file, where each split begins and ends."""

MOST_BYTES = 2**31 - 1
"""Bytes of a split: the end of a crop is drawn as an int32."""

MOST_FILES = 200_000
"""Files of a folder: a whole disk that somebody names takes minutes to list."""

NOT_EVERYWHERE = ("site-packages", "dist-packages", "test", "tests", "__pycache__")
"""Folders of the standard library's path that depend on the installation."""


@dataclasses.dataclass(frozen=True)
class Text(Task):
    """Crops of `length` bytes, with the byte that follows each as its target. Aligned: targets[i] follows inputs[i].

    `path` is a file or a folder; None is the standard library's source. In a folder, `pattern` chooses files by name, and
    `split_by` says whether each "file" is placed in a split alone, or each "group" of near-duplicate files. The first `cap`
    bytes of the split are kept. Tokens are the 256 bytes, whatever they mean.

    Example:
      >>> Text(split="test").alphabet().inputs[97]
      'a'
    """

    path: str | None = None
    split: str = "train"
    pattern: str = "*"
    cap: int = 2**28
    split_by: str = "file"

    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("Text", "split", self.split, SPLITS)
        check_choice("Text", "split_by", self.split_by, SPLIT_BY)
        check_count("Text", maximum=MOST_BYTES, cap=self.cap)
        if self.path is not None and (not isinstance(self.path, str) or not self.path or "\0" in self.path):
            raise ValueError(f"Text: path must be the name of a file or folder, or None, got {self.path!r}")

    @functools.cached_property
    def data(self) -> ArrayLike:
        """All bytes of the split, uint8 [n], read once.

        Raises ValueError where the path is missing, unreadable or empty, or leaves nothing to this split.
        """
        data = np.frombuffer(self._read[0], np.uint8)
        if data.size < 2:
            raise ValueError(
                f"Text: nothing to read for the {self.split} split of {self._source} with {self.pattern!r}"
            )
        return data

    @functools.cached_property
    def documents(self) -> Int[np.ndarray, " n"]:
        """The number of the file that each byte of the split is from, in the order in which they are read."""
        sizes = self._read[1]
        return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    @functools.cached_property
    def _read(self) -> tuple[bytes, list[int]]:
        return read_files(self.path, self.split, self.pattern, self.cap, self.split_by)

    @functools.cached_property
    def sha256(self) -> str:
        """Digest of the bytes of the split, 64 hexadecimal digits."""
        return hashlib.sha256(np.asarray(self.data).tobytes()).hexdigest()

    @property
    def arrays(self) -> tuple[ArrayLike, ...]:
        """Return the bytes of the split."""
        return (self.data,)

    def given(self, *arrays: ArrayLike) -> Self:
        """Return this text over another array of bytes."""
        same = dataclasses.replace(self)
        (same.__dict__["data"],) = arrays
        return same

    @functools.cached_property
    def _splits(self) -> dict[str, Self]:
        """This text and its siblings, so that each split is read once, whoever asks for it."""
        return {split: self if split == self.split else dataclasses.replace(self, split=split) for split in SPLITS}

    def for_split(self, split: str) -> Self:
        """Return this text, or its sibling of another split, which is read once whoever asks."""
        return self._splits[split]

    @property
    def root(self) -> Path:
        """The file or folder that is read."""
        return _root(self.path)

    def holds(self, path: Path) -> bool:
        """Whether the file at a path is one of this text's, in whichever split, or the folder at a path has one of them.

        Raises OSError where a folder cannot be listed.
        """
        here, root = path.resolve(), self.root.resolve()
        if not root.is_dir():
            return root.is_relative_to(here)
        near = here.is_relative_to(root) or root.is_relative_to(here)
        return near and any((root / name).is_relative_to(here) for name in _names(self.path, root, self.pattern))

    @property
    def _source(self) -> str:
        return "the standard library" if self.path is None else repr(self.path)

    def alphabet(self) -> Alphabet:
        tokens = tuple(chr(i) if 32 < i < 127 else f"x{i:02x}" for i in range(256))
        return Alphabet(tokens, tokens)

    @property
    def maximum_length(self) -> int:
        return self.data.size - 1

    def answers(self, length: int) -> int:
        return 256**length

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return a crop of the text; each target is the byte that follows."""
        first, second = jax.random.split(key)
        end = jax.random.randint(first, (), 1, self.data.size, jnp.int32)
        again = jax.random.randint(second, (), length, self.data.size, jnp.int32)
        start = jnp.where(end < length, again, end) - length
        crop = take(jnp.asarray(self.data), start + jnp.arange(max_length + 1, dtype=jnp.int32)).astype(jnp.int32)
        return padded(crop[:-1], length, crop[1:], length)


def read_files(path: str | None, split: str, pattern: str, cap: int, split_by: str = "file") -> tuple[bytes, list[int]]:
    """The first `cap` bytes of a split, and how many of them each file has."""
    root = _root(path)
    try:
        if root.is_file() and split_by == "group":
            raise ValueError(f"Text: {path!r} is one file, which is split by place: split_by must be 'file'")
        if root.is_file():
            part = _read_part(root, split, cap)
            return part, [len(part)]
        if not root.is_dir():
            raise ValueError(f"Text: no file or folder at {path!r}")
        return _joined(files_of(path, split, pattern, split_by), cap)
    except OSError as error:
        raise ValueError(f"Text: cannot read {error.filename or path!r}: {error.strerror}") from error


def files_of(path: str | None, split: str, pattern: str, split_by: str = "file") -> list[Path]:
    """The files of a split of a folder, in the order in which they are read."""
    root = _root(path)
    found = list(itertools.islice(_names(path, root, pattern), MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise ValueError(f"Text: {path!r} has more than {MOST_FILES} files; give a smaller folder, or a pattern")
    first = {name: name for name in found}
    if split_by == "group":
        first = groups({name: long_lines((root / name).read_bytes()) for name in found})
    chosen = sorted((place(name)[1], name) for name in found if place(first[name])[0] == split)
    return [root / name for _, name in chosen]


def place(name: str) -> tuple[str, str]:
    """The split of a file, and a hash to order it by: both depend on its relative path alone."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    percent = int(digest[:8], 16) * 100 >> 32
    return next(s for s, end in zip(SPLITS, BOUNDS[1:], strict=True) if percent < end), digest


def names(root: Path, pattern: str, skipped: tuple[str, ...]) -> Iterator[str]:
    """Relative names, with /, of the regular files below a folder; no link is followed, as it might lead out of it."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if name not in skipped]
        for name in fnmatch.filter(files, pattern):
            file = Path(folder, name)
            if stat.S_ISREG(file.lstat().st_mode):
                yield file.relative_to(root).as_posix()


def _root(path: str | None) -> Path:
    return Path(sysconfig.get_path("stdlib") if path is None else path)


def _names(path: str | None, root: Path, pattern: str) -> Iterator[str]:
    """The names below a root of the files of a text, those of the standard library's own where the path is None."""
    return names(root, *(("*.py", NOT_EVERYWHERE) if path is None else (pattern, ())))


def _read_part(file: Path, split: str, cap: int) -> bytes:
    size, part = file.stat().st_size, SPLITS.index(split)
    begin, end = (size * bound // 100 for bound in BOUNDS[part : part + 2])
    with file.open("rb") as stream:
        stream.seek(begin)
        return stream.read(min(end - begin, cap))


def _joined(files: list[Path], cap: int) -> tuple[bytes, list[int]]:
    """Each file and a byte 0, up to `cap` bytes, and how many each has."""
    out, sizes = bytearray(), []
    for file in files:
        begin = len(out)
        with file.open("rb") as stream:
            out += stream.read(cap - begin)
        out += b"\0"[: cap - len(out)]
        sizes.append(len(out) - begin)
        if len(out) == cap:
            break
    return bytes(out), sizes
