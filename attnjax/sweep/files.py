"""Files that are whole or not there: written beside their place, synced, renamed. And names that stay in their folder."""

import contextlib
import errno
import json
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import Any

from attnjax.config.files import read_json
from attnjax.config.names import safe_name
from attnjax.config.options import shown
from attnjax.config.parse import check_schema

# A link in place of a file could lead out of the folder; Windows has no such flag, and few such links.
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
PARTIAL = ".tmp"


def inside(root: pathlib.Path, *names: str) -> pathlib.Path:
    """root/name/... after making sure that it lies in root and is reached through no link. Raises ValueError."""
    path = root
    for name in names:
        path = path / safe_name(name, "a name in a folder of results")
        if path.is_symlink():
            raise ValueError(f"{path} is a link; in a folder of results links are not followed")
    return path


def write(path: pathlib.Path, text: str, *, durable: bool = True) -> None:
    """Replace a file by one with this text, in one step. `durable`: it is on the disk when this returns.

    Raises OSError and leaves the old file as it was where the disk refuses.
    """
    temporary = _written(path, text, PARTIAL, durable)
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def create(path: pathlib.Path, text: str) -> bool:
    """The same for a file that must not exist yet; False where it does."""
    if path.exists() or path.is_symlink():
        return False
    temporary = _written(path, text, ".new", durable=False)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        if path.exists():  # a file system without links
            return False
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def write_table(path: pathlib.Path, table: dict[str, Any], *, durable: bool = True) -> None:
    """A JSON table in a file, see `write`."""
    write(path, json.dumps(jsonable(table), indent=1, allow_nan=False) + "\n", durable=durable)


def read_table(path: pathlib.Path) -> dict[str, Any]:
    """The JSON table in a file, with a schema that this code reads. Raises ValueError, naming the file, for any other."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link; in a folder of results links are not followed")
    table = read_json(path)
    if not isinstance(table, dict):
        raise ValueError(f"{path} is damaged: it must hold a table, got {shown(table)}")
    check_schema(table.get("schema"), str(path))
    return table


def sweep_up(folder: pathlib.Path) -> None:
    """Remove what killed processes left half-written in a folder that nobody else writes to now."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def check_writable(folder: pathlib.Path) -> None:
    """Make a folder and try it. Raises ValueError where it cannot be made, written to, or has no space left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{secrets.token_hex(4)}{PARTIAL}"
        try:
            _written_to(probe, b"\0" * 2**16, durable=True)
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"results cannot be written to {folder}: {error.strerror or error}") from None


def jsonable(value: Any) -> Any:
    """Plain values from NumPy's, JAX's and paths; NaN and infinity become null, which JSON has not otherwise."""
    if isinstance(value, dict):
        return {str(name): jsonable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(one) for one in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


@contextlib.contextmanager
def opened(path: pathlib.Path, flags: int) -> Iterator[int]:
    """A file descriptor, closed afterwards, of a file that is no link."""
    descriptor = os.open(path, flags | NO_LINK, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _written(path: pathlib.Path, text: str, suffix: str, durable: bool) -> pathlib.Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{suffix}")
    try:
        _written_to(temporary, text.encode(), durable)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _written_to(path: pathlib.Path, data: bytes, durable: bool) -> None:
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)


def _sync_folder(folder: pathlib.Path) -> None:
    # Some systems cannot open or sync a folder; the rename has happened all the same.
    with contextlib.suppress(OSError), opened(folder, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)
