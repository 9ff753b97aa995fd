"""Reads files of a folder that is not trusted: names stay inside the folder, sizes are bounded, JSON has one meaning.

A folder of the Hugging Face cache, models--NAME/snapshots/REVISION, consists of links to models--NAME/blobs. These
links are followed; other links out of a folder are refused.
"""

import collections
import contextlib
import io
import json
import os
import pathlib
import re
import stat
from collections.abc import Iterator
from typing import Any, NoReturn

from attnjax.models.errors import DamagedFile, UnsafePath

SIZE = 16 * 2**20
"""The largest JSON file that is read, in bytes: the index of 100,000 tensors has 10 MB."""
NAME = re.compile(r"(?![-.])[A-Za-z0-9._-]{1,128}")
# Without O_NONBLOCK, opening a pipe waits for a writer. Windows lacks these flags, and needs O_BINARY to read bytes.
FLAGS = os.O_RDONLY
FLAGS |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
FLAGS |= getattr(os, "O_BINARY", 0)


def existing_folder(folder: str | os.PathLike) -> pathlib.Path:
    """Returns the folder with links resolved. Raises DamagedFile where it is no folder."""
    path = pathlib.Path(folder)
    if not path.is_dir():
        what = "is a file; give the folder that it lies in" if path.exists() else "does not exist"
        raise DamagedFile(f"{path} must be a folder with config.json and safetensors files, but it {what}")
    return path.resolve()


def inside(folder: pathlib.Path, name: Any) -> pathlib.Path:
    """Returns the path of the file `name` of a folder, with links resolved.

    Raises:
      UnsafePath: a name with a folder in it, or a link to a file outside the folder.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        rule = "1 to 128 of A-Z a-z 0-9 . _ - without folders in it, and may not begin with . or -"
        raise UnsafePath(f"a file in {folder} must have a name of {rule}, got {shown(name)}")
    root = folder.resolve()
    try:
        path = (root / name).resolve()
    except (OSError, RuntimeError):
        raise UnsafePath(f"{folder / name} is a link that leads nowhere") from None
    if path.parent not in _homes(root):
        raise UnsafePath(f"{folder / name} is a link out of the folder, to {path}; copy the file itself to its place")
    return path


def _homes(root: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Returns the folders in which the files of a folder may lie."""
    if root.parent.name == "snapshots":
        return root, root.parent.parent / "blobs"
    return (root,)


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[io.FileIO]:
    """Opens a regular file for reading. Raises DamagedFile if it cannot be read, UnsafePath if it is not regular."""
    try:
        file = io.FileIO(path, opener=lambda name, _: os.open(name, FLAGS))
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror or error}") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnsafePath(f"{path} must be a regular file, and it is a pipe or a device")
        yield file


def size(file: io.FileIO) -> int:
    """Returns the size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def fill(file: io.FileIO, offset: int, target: memoryview) -> None:
    """Reads from `offset` until the target is full. Raises DamagedFile if the file ends before that."""
    try:
        file.seek(offset)
        while target:
            count = file.readinto(target)
            if not count:
                raise DamagedFile(f"{file.name} ends {len(target)} bytes too early; was it changed while it was read?")
            target = target[count:]
    except OSError as error:
        raise DamagedFile(f"{file.name} cannot be read: {error.strerror or error}") from None


def read_bytes(path: pathlib.Path, limit: int = SIZE) -> bytes:
    """Returns the content of a file. Raises DamagedFile if it has more than `limit` bytes."""
    with opened(path) as file:
        length = size(file)
        if length > limit:
            raise DamagedFile(f"{path} has {length:,} bytes, more than the {limit:,} that such a file may have")
        data = bytearray(length)
        fill(file, 0, memoryview(data))
    return bytes(data)


def read_table(path: pathlib.Path, limit: int = SIZE) -> dict[str, Any]:
    """Returns the JSON table in a file. Raises DamagedFile, naming the file, for anything else."""
    return parse_table(read_bytes(path, limit), str(path))


def parse_table(data: bytes, where: str) -> dict[str, Any]:
    """Returns a JSON table in UTF-8. Raises DamagedFile, naming `where`, for anything else, NaN, or a repeated key."""
    try:
        table = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError:
        raise DamagedFile(f"{where} is damaged: it is nested too deeply") from None
    except ValueError as error:
        raise DamagedFile(f"{where} is damaged or no JSON: {str(error)[:200]}") from None
    if not isinstance(table, dict):
        raise DamagedFile(f"{where} must hold a table, got {shown(table)}")
    return table


def shown(value: Any) -> str:
    """Returns a short text of any value, for error messages."""
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        raise ValueError(f"key {shown(counts.most_common(1)[0][0])} stands twice in one table")
    return table


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")
