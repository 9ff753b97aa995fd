"""Folders of runs in object storage, for reading: `gs://bucket/theta`, `s3://bucket/theta`, or another URL of fsspec.

    with mirrored("gs://bucket/theta") as folder:
        found = scan(folder)

The plan and the records of each run are copied into a folder of this machine, which is read as any other and removed at the
end; checkpoints stay where they are. Names in a bucket are not trusted: what is written has names that this code chose, and no
file is copied beyond the size that is read. Of what is no part of a sweep an empty file has the name, so that reports list it.

Nothing is trained there: leases need files that exactly one process can make, which object storage does not promise.
"""

import contextlib
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from attnjax.config.files import SIZE, SWEEP_FILE
from attnjax.config.names import SAFE_NAME
from attnjax.folder import Folder, enter
from attnjax.records import inventory, jsonl, lines, status
from attnjax.records.runs import CONFIG, MANIFEST, OURS, RUN, SIZE_OF_PLAN, TUNING
from attnjax.records.values import printable

URL = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.DOTALL)
FLAT = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)")
"""How the text of a path begins that was made of a URL."""
TABLES = (CONFIG, MANIFEST, status.FILE)
RECORDS = (*TABLES, *jsonl.FILES, inventory.EXAMPLES)
"""The files of a run that are copied."""
BATCH, TOGETHER = 2**26, 256
"""Bytes and files that are asked for at once."""
ABSENT = 2**40
"""Most bytes that a file claims whose content is not copied, because nobody reads so much."""


class Remote(NamedTuple):
    """A file that is copied: its name there, the run (or "") and the name here, its size there (None: unknown), and the bytes
    beyond which no reader takes it.
    """

    path: str
    run: str
    name: str
    size: int | None
    limit: int

    def wanted(self) -> int:
        """How many bytes to ask for: of a table, which is replaced as a whole, as many as are read, or one more."""
        known = self.size if self.size is not None and self.name not in TABLES else self.limit + 1
        return min(known, self.limit + 1)


def is_remote(address: str | os.PathLike[str]) -> bool:
    """Whether an address is a URL and no path.

    Example:
      >>> is_remote("gs://bucket/theta"), is_remote("runs/theta"), is_remote("C:/runs/theta")
      (True, False, False)
    """
    return isinstance(address, str) and URL.fullmatch(address) is not None


def local(address: str | os.PathLike[str], why: str) -> pathlib.Path:
    """The path of a folder of this machine. Raises ValueError, which ends with `why`, for a URL, also one made a path."""
    text = os.fspath(address)
    if is_remote(text) or (not os.path.exists(text) and FLAT.match(text)):
        raise ValueError(f"{text} is a URL, and {why}")
    return pathlib.Path(text)


