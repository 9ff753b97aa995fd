"""Matches the tensors of a checkpoint with a weight map, and reports all mismatches in one error.

A tensor that a checkpoint holds twice must be the same both times. If config.json ties the embeddings and the files hold
another output matrix, the model would load, and nothing but its logits would tell.
"""

import collections
import re
from collections.abc import Iterable, Iterator, Mapping
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


def match(
    entries: Mapping[str, Entry], table: tuple[Weight, ...], published: tuple[Weight, ...], architecture: Architecture
) -> list[Tensor]:
    """Returns the tensors that a weight map needs, in its order.

    Args:
      entries: the tensors of the checkpoint, by name.
      table: the weight map of the model to be built.
      published: the weight map of the model that config.json describes; an ablation may leave some of its tensors
        unused.
      architecture: names the prefix and the tensors that are ignored.

    Raises:
      ModelError: names all tensors that are missing, left over, or of a wrong shape or dtype.
    """
    prefix = architecture.prefix
    found = {rows[0].names: _first(entries, rows[0].names, prefix) for rows in groups((*table, *published))}
    # An output matrix that a tied checkpoint repeats may be left over where the embedding is untied. That of an untied
    # checkpoint is no copy, also where an ablation ties the embedding.
    repeated = [(rows[0], found[rows[0].names]) for rows in groups(published)]
    copied = {one for row, name in repeated if name is not None for one in _copies(entries, row, name, prefix)}
    copies = lambda row, name: tuple(one for one in _copies(entries, row, name, prefix) if one in copied)
    named = [(found[rows[0].names], rows) for rows in groups(table)]
    tensors = [Tensor(name, entries[name], rows, copies(rows[0], name)) for name, rows in named if name is not None]
    ignored = [re.compile(pattern) for pattern in architecture.ignored]
    used = {*found.values(), *copied}
    problems = {
        "missing": [names[0] for names, name in found.items() if name is None],
        "left over": [name for name in entries if name not in used and not _is_ignored(name, ignored, prefix)],
        "wrong shape": [_shapes(one) for one in tensors if one.entry.shape != one.weights[0].shape],
        "wrong type": [_type(one) for one in tensors if one.entry.dtype not in FLOATS.values()],
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


def candidates(names: tuple[str, ...], prefix: str) -> Iterator[str]:
    """Yields the names that a tensor may have: its names, then these without the prefix that some checkpoints lack."""
    yield from names
    if prefix:
        yield from (name.removeprefix(prefix) for name in names if name.startswith(prefix))


def _first(entries: Mapping[str, Entry], names: tuple[str, ...], prefix: str) -> str | None:
    return next((name for name in candidates(names, prefix) if name in entries), None)


def _copies(entries: Mapping[str, Entry], weight: Weight, name: str, prefix: str) -> tuple[str, ...]:
    known = candidates((*weight.names, *weight.copies), prefix)
    return tuple(one for one in dict.fromkeys(known) if one in entries and one != name)


def _is_ignored(name: str, patterns: list[re.Pattern[str]], prefix: str) -> bool:
    return any(pattern.fullmatch(one) for pattern in patterns for one in (name, prefix + name))


def _shapes(tensor: Tensor) -> str:
    return f"{tensor.name} is {list(tensor.entry.shape)} and must be {list(tensor.weights[0].shape)}"


def _type(tensor: Tensor) -> str:
    return f"{tensor.name} is {tensor.entry.dtype} (quantised weights are not read)"
