"""Tensors of safetensors files: what a folder holds, read one at a time, and files written.

The library `safetensors` reads and checks headers (offsets, sizes, no gaps) without reading a tensor. A folder holds
`model.safetensors`, or several files and `model.safetensors.index.json`, which maps tensors to files.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from attnjax.models.files import ModelError, inside, read_table, some

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = MappingProxyType({"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"})
"""Dtypes that parameters may have, as files and NumPy call them; others belong to quantised weights and masks."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor of a file: its name, its shape, and its dtype, which is that of the file where it is not in `FLOATS`."""

    path: pathlib.Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """The size of a tensor of floats in bytes; 0 for other dtypes."""
        return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize if self.dtype in FLOATS.values() else 0

    def read(self) -> np.ndarray:
        """Returns the tensor as a new array. Raises ModelError for a file that cannot be read any more."""
        try:
            # With "mmap" a file that is cut off meanwhile would end the process.
            with safe_open(self.path, framework="np", backend="pread") as file:
                return file.get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self.path} cannot be read: {error}") from None


def open_folder(folder: pathlib.Path) -> dict[str, Entry]:
    """Returns all tensors of a folder by name.

    Raises:
      ModelError: a file is missing, damaged, of another format or outside the folder, or contradicts the index.
    """
    if (folder / SINGLE).exists():
        return open_file(inside(folder, SINGLE))
    if not (folder / INDEX).exists():
        raise _nothing(folder)
    places = read_table(folder, INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ModelError(f"{folder / INDEX} must hold a table weight_map of names of tensors to names of files")
    files = sorted(set(places.values()))
    held = {name: open_file(inside(folder, name)) for name in files}
    if lost := sorted(f"{tensor} in {name}" for tensor, name in places.items() if tensor not in held[name]):
        raise ModelError(f"{folder / INDEX} does not fit its files, which lack {some(lost)}")
    return {tensor: held[name][tensor] for tensor, name in places.items()}


def open_file(path: pathlib.Path) -> dict[str, Entry]:
    """Returns the tensors of one file by name, in the order of their data. Raises ModelError for a file that is damaged."""
    with path.open("rb") as file:
        start = file.read(8)
    if start == b"version ":
        raise ModelError(f"{path} is a pointer of Git LFS, not the file itself: run `git lfs pull` in its folder")
    try:
        with safe_open(path, framework="np", backend="pread") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            kinds = {name: one.get_dtype() for name, one in slices.items()}
            return {
                name: Entry(path, name, tuple(one.get_shape()), FLOATS.get(kinds[name], kinds[name]))
                for name, one in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged: {str(error)[:300]}") from None


def write_file(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one safetensors file. Raises OSError where the disk refuses."""
    try:
        # transformers refuses a file without this entry of the metadata; the library copies memory as if contiguous.
        save_file({name: np.ascontiguousarray(one) for name, one in arrays.items()}, path, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from None


def _nothing(folder: pathlib.Path) -> ModelError:
    """Returns the error for a folder that has no safetensors files."""
    names = sorted(path.name for path in folder.iterdir())
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        return ModelError(
            f"{folder} has weights as a pickle only ({some(pickles, 3)}), which runs code when it is read. If you trust it, "
            "convert it where torch and transformers are installed, with the class that config.json names: "
            "from_pretrained(FOLDER).save_pretrained(NEW, safe_serialization=True)"
        )
    return ModelError(f"{folder} must hold {SINGLE}, or {INDEX} and the files that it names; it has {some(names, 5)}")
