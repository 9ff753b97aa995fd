"""Finds and reads files of a folder that somebody else made: no file outside of it, none above a size, none that runs code.

A folder of the Hugging Face cache, models--NAME/snapshots/REVISION, consists of links to models--NAME/blobs. These links are
followed; other links out of a folder are refused.
"""

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from attnjax import safety

SIZE = 16 * 2**20
"""The largest JSON file that is read, in bytes: the index of 100,000 tensors has 10 MB."""


class ModelError(ValueError):
    """A folder of weights, or what is asked of it, is wrong.

    Example:
      >>> inside(pathlib.Path("models"), "../weights")
      Traceback (most recent call last):
      attnjax.models.files.ModelError: a file in models must have a plain name of up to 200 characters, got '../weights'
    """


def inside(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the path of the regular file `name` of a folder, with links resolved.

    Raises:
      ModelError: a link to a file outside the folder, a pipe or a device.
      OSError: no such file.
    """
    if not safety.NAME.fullmatch(name) or name in (".", ".."):
        raise ModelError(f"a file in {folder} must have a plain name of up to 200 characters, got {name!r:.100}")
    root = folder.resolve()
    path = pathlib.Path(os.path.realpath(root / name, strict=True))
    homes = (root, root.parent.parent / "blobs") if root.parent.name == "snapshots" else (root,)
    if path.parent not in homes:
        raise ModelError(f"{folder / name} is a link out of the folder, to {path}; copy the file itself to its place")
    if not path.is_file():
        raise ModelError(f"{path} is no regular file")
    return path


def read_bytes(folder: pathlib.Path, name: str, limit: int = SIZE) -> bytes:
    """Returns the content of a file of a folder. Raises ValueError and OSError as `inside`, and above `limit` bytes."""
    return safety.read(inside(folder, name), limit)


def read_table(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """Returns the JSON table in a file of a folder. Raises ValueError and OSError, naming the file, for anything else."""
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
