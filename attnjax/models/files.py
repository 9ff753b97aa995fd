"""Finds and reads files of a folder that somebody else made: no file outside of it, none above a size, none that runs code.

A folder of the Hugging Face cache, models--NAME/snapshots/REVISION, consists of links to models--NAME/blobs. These links are
followed; other links out of a folder are refused.
"""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

from attnjax import safety

SIZE = 16 * 2**20
"""The largest JSON file that is read, in bytes: the index of 100,000 tensors has 10 MB."""


class ModelError(ValueError):
    """A folder of weights, or what is asked of it, is wrong.

    Example:
      >>> existing_folder("no such folder")
      Traceback (most recent call last):
          ...
      attnjax.models.files.ModelError: no such folder must be a folder with config.json and safetensors files, but ...
    """


def existing_folder(folder: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder with links resolved. Raises ModelError where it is no folder."""
    path = pathlib.Path(folder)
    if not path.is_dir():
        what = "is a file; give the folder that it lies in" if path.exists() else "does not exist"
        raise ModelError(f"{path} must be a folder with config.json and safetensors files, but it {what}")
    return path.resolve()


def inside(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the path of the regular file `name` of a folder, with links resolved.

    Raises:
      ModelError: a file that is missing, a link to a file outside the folder, or a pipe or a device.
    """
    if not safety.NAME.fullmatch(name) or name in (".", ".."):
        raise ModelError(f"a file in {folder} must have a plain name of up to 200 characters, got {name!r:.100}")
    root = folder.resolve()
    try:
        path = (root / name).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{folder / name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    homes = (root, root.parent.parent / "blobs") if root.parent.name == "snapshots" else (root,)
    if path.parent not in homes:
        raise ModelError(f"{folder / name} is a link out of the folder, to {path}; copy the file itself to its place")
    if not path.is_file():
        raise ModelError(f"{path} is no regular file")
    return path


def read_bytes(folder: pathlib.Path, name: str, limit: int = SIZE) -> bytes:
    """Returns the content of a file of a folder. Raises ModelError where `inside` does, and above `limit` bytes."""
    path = inside(folder, name)
    try:
        if (size := path.stat().st_size) > limit:
            raise ModelError(f"{path} has {size:,} bytes, more than the {limit:,} that such a file may have")
        return safety.read(path, size)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ModelError(str(error)) from None


def read_table(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """Returns the JSON table in a file of a folder. Raises ModelError, naming the file, for anything else."""
    data = read_bytes(folder, name)
    try:
        table = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{folder / name} is damaged or no JSON: {str(error)[:200]}") from None
    if not isinstance(table, dict):
        raise ModelError(f"{folder / name} must hold a table, got {table!r:.100}")
    return table


def some(names: Iterable[str], most: int = 20) -> str:
    """Returns the first names of a list as text, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(name[:120] for name in names[:most]) + more
