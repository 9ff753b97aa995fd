"""A folder whose content is not trusted: no link inside is followed, no pipe is waited for, and reads have a bound.

    with enter("runs/copy/0123456789abcdef") as run:
        text = run.read("status.json", limit=2**20)
        with run.enter("checkpoints") as checkpoints:
            print(checkpoints.names())

A `Folder` holds a directory descriptor, and every operation names one entry of that directory (`openat`, `renameat`, ...
with `O_NOFOLLOW`). What a link points to is therefore never read, written, moved or deleted, even if somebody replaces
a folder by a link while it is in use. Systems without directory descriptors (Windows) check each path for links before
they use it, which protects against folders that somebody else made, not against somebody who changes them meanwhile.
"""

import contextlib
import errno
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Iterator
from typing import Any, Literal, Self

Kind = Literal["file", "folder", "link", "other", ""]
"""What an entry is; "other" is a pipe, a socket or a device, "" an entry that does not exist."""

DESCRIPTORS = {os.open, os.mkdir, os.rename, os.stat, os.unlink} <= os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Opening a pipe without O_NONBLOCK would wait for its other end.
FILE_FLAGS = FLAGS | getattr(os, "O_NONBLOCK", 0)
FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_DIRECTORY", 0)
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)
"""What file systems say that have no hard links."""
PARTIAL = ".tmp"
"""How names of files end that are not whole yet; they begin with a dot."""
DEEPEST = 20
"""Levels of folders that `files` descends."""


class LinkError(ValueError):
    """A link where only files and folders are expected."""

    def __init__(self, path: pathlib.Path):
        super().__init__(f"{path} is a link; in a folder of results links are not followed")


