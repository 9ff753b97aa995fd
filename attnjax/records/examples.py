"""Scores of single examples of a run, in `examples.npz` of its folder, written with its evaluation at the end.

    "step"                              the step after which it was made
    "{split}/{length}/{metric}"         [count]: the score of each example, in the order in which they are drawn, which is the
                                        same for all runs of a task
    "{split}/{length}/document"         [count]: the number of the document that an example of a corpus was cut from

Their means are what `results.jsonl` says; they tell how much of a difference is due to the examples.
"""

import dataclasses
import io
import pathlib
import re
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from attnjax import safety
from attnjax.records.runs import EXAMPLES as FILE

LARGEST = 2**28
"""Bytes beyond which a file, or what is packed in it, is not read."""
NAME = re.compile(r"([a-z]{1,20})/(\d{1,9})/([a-z][a-z0-9_]{0,60})")
STEP = "step"

DOCUMENT = "document"
"""The name, in place of a metric's, of the documents that examples were cut from."""

Key = tuple[str, int, str]
"""Split, length, metric."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """The step of an evaluation, and the scores of each example by (split, length, metric)."""

    step: int
    scores: Mapping[Key, Float[np.ndarray, " N"]]


def write(directory: pathlib.Path, found: Examples) -> None:
    """Replace the file of a run, in one step. Scores that are all 0 or 1 are stored in 8 bits, others in 32.

    Raises OSError where the disk refuses, and ValueError for names that `read` would not take.
    """
    if wrong := next((key for key in found.scores if not NAME.fullmatch(_name(key))), None):
        raise ValueError(f"no name of a split, length and metric: {wrong!r}")
    arrays: dict[str, Any] = {STEP: np.int64(found.step)}
    arrays |= {_name(key): small(x) for key, x in found.scores.items()}
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    safety.write(directory / FILE, packed.getvalue())


def read(directory: pathlib.Path) -> Examples:
    """The file of a run, as numbers of 64 bits.

    Raises FileNotFoundError where there is none, OSError where it cannot be read, and ValueError, naming it, where it is
    damaged, a link, or too large.

    Example:
      >>> import tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> write(folder, Examples(300, {("test", 128, "exact_match"): np.array([1.0, 0.0, 1.0])}))
      >>> read(folder).scores["test", 128, "exact_match"].mean().round(3)
      np.float64(0.667)
    """
    path = directory / FILE
    arrays = load(path)
    step = arrays.pop(STEP, np.zeros(1))
    if step.shape or step.dtype.kind != "i" or step < 0:
        raise ValueError(f"{path} is damaged: it must have a {STEP}, a whole number")
    scores: dict[Key, np.ndarray] = {}
    for name, array in arrays.items():
        found = key(name, array)
        if found is None:
            raise ValueError(f"{path} is damaged: {name[:80]!r} is no list of scores of a split, length and metric")
        scores[found] = array.astype(np.float64)
    return Examples(int(step), scores)


def load(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name. Raises FileNotFoundError, OSError, and ValueError where it is damaged."""
    content = safety.read(path, LARGEST)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise ValueError(f"more than {LARGEST // 2**20} MiB are packed in it")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except MemoryError:
        raise ValueError(f"{path} is damaged: it says that it holds more than there is memory for") from None
    except (ValueError, OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # NumPy returns the bytes of a member that is no array
            raise ValueError(f"{path} is damaged: {name[:80]!r} is no array")
    return found


def key(name: str, array: np.ndarray) -> Key | None:
    """Return what a named array holds scores of, None where it holds none."""
    parts = NAME.fullmatch(name)
    if parts is None or array.ndim != 1 or array.dtype.kind not in "fu":
        return None
    return parts[1], int(parts[2]), parts[3]


def _name(key: Key) -> str:
    split, length, metric = key
    return f"{split}/{length}/{metric}"


def small(scores: np.ndarray, real: type[np.floating] = np.float32) -> np.ndarray:
    """Return scores as they are stored: those that are all 0 or 1 in 8 bits, others in the type `real`."""
    return scores.astype(np.uint8 if np.isin(scores, (0, 1)).all() else real)
