"""The canary: files beside the mutated folder that no command has any reason to touch, and how to notice that one did.

Its names are those that careless code would move or delete if a link led it there: steps, half-written checkpoints,
checkpoints set aside, records and leases. `secret.txt` holds a marker that no output may contain.
"""

import hashlib
import os
import pathlib
import shutil
import stat
from collections.abc import Collection, Mapping
from typing import NamedTuple

MARKER = "QXCANARYSECRETZV"
"""A word that stands in no file but the secret one."""


class Entry(NamedTuple):
    """All that is compared of one file, folder, link or pipe. The size of a folder depends on its file system: 0 here."""

    kind: str
    mode: int
    size: int
    changed: int
    content: str


def plant(folder: pathlib.Path, run: pathlib.Path) -> None:
    """Make the canary at `folder`; `run` is the folder of a sound run, which is copied into it."""
    folder.mkdir()
    for name in ("20", "40", "60", "80.orbax-checkpoint-tmp-1234", "checkpoints_damaged/60", "report/figures"):
        (folder / name / "state" / "d").mkdir(parents=True)
        (folder / name / "state" / "d" / "0123").write_bytes(b"the only copy")
        (folder / name / "_CHECKPOINT_METADATA").write_text("{}")
    for name in ("sweep.json", "status.json", "manifest.json", "config.json"):
        (folder / name).write_text('{"schema": 1}\n')
    for name in ("metrics.jsonl", "results.jsonl"):
        (folder / name).write_text('{"schema": 1, "step": 1}\n')
    for name in ("lease-000001", "traceback.txt", "report.html", "index.sqlite"):
        (folder / name).write_text("precious\n")
    (folder / "secret.txt").write_text(f"{MARKER} " * 500)
    shutil.copytree(run, folder / "run")
    os.mkfifo(folder / "pipe")


def snapshot(folder: pathlib.Path, leave_out: Collection[str] = ()) -> dict[str, Entry]:
    """Every entry below a folder by its path, links not followed; names in `leave_out` are passed over at the top."""
    found = {}
    for path in _below(folder, leave_out):
        name = str(path.relative_to(folder))
        found[name] = _entry(path)
    return found


def differences(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[str]:
    """One line for each entry that was added, deleted or changed."""
    lines = [f"{name} was deleted" for name in before.keys() - after.keys()]
    lines += [f"{name} was added ({after[name].kind})" for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        pairs = zip(Entry._fields, before[name], after[name], strict=True)
        fields = [field for field, old, new in pairs if old != new]
        lines += [f"{name} was changed: {', '.join(fields)}"] if fields else []
    return sorted(lines)


def _below(folder: pathlib.Path, leave_out: Collection[str]) -> list[pathlib.Path]:
    found = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:  # without the rights of root; its mode and time are compared all the same
        return found
    for entry in entries:
        if entry.name in leave_out:
            continue
        found.append(pathlib.Path(entry.path))
        if entry.is_dir(follow_symlinks=False):
            found += _below(found[-1], ())
    return found


def _entry(path: pathlib.Path) -> Entry:
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        return Entry("link", mode, found.st_size, found.st_mtime_ns, os.readlink(path))
    if stat.S_ISDIR(found.st_mode):
        return Entry("folder", mode, 0, found.st_mtime_ns, "")
    if not stat.S_ISREG(found.st_mode):
        return Entry("other", mode, 0, found.st_mtime_ns, "")
    return Entry("file", mode, found.st_size, found.st_mtime_ns, _sha256(path))


def _sha256(path: pathlib.Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except PermissionError:
        return "unreadable"