class Folder:
    """An open directory, see `enter`. Use as a context manager, or call `close`.

    Every method raises `LinkError` for a link, `ValueError` for a name that is not one component or an entry of another
    kind than asked for, and `OSError`, whose `filename` is the full path, where the system refuses.
    """

    def __init__(self, path: pathlib.Path, descriptor: int):
        self.path, self._descriptor = path, descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the descriptor. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def names(self) -> list[str]:
        """The names of all entries, sorted."""
        with self._named():
            return sorted(os.listdir(self._descriptor if DESCRIPTORS else self.path))

    def kind(self, name: str) -> Kind:
        """What the entry is, without following it."""
        with self._named(name):
            try:
                mode = os.stat(*self._at(name), follow_symlinks=False, **self._here()).st_mode
            except FileNotFoundError:
                return ""
        kinds = ((stat.S_ISLNK, "link"), (stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"))
        return next((kind for test, kind in kinds if test(mode)), "other")

    def enter(self, name: str) -> "Folder":
        """The folder of this name in this one."""
        with self._named(name):
            return Folder(self.path / name, self._open_folder(name))

    def make(self, name: str) -> "Folder":
        """The same; made where there is none."""
        with self._named(name), contextlib.suppress(FileExistsError):
            os.mkdir(*self._at(name), **self._here())
        return self.enter(name)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of a regular file, to be closed by the caller. `flags` are those of `os.open`."""
        with self._named(name):
            if not DESCRIPTORS:
                self._refuse_link(name)
            try:
                descriptor = os.open(*self._at(name), flags | FILE_FLAGS, 0o666, **self._here())
            except OSError:
                self._refuse_link(name)
                raise
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                os.close(descriptor)
                raise ValueError(f"{self.path / name} is no regular file")
            if flags & (os.O_WRONLY | os.O_RDWR) and about.st_nlink > 1:
                os.close(descriptor)
                raise ValueError(
                    f"{self.path / name} is a hard link: writing would change another file; make it a copy"
                )
            return descriptor

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """The same, closed at the end of the block."""
        descriptor = self.open(name, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, name: str, limit: int) -> bytes:
        """The content of a file. Raises ValueError where it has more than `limit` bytes."""
        parts, size = [], 0
        for part in self.pieces(name):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise ValueError(f"{self.path / name} is larger than {limit} bytes")
        return b"".join(parts)

    def pieces(self, name: str, size: int = 2**20) -> Iterator[bytes]:
        """The content of a file in parts of at most `size` bytes."""
        with self.opened(name) as descriptor, self._named(name):
            while part := os.read(descriptor, size):
                yield part

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a file, or a link, by a file of this content, in one step. `durable`: it is on the disk on return.

        Where the disk refuses, the old file stays as it was.
        """
        temporary = self._written(name, data, durable=durable)
        try:
            with self._named(name):
                os.replace(*self._at(temporary), *self._at(name), **self._between(self))
        except BaseException:
            self.remove(temporary)
            raise
        if durable:
            self.sync()

    def create(self, name: str, data: bytes, *, durable: bool = True) -> bool:
        """Make a file of this content, in one step; False where there is an entry of this name already. `durable`: as above."""
        if self.kind(name):
            return False
        temporary = self._written(name, data, durable=durable)
        try:
            with self._named(name):
                os.link(*self._at(temporary), *self._at(name), **self._between(self))
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            if self.kind(name):
                return False
            self.move(temporary, self, name)
        finally:
            self.remove(temporary)
        if durable:
            self.sync()
        return True

    def _written(self, name: str, data: bytes, *, durable: bool) -> str:
        """The name of a new file of this content beside `name`."""
        temporary = f".{_component(name)}.{secrets.token_hex(6)}{PARTIAL}"
        try:
            with self.opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor, self._named(name):
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                if durable:
                    os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        return temporary

    def move(self, name: str, to: "Folder", new: str) -> None:
        """Rename an entry, a link included as what it is, to `new` in the folder `to`, in place of a file of that name."""
        with self._named(name):
            os.replace(*self._at(name), *to._at(new), **self._between(to))

    def remove(self, name: str) -> None:
        """Delete a file, a link (not what it points to), or a folder with all that it holds; nothing where it is not."""
        kind = self.kind(name)
        with self._named(name), contextlib.suppress(FileNotFoundError):
            if kind == "folder":
                shutil.rmtree(*self._at(name), **self._here())
            elif kind:
                os.unlink(*self._at(name), **self._here())

    def files(self, deepest: int = DEEPEST) -> Iterator[tuple[str, "Folder", str]]:
        """Every regular file below: its path relative to here, with /, and the open folder and the name to read it by.

        Raises ValueError at the first link, pipe, socket or device, and below `deepest` levels.
        """
        if deepest < 0:
            raise ValueError(f"{self.path} is nested too deeply")
        for name in self.names():
            kind = self.kind(name)
            if kind == "file":
                yield name, self, name
            elif kind == "folder":
                with self.enter(name) as below:
                    for path, folder, last in below.files(deepest - 1):
                        yield f"{name}/{path}", folder, last
            elif kind == "link":
                raise LinkError(self.path / name)
            elif kind:
                raise ValueError(f"{self.path / name} is no regular file")

    def sync(self) -> None:
        """Bring renames and new names to the disk, on systems that can."""
        if DESCRIPTORS:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)

    def _open_folder(self, name: str) -> int:
        if not DESCRIPTORS:
            return _check_folder(self.path / _component(name))
        try:
            return os.open(_component(name), FOLDER_FLAGS | FLAGS, dir_fd=self._descriptor)
        except OSError:
            self._refuse_link(name)
            raise

    def _refuse_link(self, name: str) -> None:
        if self.kind(name) == "link":
            raise LinkError(self.path / name) from None

    def _at(self, name: str) -> tuple[str]:
        return (_component(name) if DESCRIPTORS else str(self.path / _component(name)),)

    def _here(self) -> dict[str, Any]:
        return {"dir_fd": self._descriptor} if DESCRIPTORS else {}

    def _between(self, to: "Folder") -> dict[str, Any]:
        return {"src_dir_fd": self._descriptor, "dst_dir_fd": to._descriptor} if DESCRIPTORS else {}

    @contextlib.contextmanager
    def _named(self, name: str = "") -> Iterator[None]:
        """Errors of the system name the full path: that of a descriptor alone would say too little."""
        try:
            yield
        except OSError as error:
            error.filename = str(self.path / name if name else self.path)
            raise


def enter(path: str | os.PathLike[str], *, follow: bool = False) -> Folder:
    """The folder at a path, which must not be a link unless with `follow`; links before its last part are followed.

    Follow what the user named on the command line, such as the folder of a sweep, and nothing that a folder names.
    Raises LinkError, and OSError (FileNotFoundError, NotADirectoryError, ...) where it cannot be opened.

    Example:
      >>> import pathlib, tempfile
      >>> root = tempfile.mkdtemp()
      >>> _ = pathlib.Path(root, "status.json").write_text("{}")
      >>> with enter(root) as folder:
      ...     folder.names(), folder.read("status.json", limit=100)
      (['status.json'], b'{}')
    """
    path = pathlib.Path(path)
    if not DESCRIPTORS:
        return Folder(path, _check_folder(path, follow=follow))
    try:
        return Folder(path, os.open(path, FOLDER_FLAGS | (0 if follow else FLAGS)))
    except OSError:
        if not follow and path.is_symlink():
            raise LinkError(path) from None
        raise


def _component(name: str) -> str:
    """A name that leads to an entry of the folder itself."""
    if name in ("", ".", "..") or "/" in name or "\0" in name or os.sep in name:
        raise ValueError(f"an entry of a folder must be one name, got {name[:140]!r}")
    return name


def _check_folder(path: pathlib.Path, *, follow: bool = False) -> int:
    """-1, which stands for a descriptor on systems that have none, after checking that this is a folder."""
    if not follow and path.is_symlink():
        raise LinkError(path)
    if not stat.S_ISDIR(path.stat().st_mode):
        raise NotADirectoryError(20, os.strerror(20), str(path))
    return -1
