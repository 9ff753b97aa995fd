"""Which bytes of a text a model is asked about: never those that it was trained on.

    a file                                   as a whole
    a folder, "stdlib"                       a split of `attnjax.tasks.Text`
    the text that the model was trained on   a split by its own options, a file too

Splits are those of the file or folder that is named; parts of what a model was trained on, by another name, are refused.
"""

import os
import pathlib

import numpy as np

from attnjax.tasks import Text

LARGEST = 2**30
"""Bytes of the largest file that is read."""
MOST = 2**24
"""Bytes that are read of a folder."""


def read_source(source: str, trained_on: Text | None = None, split: str = "test") -> tuple[bytes, str]:
    """Returns the bytes of a text, and a sentence on which part of it they are, empty for all of it.

    A file is read as a whole. Of a folder and of the standard library ("stdlib") it is a split of `attnjax.tasks.Text`: the
    test split or another. The text that the model was trained on, which may be a file too, is read in a split of its own
    options, so that training never reads its test split.

    Raises:
      ValueError: no such file, one that is too large or cannot be read, or nothing in it; and, by another name than its own,
        files of the text that the model was trained on, since their split would be another.
    """
    path, own = _path(source), _is_own(source, trained_on)
    try:
        if trained_on is not None and not own and trained_on.holds(path):
            name = "stdlib" if trained_on.path is None else trained_on.path
            raise ValueError(
                f"{source} is or has a file of the text that the model was trained on: name that text, {name}, of which the "
                f"{split} split is read"
            )
        if path.is_file() and not own:
            size = path.stat().st_size
            if not 0 < size <= LARGEST:
                raise ValueError(f"{source} has {size} bytes; a text that is read has from 1 to {LARGEST}")
            return path.read_bytes(), ""
    except OSError as error:
        raise ValueError(f"{source} cannot be read: {error.strerror or error}") from error
    if trained_on is not None and own:
        data = np.asarray(trained_on.for_split(split).data)[: MOST + 1].tobytes()
    else:
        text = Text(None if source == "stdlib" else source, split, cap=MOST + 1)
        data = np.asarray(text.data).tobytes()
    more = f", the first {MOST} bytes of it" if len(data) > MOST else ""
    return data[:MOST], f"its {split} split{more}"


def overlap(fitted: str, measured: str, trained_on: Text | None = None) -> bool:
    """Returns whether the train split of one text may have bytes of the test split of another.

    Two splits of one text have no bytes in common; a file that is read as a whole has one for both.
    """
    if _same_file(_path(fitted), _path(measured)):
        return _path(fitted).is_file() and not _is_own(fitted, trained_on)
    return Text(None if measured == "stdlib" else measured).holds(_path(fitted))


def _is_own(source: str, trained_on: Text | None) -> bool:
    """Returns whether a text is the one that the model was trained on."""
    return trained_on is not None and _same_file(_path(source), trained_on.root)


def _same_file(one: pathlib.Path, other: pathlib.Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _path(source: str) -> pathlib.Path:
    return Text().root if source == "stdlib" else pathlib.Path(source)
