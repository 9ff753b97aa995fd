"""SHA256SUMS of a folder: the sha256 of every other file in it, as `sha256sum` writes it (`sha256sum -c SHA256SUMS`)."""

import hashlib
import re
from collections.abc import Iterator

from attnjax.folder import Folder
from attnjax.train.leaves import Damaged

FILE = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
LARGEST = 16 * 2**20
"""Bytes that are read of a table of a checkpoint: SHA256SUMS, leaves, what orbax wrote about them."""
PIECE = 2**20


def check(folder: Folder, most: int) -> bool:
    """Read every file of a step and compare it with SHA256SUMS. Returns False for a step of an earlier version without it.

    Raises Damaged where a file differs or the files hold more than `most` bytes, OSError where one cannot be read.
    """
    found = {}
    for path, where, name in folder.files():
        found[path], size = _sha256(where, name, most)
        most -= size
    if FILE not in found:
        return False
    del found[FILE]
    listed = dict(_parsed(folder.read(FILE, LARGEST)))
    wrong = sorted(path for path in listed.keys() | found.keys() if listed.get(path) != found.get(path))
    if wrong:
        more = f" and {len(wrong) - 3} more files" if len(wrong) > 3 else ""
        raise Damaged(f"{FILE} disagrees with {', '.join(wrong[:3])}{more}")
    return True


def of(folder: Folder) -> str:
    """Return the text of SHA256SUMS for the files of a step.

    Example:
      >>> import pathlib, tempfile
      >>> from attnjax.folder import enter
      >>> with tempfile.TemporaryDirectory() as step:
      ...     _ = pathlib.Path(step, "d").write_bytes(b"abc")
      ...     with enter(step) as folder:
      ...         of(folder)[:12], of(folder)[64:].split()
      ('ba7816bf8f01', ['d'])
    """
    lines = [f"{_sha256(where, name)[0]}  {path}\n" for path, where, name in folder.files()]
    return "".join(sorted(lines, key=lambda line: line[66:]))


def _sha256(folder: Folder, name: str, most: float = float("inf")) -> tuple[str, int]:
    """Return digest and size of a file. Raises Damaged where it is longer than `most` bytes."""
    total, size = hashlib.sha256(), 0
    for piece in folder.pieces(name, PIECE):
        total.update(piece)
        size += len(piece)
        if size > most:
            raise Damaged(f"{name} makes it larger than this state can be")
    return total.hexdigest(), size


def _parsed(text: bytes) -> Iterator[tuple[str, str]]:
    """Yield the path and digest of each line of SHA256SUMS."""
    for line in text.decode("utf-8", "replace").splitlines():
        found = LINE.fullmatch(line)
        if found is None:
            raise Damaged(f"{FILE} has a line that is no digest")
        yield found[2], found[1]
