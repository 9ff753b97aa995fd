"""Tensors that a checkpoint holds twice, such as a tied matrix: the second must be the first again.

A config that says "tied" beside an output matrix of its own is a mistake that nothing else shows: the model loads, and
its logits are another's.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from attnjax.models.errors import WrongWeights
from attnjax.models.matching import Tensor
from attnjax.models.safetensors_files import Entry

PART = 4 * 2**20
"""Bytes that are compared at a time."""


def check_copies(tensors: Iterable[Tensor], entries: Mapping[str, Entry]) -> None:
    """Raise WrongWeights, naming all of them, for copies that are not equal to their tensor."""
    different = [
        f"{copy} and {tensor.name}"
        for tensor in tensors
        for copy in tensor.copies
        if not _equal(tensor.entry, entries[copy])
    ]
    if different:
        raise WrongWeights(
            f"the files hold {', '.join(different)}, which must be equal by config.json and are not. "
            "If the model has an output matrix of its own, write tie_word_embeddings=false"
        )


def _equal(one: Entry, other: Entry) -> bool:
    if one.shape != other.shape:
        return False
    if not one.shape:
        return _same(one.read(), other.read())
    rows = max(1, PART // max(1, math.prod(one.shape[1:]) * max(one.dtype.itemsize, other.dtype.itemsize)))
    starts = range(0, one.shape[0], rows)
    return all(_same(one.read(start, start + rows), other.read(start, start + rows)) for start in starts)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """The same numbers, whatever their types."""
    if one.dtype == other.dtype:
        return one.tobytes() == other.tobytes()
    return np.array_equal(one.astype(np.float64), other.astype(np.float64))