@contextlib.contextmanager
def mirrored(address: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """The folder of runs at an address: of a path that itself, of a URL a copy of its records, removed at the end of the block.

    Raises ValueError, in the block too with the URL in place of the copy's path, where there is nothing, the package for
    this kind of URL is missing, or it cannot be read.
    """
    if not is_remote(address):
        yield pathlib.Path(address)
        return
    url = str(address).rstrip("/")
    with tempfile.TemporaryDirectory(prefix="attnjax-") as made:
        last = url.rpartition("/")[2]
        root = pathlib.Path(made).resolve() / (last if SAFE_NAME.fullmatch(last) else "runs")
        root.mkdir()
        _copy(url, root)
        try:
            yield root
        except (ValueError, OSError) as error:
            error.args = tuple(one.replace(str(root), url) if isinstance(one, str) else one for one in error.args)
            raise


def _copy(url: str, root: pathlib.Path) -> None:
    system, prefix = _opened(url)
    try:
        found = system.find(prefix, maxdepth=2, withdirs=True, detail=True)
    except Exception as error:
        raise _refusal(url, error) from None
    kinds = _entries(found, prefix)
    if not kinds:
        raise ValueError(f"there is nothing at {url}: give the folder that a sweep was written to")
    with enter(root) as folder:
        for name in sorted({parts[0] for parts, about in kinds.items() if len(parts) > 1 or about[1] is None}):
            if RUN.fullmatch(name):
                folder.make(name).close()
        wanted = [_remote(parts, about) for parts, about in sorted(kinds.items())]
        for batch in _batches([one for one in wanted if one is not None]):
            _fetch(system, url, batch, folder)
        for name in sorted({parts[0] for parts in kinds}):
            if not OURS.fullmatch(name):
                folder.create(_harmless(name), b"")


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it. Raises ValueError where there is none."""
    scheme = url.partition("://")[0]
    if scheme in ("file", "local"):
        raise ValueError(f"{url} is a folder of this machine: give its path")
    try:
        from fsspec.core import url_to_fs

        system, prefix = url_to_fs(url)
    except ImportError as error:
        raise ValueError(
            f"{url} cannot be read: {_line(error)}. What reads gs:// and s3:// comes with pip install 'attnjax[cloud]'"
        ) from None
    except Exception as error:
        raise _refusal(url, error) from None
    return system, prefix.rstrip("/")


def _entries(found: Mapping[str, Any], prefix: str) -> dict[tuple[str, ...], tuple[str, int | None]]:
    """The path and size of what lies at most two levels below, by the parts of its name; the size of a folder is None."""
    entries = {}
    for path, about in found.items():
        parts = tuple(path.rstrip("/").removeprefix(f"{prefix}/").split("/"))
        if path.startswith(f"{prefix}/") and all(parts) and len(parts) <= 2:
            size = about.get("size")
            size = size if isinstance(size, int) and size >= 0 else -1
            entries[parts] = (path, None if about.get("type") == "directory" else size)
    return entries


def _remote(parts: tuple[str, ...], about: tuple[str, int | None]) -> Remote | None:
    """What to copy of an entry, if anything."""
    path, size = about
    if size is None:
        return None
    known = None if size < 0 else size
    if parts == (SWEEP_FILE,):
        return Remote(path, "", SWEEP_FILE, known, SIZE_OF_PLAN)
    if parts == (TUNING,):
        return Remote(path, "", TUNING, known, SIZE)
    if len(parts) == 2 and RUN.fullmatch(parts[0]) and parts[1] in RECORDS:
        return Remote(path, *parts, known, SIZE if parts[1] in TABLES else lines.LARGEST)
    return None


def _batches(files: list[Remote]) -> Iterator[list[Remote]]:
    batch, size = [], 0
    for file in files:
        batch.append(file)
        size += min(file.limit, file.size if file.size is not None else file.limit)
        if size > BATCH or len(batch) == TOGETHER:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _fetch(system: Any, url: str, batch: list[Remote], folder: Folder) -> None:
    """Copy files. One that vanished since is left out; of one that no reader takes only the size is copied."""
    read = [one for one in batch if one.size is None or 0 < one.size <= one.limit]
    paths, ends = [one.path for one in read], [one.wanted() for one in read]
    try:
        content = system.cat_ranges(paths, [0] * len(read), ends, on_error="return") if read else []
    except Exception as error:
        raise _refusal(url, error) from None
    found = dict(zip(paths, content, strict=True))
    for one in batch:
        data = found.get(one.path, b"")
        if isinstance(data, FileNotFoundError):
            continue
        if isinstance(data, BaseException):
            raise _refusal(url, data)
        with folder.enter(one.run) if one.run else enter(folder.path) as place:
            place.write(one.name, bytes(data), durable=False)
            if one.size is not None and one.size > one.limit:
                with place.opened(one.name, os.O_WRONLY) as file:
                    os.ftruncate(file, min(one.size, ABSENT))


def _harmless(name: str) -> str:
    """A name that a bucket gives to something, as the name of a file: with percent signs where it would be none."""
    plain = name.isprintable() and not {*name} & {*'/\\:*?"<>|'} and len(name.encode()) <= 200
    return name if plain else quote(name, safe="")[:200]


def _refusal(url: str, error: BaseException) -> ValueError:
    missing = isinstance(error, FileNotFoundError)
    return ValueError(f"{url} cannot be read: {'there is no such folder or bucket' if missing else _line(error)}")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {printable(text)[:300]}" if text else type(error).__name__
