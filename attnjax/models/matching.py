"""Matches the tensors of a checkpoint with a weight map, and reports all mismatches in one error.

A tensor that a checkpoint holds twice must be the same both times. If config.json ties the embeddings and the files hold
another output matrix, the model would load, and nothing but its logits would tell.
"""

import collections
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from attnjax.models.base import Architecture, Weight
from attnjax.models.files import ModelError, some
from attnjax.models.tensors import FLOATS, Entry

MOST = 100
"""How many names an error lists for each kind of mismatch."""


class Tensor(NamedTuple):
    """A tensor of a checkpoint, the parameters that it holds, and the names under which the checkpoint repeats it."""

    name: str
    entry: Entry
    weights: tuple[Weight, ...]
    copies: tuple[str, ...] = ()


def groups(table: Iterable[Weight]) -> tuple[tuple[Weight, ...], ...]:
    """Groups the entries of a weight map by the tensor that holds them, in the order of the map."""
    found: dict[tuple[str, ...], list[Weight]] = collections.defaultdict(list)
    for weight in table:
        found[weight.names].append(weight)
    return tuple(tuple(rows) for rows in found.values())


def match(entries: Mapping[str, Entry], table: tuple[Weight, ...], architecture: Architecture) -> list[Tensor]:
    """Returns the tensors of a weight map, in its order.

    Args:
      entries: the tensors of the checkpoint, by name.
      table: the weight map of the model that config.json describes.
      architecture: names the prefix and the tensors that are ignored.

    Raises:
      ModelError: names all tensors that are missing, left over, or of a wrong shape or dtype.
    """
    tensors, missing = [], []
    for rows in groups(table):
        held, copies = (_held(entries, names, architecture.prefix) for names in (rows[0].names, rows[0].copies))
        if held:
            tensors.append(Tensor(held[0], entries[held[0]], rows, (*held[1:], *copies)))
        else:
            missing.append(rows[0].names[0])
    used = {name for one in tensors for name in (one.name, *one.copies)}
    problems = {
        "missing": missing,
        "left over": [name for name in entries if name not in used and not _is_ignored(name, architecture)],
        "wrong shape": [
            f"{one.name} is {list(one.entry.shape)} and must be {list(one.weights[0].shape)}"
            for one in tensors
            if one.entry.shape != one.weights[0].shape
        ],
        "wrong type": [
            f"{one.name} is {one.entry.dtype} (quantised weights are not read)"
            for one in tensors
            if one.entry.dtype not in FLOATS.values()
        ],
    }
    if any(problems.values()):
        text = "; ".join(f"{what}: {some(names, MOST)}" for what, names in problems.items() if names)
        raise ModelError(f"the weights are not those of the {architecture.model_type} in config.json. {text}")
    return tensors


def check_tied_weights(tensors: Iterable[Tensor], entries: Mapping[str, Entry]) -> None:
    """Raises ModelError, naming all of them, for copies that differ from their tensor."""
    different = [
        f"{copy} and {tensor.name}"
        for tensor in tensors
        for copy in tensor.copies
        if not np.array_equal(tensor.entry.read(), entries[copy].read())
    ]
    if different:
        raise ModelError(
            f"the files hold {', '.join(different)}, which must be equal by config.json and are not. "
            "If the model has an output matrix of its own, write tie_word_embeddings=false"
        )


def _held(entries: Mapping[str, Entry], names: tuple[str, ...], prefix: str) -> list[str]:
    """Returns those of these names that a checkpoint has, also without the prefix, which some checkpoints lack."""
    bare = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return [name for name in dict.fromkeys((*names, *bare)) if name in entries]


def _is_ignored(name: str, architecture: Architecture) -> bool:
    names = (name, architecture.prefix + name)
    return any(re.fullmatch(pattern, one) for pattern in architecture.ignored for one in names)
