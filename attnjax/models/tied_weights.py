"""Checks tied weights: a tensor that a checkpoint holds twice must be the same both times.

If config.json ties the embeddings and the files hold another output matrix, the model would load, and its logits would
be wrong; nothing else would reveal the mistake.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from attnjax.models.errors import WrongWeights
from attnjax.models.matching import Tensor
from attnjax.models.safetensors_files import Entry

BYTES_AT_ONCE = 4 * 2**20
"""How many bytes are compared at a time."""


def check_tied_weights(tensors: Iterable[Tensor], entries: Mapping[str, Entry]) -> None:
    """Raises WrongWeights, naming all of them, for copies that differ from their tensor."""
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
    rows = max(1, BYTES_AT_ONCE // max(1, math.prod(one.shape[1:]) * max(one.dtype.itemsize, other.dtype.itemsize)))
    starts = range(0, one.shape[0], rows)
    return all(_same(one.read(start, start + rows), other.read(start, start + rows)) for start in starts)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether two arrays hold the same numbers, whatever their dtypes."""
    if one.dtype == other.dtype:
        return one.tobytes() == other.tobytes()
    return np.array_equal(one.astype(np.float64), other.astype(np.float64))
