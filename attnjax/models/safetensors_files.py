"""Reads safetensors files: the header is read and checked completely before any tensor is read.

    file = 8 bytes: length of the header, little endian | header: JSON, perhaps spaces behind | data
    header = {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {text: text}}

The data has no gaps: tensors follow one another to the end of the file. A folder holds `model.safetensors`, or several
files and `model.safetensors.index.json`, which maps tensors to files.

Format: https://github.com/huggingface/safetensors, README, "Format". The bound on the size of the header is lower here.
"""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax.models.errors import DamagedFile, UnsupportedFormat
from attnjax.models.files import fill, inside, opened, parse_table, read_table, shown, size

HEADER = 16 * 2**20
NAME = 512
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
METADATA = "__metadata__"
TYPES = (
    ("F64", "float64"),
    ("F32", "float32"),
    ("F16", "float16"),
    ("BF16", "bfloat16"),
    ("F8_E4M3", "float8_e4m3fn"),
    ("F8_E5M2", "float8_e5m2"),
    ("I64", "int64"),
    ("I32", "int32"),
    ("I16", "int16"),
    ("I8", "int8"),
    ("U64", "uint64"),
    ("U32", "uint32"),
    ("U16", "uint16"),
    ("U8", "uint8"),
    ("BOOL", "bool"),
)
"""Names of dtypes in the header, and in NumPy with ml_dtypes."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclasses.dataclass(frozen=True)
class Entry:
    """The location of one tensor: `offset` bytes after the start of a file of `total` bytes."""

    path: pathlib.Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    total: int

    @property
    def bytes(self) -> int:
        """The size of the tensor in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Returns the tensor, or its rows begin .. end - 1, as a new array.

        Raises:
          DamagedFile: a file that cannot be read, or has changed since its header was read.
        """
        shape = self.shape
        if shape:
            begin, end, _ = slice(begin, end).indices(shape[0])
            shape = (max(end - begin, 0), *shape[1:])
        found = np.zeros(shape, self.dtype)
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        with opened(self.path) as file:
            if size(file) != self.total:
                raise DamagedFile(f"{self.path} had {self.total:,} bytes and now has {size(file):,}")
            fill(file, self.offset + begin * row, found.reshape(-1).view(np.uint8).data)
        return found


def open_folder(folder: pathlib.Path) -> dict[str, Entry]:
    """Returns all tensors of a folder by name.

    Raises:
      DamagedFile: a file is missing or cut off, or contradicts itself or the index.
      UnsafePath: the index names a file outside the folder.
      UnsupportedFormat: the folder has weights of another format only.
    """
    if (folder / SINGLE).exists():
        return open_file(inside(folder, SINGLE))
    if (folder / INDEX).exists():
        return _open_many(folder, inside(folder, INDEX))
    raise _nothing(folder)


def open_file(path: pathlib.Path) -> dict[str, Entry]:
    """Returns the tensors of one file by name, in the order of their data. Raises DamagedFile."""
    with opened(path) as file:
        total = size(file)
        length = _header_length(path, file, total)
        data = bytearray(length)
        fill(file, 8, memoryview(data))
    if data[:1] != b"{":
        raise DamagedFile(f"{path} is damaged: its header begins with {bytes(data[:1])!r}, and must with b'{{'")
    table = parse_table(bytes(data), f"the header of {path}")
    _check_metadata(path, table.pop(METADATA, {}))
    entries = {name: _entry(path, name, fields, 8 + length, total) for name, fields in table.items()}
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].offset, item[1].bytes)))
    _check_no_holes(path, ordered, 8 + length, total)
    return ordered


def _header_length(path: pathlib.Path, file: Any, total: int) -> int:
    if total < 10:
        raise DamagedFile(f"{path} is damaged: it has {total} bytes, too few for a header")
    start = bytearray(8)
    fill(file, 0, memoryview(start))
    length = int.from_bytes(start, "little")
    if 2 <= length <= min(HEADER, total - 8):
        return length
    if start == b"version ":
        raise DamagedFile(f"{path} is a pointer of Git LFS, not the file itself: run `git lfs pull` in its folder")
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
        raise UnsupportedFormat(f"{path} is no safetensors file but a pickle, which runs code when it is read")
    raise DamagedFile(
        f"{path} is damaged: its header should have {length:,} bytes, allowed are 2 to {HEADER:,}, "
        f"and the file ends after {total:,}"
    )


def _entry(path: pathlib.Path, name: str, fields: Any, start: int, total: int) -> Entry:
    where = f"{path} is damaged: tensor {shown(name)}"
    if len(name) > NAME:
        raise DamagedFile(f"{where} has a name of {len(name)} characters, allowed are {NAME}")
    if not isinstance(fields, dict) or fields.keys() != {"dtype", "shape", "data_offsets"}:
        raise DamagedFile(f"{where} must be described by dtype, shape and data_offsets, got {shown(fields)}")
    shape, offsets = fields["shape"], fields["data_offsets"]
    if not _naturals(shape) or len(shape) > 16:
        raise DamagedFile(f"{where} must have a shape of up to 16 whole numbers, got {shown(shape)}")
    if not _naturals(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= total - start:
        came = offsets if isinstance(offsets, list) and len(str(offsets)) < 100 else shown(offsets)
        raise DamagedFile(f"{where} must lie within the {total - start:,} bytes of data, got data_offsets {came}")
    known = [numpy for ours, numpy in TYPES if ours == fields["dtype"]]
    if not known:
        names = ", ".join(ours for ours, _ in TYPES)
        raise UnsupportedFormat(f"{path}: tensor {shown(name)} has type {shown(fields['dtype'])}; read are {names}")
    entry = Entry(path, jnp.dtype(known[0]), tuple(shape), start + offsets[0], total)
    if entry.bytes != offsets[1] - offsets[0]:
        wanted = f"{fields['dtype']}{shape} needs {entry.bytes:,} bytes"
        raise DamagedFile(f"{where}: {wanted}, its data_offsets {offsets} hold {offsets[1] - offsets[0]:,}")
    return entry


def _naturals(values: Any) -> bool:
    """Returns whether a value is a list of whole numbers in 0 .. 2^63 - 1."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _check_metadata(path: pathlib.Path, table: Any) -> None:
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise DamagedFile(f"{path} is damaged: its {METADATA} must be a table of texts, got {shown(table)}")


