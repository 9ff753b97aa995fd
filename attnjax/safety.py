"""Reads and writes files in a folder that somebody else may have made.

Nothing that is read is executed or imported. A link inside of the folder is never followed, so nothing outside of it is read
or changed. A pipe or device is refused, and a file larger than its limit is refused before memory is taken for it. Files are
replaced by one rename: a reader sees the old content or the new one.

The checks protect against folders that others made, and not against somebody who changes them at the same moment.
"""

import contextlib
import json
import os
import pathlib
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

NAME = re.compile(r"[\w.+=,-]{1,200}")
PARTIAL = re.compile(r"\..*\.tmp")
"""Names of files that a killed process left unfinished."""
DEEPEST = 20


def inside(root: pathlib.Path, *names: str) -> pathlib.Path:
    """Return root/name/..., which lies in root and is reached through no link.

    Raises ValueError for a link, and for a name that is not one plain component.

    Example:
      >>> inside(pathlib.Path("runs"), "copy", "0123456789abcdef").as_posix()
      'runs/copy/0123456789abcdef'
    """
    path = root
    for name in names:
        if not NAME.fullmatch(name) or name in (".", ".."):
            raise ValueError(
                f"an entry of {root} must be one name of letters, digits and . + = , - _, got {name[:140]!r}"
            )
        path = path / name
        refuse_link(path)
    return path


def refuse_link(path: pathlib.Path) -> None:
    """Raise ValueError where the path is a link."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link; in a folder of results links are not followed")


def read(path: pathlib.Path, limit: int) -> bytes:
    """Return the content of a regular file.

    Raises ValueError for a link, a pipe, a device, or more than `limit` bytes; OSError where the file cannot be read.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     write(pathlib.Path(folder, "status.json"), b"{}")
      ...     read(pathlib.Path(folder, "status.json"), limit=100)
      b'{}'
    """
    with opened(path, limit) as file:
        return file.read(
            os.fstat(file.fileno()).st_size
        )  # no more, should it grow; reading takes memory for what is asked


def read_text(path: pathlib.Path, limit: int) -> str:
    """Return the text of a file. Raises as `read` does, and ValueError where it is not UTF-8."""
    try:
        return read(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from None


def opened(path: pathlib.Path, limit: int) -> BinaryIO:
    """Return a regular file, open for reading. Raises as `read` does."""
    refuse_link(path)
    # Opening a pipe without O_NONBLOCK would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_size > limit:
        os.close(descriptor)
        raise ValueError(
            f"{path} is {f'larger than {limit} bytes' if stat.S_ISREG(about.st_mode) else 'no regular file'}"
        )
    return open(descriptor, "rb")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is nested too deeply, or if a table has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} stands twice in one table")
    return table


def write(path: pathlib.Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file, or a link, by a file with this content, in one step. `durable`: it is on the disk on return.

    Raises OSError, and leaves the old file as it was, where the disk refuses; ValueError where the folder is a link.
    """
    refuse_link(path.parent)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def write_all(folder: pathlib.Path, files: Mapping[str, str | bytes]) -> list[pathlib.Path]:
    """Write files to a folder, which is made where there is none, in this order; return their paths.

    Raises ValueError where the folder is a link, and OSError where the disk refuses.
    """
    refuse_link(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write(folder / name, content.encode() if isinstance(content, str) else content, durable=False)
    return [folder / name for name in files]


def sync(folder: pathlib.Path) -> None:
    """Bring renames and new names in a folder to the disk, on systems that can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def files(folder: pathlib.Path, deepest: int = DEEPEST) -> Iterator[pathlib.Path]:
    """Yield every regular file below a folder, sorted by name.

    Raises ValueError at the first link, pipe or device, and below `deepest` levels.
    """
    if deepest < 0:
        raise ValueError(f"{folder} is nested too deeply")
    for path in sorted(folder.iterdir()):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from files(path, deepest - 1)
        elif stat.S_ISREG(mode):
            yield path
        else:
            raise ValueError(f"{path} is {'a link' if stat.S_ISLNK(mode) else 'no regular file'}")
