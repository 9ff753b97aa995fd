"""Folders of runs in object storage, for reading: `gs://bucket/theta`, `s3://bucket/theta`, or another URL of fsspec.

    with mirrored("gs://bucket/theta") as folder:
        found = scan(folder)

The plan and the records of each run are copied into a folder of this machine, which is removed at the end; checkpoints stay
where they are. Nothing is trained there: a claim is a file that exactly one process can make, which object storage does not
promise.
"""

import contextlib
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from attnjax.config.files import SWEEP_FILE
from attnjax.records import jsonl, status
from attnjax.records.runs import CONFIG, EXAMPLES, MANIFEST, PACKED, SCORES, TUNING
from attnjax.records.values import printable

URL = re.compile(r"[a-z][a-z0-9+.-]+:/(/.*|[^/].*)", re.DOTALL)
"""A URL, also one of which a path was made: `gs:/bucket/theta`."""
FILES = "|".join(map(re.escape, (CONFIG, MANIFEST, status.FILE, EXAMPLES, *jsonl.FILES)))
WHOLE = "|".join(map(re.escape, (SWEEP_FILE, TUNING, PACKED, SCORES, EXAMPLES)))
COPIED = re.compile(rf"{WHOLE}|[0-9a-f]{{16}}/(result/|attempt-[\w-]+/)?({FILES})")
"""What is copied. Names in a bucket are not trusted: none of these leads out of the folder."""


def is_remote(address: str | os.PathLike[str]) -> bool:
    """Return whether an address is a URL and no path.

    Example:
      >>> is_remote("gs://bucket/theta"), is_remote("runs/theta"), is_remote("C:/runs/theta")
      (True, False, False)
    """
    text = os.fspath(address)
    return URL.fullmatch(text) is not None and not os.path.exists(text)


def local(address: str | os.PathLike[str], why: str) -> pathlib.Path:
    """Return the path of a folder of this machine. Raises ValueError, which ends with `why`, for a URL."""
    if is_remote(address):
        raise ValueError(f"{os.fspath(address)} is a URL, and {why}")
    return pathlib.Path(address)


@contextlib.contextmanager
def mirrored(address: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yield the folder at a path itself, or a copy of the records at a URL, which is removed at the end of the block.

    Raises ValueError where there is nothing, or it cannot be read.
    """
    if not is_remote(address):
        yield pathlib.Path(address)
        return
    url = os.fspath(address).rstrip("/")
    with tempfile.TemporaryDirectory(prefix="attnjax-") as made:
        root = pathlib.Path(made).resolve() / (re.sub(r"[^\w.-]", "_", url.rpartition("/")[2]) or "runs")
        root.mkdir()
        try:
            _copy(url, root)
        except ImportError as error:
            raise ValueError(
                f"{url} cannot be read: {error}; pip install 'attnjax[cloud]' reads gs:// and s3://"
            ) from None
        except Exception as error:  # fsspec raises what each file system raises
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"{url} cannot be read: {printable(reason)[:300]}") from None
        yield root


def _copy(url: str, root: pathlib.Path) -> None:
    from fsspec.core import url_to_fs

    system, prefix = url_to_fs(url)
    found: dict[str, Any] = system.find(prefix, maxdepth=3, detail=True)
    names = {path.removeprefix(f"{prefix.rstrip('/')}/"): path for path in found}
    wanted = {name: path for name, path in names.items() if COPIED.fullmatch(name)}
    if not wanted:
        raise ValueError("there is no folder that a sweep was written to")
    for name, path in wanted.items():
        if (found[path].get("size") or 0) > jsonl.LARGEST:
            raise ValueError(f"{printable(name)} is larger than {jsonl.LARGEST} bytes")
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        system.get_file(path, str(root / name))