def _check_no_holes(path: pathlib.Path, entries: Mapping[str, Entry], start: int, total: int) -> None:
    """Raises DamagedFile unless tensors follow one another to the end of the file; other bytes could hold anything."""
    end = start
    for name, entry in entries.items():
        if entry.offset != end:
            what = "overlaps the one before" if entry.offset < end else "leaves a hole before it"
            raise DamagedFile(f"{path} is damaged: tensor {shown(name)} {what}")
        end += entry.bytes
    if end != total:
        raise DamagedFile(f"{path} is damaged: its tensors end after {end:,} bytes, the file after {total:,}")


def _open_many(folder: pathlib.Path, index: pathlib.Path) -> dict[str, Entry]:
    """Returns the tensors of all files of an index, after checking that each is in the file that the index names."""
    places = read_table(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise DamagedFile(f"{index} must hold a table weight_map of names of tensors to names of files")
    files = {name: open_file(_shard(folder, name)) for name in sorted(set(places.values()))}
    listed = set(places.items())
    found = {(tensor, name) for name, entries in files.items() for tensor in entries}
    if listed != found:
        missing, left = (
            sorted(f"{tensor} in {name}" for tensor, name in one) for one in (listed - found, found - listed)
        )
        text = "; ".join(f"{what}: {some(one)}" for what, one in (("missing", missing), ("not listed", left)) if one)
        raise DamagedFile(f"{index} does not fit its files. {text}")
    return dict(itertools.chain.from_iterable(entries.items() for entries in files.values()))


def _shard(folder: pathlib.Path, name: str) -> pathlib.Path:
    path = inside(folder, name)
    if not name.endswith(".safetensors"):
        raise UnsupportedFormat(f"{folder / INDEX} names {shown(name)}; only .safetensors files are read")
    return path


def some(names: list[str], most: int = 20) -> str:
    """Returns the first names of a list as text, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(name[:120] for name in names[:most]) + more


def _nothing(folder: pathlib.Path) -> Exception:
    """Returns the error for a folder that has no safetensors files."""
    names = sorted(path.name for path in itertools.islice(folder.iterdir(), 1000))
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        return UnsupportedFormat(
            f"{folder} has weights as a pickle only ({some(pickles, 3)}), which runs code when it is read. If you trust it, "
            "convert it where torch and transformers are installed: "
            "transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW, safe_serialization=True), "
            "with the class that config.json names under architectures"
        )
    others = [name for name in names if name.endswith((".safetensors", ".gguf", ".h5", ".msgpack", ".onnx"))]
    came = f"; it has {some(others, 5)}" if others else ""
    return DamagedFile(f"{folder} must hold {SINGLE}, or {INDEX} and the files that it names{came}")
