"""Files of a folder of runs: whole or not there, JSON or text, in folders that no link leads out of.

Every function enters the folder of its file through `attnjax.folder.enter`. What cannot be read or written is an `OSError`
that names the file; what was read and makes no sense is a `ValueError`. Only the second is damage.
"""

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from attnjax.config.files import SIZE, decoded, parse_json
from attnjax.config.names import safe_name
from attnjax.config.options import shown
from attnjax.config.parse import check_schema
from attnjax.folder import PARTIAL, LinkError, enter


def inside(root: pathlib.Path, *names: str) -> pathlib.Path:
    """root/name/... after making sure that it lies in root and is reached through no link. Raises ValueError."""
    path = root
    for name in names:
        path = path / safe_name(name, "a name in a folder of results")
        if path.is_symlink():
            raise LinkError(path)
    return path


def real(root: pathlib.Path) -> pathlib.Path:
    """The folder that the user named, which may be a link: what it points to."""
    return root.resolve() if root.is_symlink() else root


def write(path: pathlib.Path, text: str, *, durable: bool = True) -> None:
    """Replace a file by one with this text, in one step. `durable`: it is on the disk when this returns.

    Raises OSError and leaves the old file as it was where the disk refuses.
    """
    with enter(path.parent) as folder:
        folder.write(path.name, text.encode(), durable=durable)


def create(path: pathlib.Path, text: str) -> bool:
    """The same for a file that must not exist yet; False where it does."""
    with enter(path.parent) as folder:
        return folder.create(path.name, text.encode())


def write_table(path: pathlib.Path, table: dict[str, Any], *, durable: bool = True) -> None:
    """A JSON table in a file, see `write`."""
    write(path, json.dumps(jsonable(table), indent=1, allow_nan=False) + "\n", durable=durable)


def read_text(path: pathlib.Path) -> str:
    """A text file. Raises OSError where it cannot be read, ValueError where it is too large, a link, or not UTF-8."""
    with enter(path.parent) as folder:
        return decoded(folder.read(path.name, SIZE), path)


def read_table(path: pathlib.Path) -> dict[str, Any]:
    """The JSON table in a file, with a schema that this code reads.

    Raises OSError where the file cannot be read, and ValueError, naming it, where it is damaged, a link, or newer.
    """
    text = read_text(path)
    try:
        table = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged or no JSON: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path} is damaged: it must hold a table, got {shown(table)}")
    check_schema(table.get("schema"), str(path))
    return table


def sweep_up(directory: pathlib.Path) -> None:
    """Remove what killed processes left half-written in a folder that nobody else writes to now."""
    with enter(directory) as folder:
        for name in folder.names():
            if name.startswith(".") and name.endswith(PARTIAL):
                folder.remove(name)


def check_writable(folder: pathlib.Path) -> None:
    """Make a folder and try it. Raises ValueError where it cannot be made, written to, or has no space left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with enter(folder) as tried:
            probe = f".probe-{os.getpid()}{PARTIAL}"
            tried.write(probe, b"\0" * 2**16)
            tried.remove(probe)
    except OSError as error:
        raise ValueError(f"results cannot be written to {folder}: {error.strerror or error}") from None


def check_could_write(folder: pathlib.Path) -> None:
    """Raise ValueError where a folder could not be made or written to, without trying it."""
    nearest = next((path for path in (folder, *folder.absolute().parents) if path.exists()), pathlib.Path("/"))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        number = errno.EACCES if nearest.is_dir() else errno.EEXIST if nearest == folder else errno.ENOTDIR
        raise ValueError(f"results cannot be written to {folder}: {os.strerror(number)}")


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
    with enter(path.parent) as folder, folder.opened(path.name, flags) as descriptor:
        yield descriptor
