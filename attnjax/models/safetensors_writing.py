"""Writes safetensors files: the header first, from known shapes and dtypes, then one tensor after another."""

import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from attnjax.models.safetensors_files import INDEX, METADATA, SINGLE, TYPES

ALIGNMENT = 8
READERS = ("format", "pt")
"""An entry of the metadata without which transformers refuses a file."""


class Pending(NamedTuple):
    """A tensor to be written, whose array `make` returns when it is written."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def bytes(self) -> int:
        """The size of the tensor in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_folder(folder: pathlib.Path, tensors: list[Pending], most: int) -> None:
    """Writes `model.safetensors`, or several files and their index if that file would hold more than `most` bytes.

    A tensor larger than `most` has a file of its own.

    Raises:
      OSError: a file that cannot be written.
    """
    shards = list(_shards(tensors, most))
    if len(shards) <= 1:
        write_file(folder / SINGLE, tensors)
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(folder / name, shard)
        places |= {tensor.name: name for tensor in shard}
    table = {"metadata": {"total_size": sum(tensor.bytes for tensor in tensors)}, "weight_map": places}
    write_synced(folder / INDEX, (json.dumps(table, indent=2, sort_keys=True) + "\n").encode())


def write_file(path: pathlib.Path, tensors: Iterable[Pending]) -> None:
    """Writes one file, with wide dtypes first, so that every tensor is aligned."""
    ordered = sorted(tensors, key=lambda tensor: (-tensor.dtype.itemsize, tensor.name))
    with path.open("xb") as file:
        file.write(_header(ordered))
        for tensor in ordered:
            value = np.ascontiguousarray(tensor.make()).astype(tensor.dtype, copy=False)
            assert value.shape == tensor.shape, f"{tensor.name} is {value.shape} and was announced as {tensor.shape}"
            file.write(value.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def write_synced(path: pathlib.Path, data: bytes) -> None:
    """Writes a new file and waits until the disk has it (fsync)."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: list[Pending]) -> bytes:
    table: dict[str, object] = {METADATA: dict([READERS])}
    begin = 0
    for tensor in tensors:
        dtype = next(name for name, numpy in TYPES if numpy == tensor.dtype.name)
        end = begin + tensor.bytes
        table[tensor.name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _shards(tensors: list[Pending], most: int) -> Iterator[list[Pending]]:
    shard: list[Pending] = []
    filled = 0
    for tensor in tensors:
        if shard and filled + tensor.bytes > most:
            yield shard
            shard, filled = [], 0
        shard.append(tensor)
        filled += tensor.bytes
    if shard:
        yield shard
