"""Files of a folder that somebody else made: names that stay inside, sizes with a bound, JSON that means one thing.

A folder of the Hugging Face cache, models--NAME/snapshots/REVISION, is made of links to models--NAME/blobs; these are
followed, other links out of a folder are not.
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
"""The largest JSON that is read: the index of 100,000 tensors has 10 MB."""
NAME = re.compile(r"(?![-.])[A-Za-z0-9._-]{1,128}")
# Opening a pipe would wait for a writer. Windows has no such flags, but opens files as text unless told otherwise.
FLAGS = os.O_RDONLY
FLAGS |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
FLAGS |= getattr(os, "O_BINARY", 0)


def existing_folder(folder: str | os.PathLike) -> pathlib.Path:
    """The folder with links resolved. Raises DamagedFile where it is none."""
    path = pathlib.Path(folder)
    if not path.is_dir():
        what = "is a file; give the folder that it lies in" if path.exists() else "does not exist"
        raise DamagedFile(f"{path} must be a folder with config.json and safetensors files, but it {what}")
    return path.resolve()


def inside(folder: pathlib.Path, name: Any) -> pathlib.Path:
    """The path of the file `name` of a folder, links resolved.

    Raises UnsafePath unless the name is that of a file directly in the folder, and what it links to lies there too.
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
    """Where the files of a folder may lie."""
    if root.parent.name == "snapshots":
        return root, root.parent.parent / "blobs"
    return (root,)


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[io.FileIO]:
    """A regular file, for reading bytes. Raises DamagedFile where it cannot be read, UnsafePath where it is no file."""
    try:
        file = io.FileIO(path, opener=lambda name, _: os.open(name, FLAGS))
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror or error}") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnsafePath(f"{path} must be a regular file, and it is a pipe or a device")
        yield file


def size(file: io.FileIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def fill(file: io.FileIO, offset: int, target: memoryview) -> None:
    """Read from `offset` until the target is full. Raises DamagedFile where the file ends before."""
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
    """A whole file. Raises DamagedFile where it is larger than `limit` bytes."""
    with opened(path) as file:
        length = size(file)
        if length > limit:
            raise DamagedFile(f"{path} has {length:,} bytes, more than the {limit:,} that such a file may have")
        data = bytearray(length)
        fill(file, 0, memoryview(data))
    return bytes(data)


def read_table(path: pathlib.Path, limit: int = SIZE) -> dict[str, Any]:
    """The JSON table in a file. Raises DamagedFile, naming the file, for anything else."""
    return parse_table(read_bytes(path, limit), str(path))


def parse_table(data: bytes, where: str) -> dict[str, Any]:
    """A JSON table in UTF-8 without NaN, infinity, or a key that stands twice. Raises DamagedFile naming `where`."""
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
    """A value for an error message: short, whatever it is."""
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
