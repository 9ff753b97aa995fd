"""Who works on a run: at most one process, and after its death, another.

A lease is the file `lease-000001` in the run's folder, made by an exclusive creation. Taking over makes `lease-000002`, and
so on: the highest number owns the run. No file is ever removed to make room for another, so two processes that both find a
lease dead cannot both win. A lease is dead when it was released, when its process on this machine has ended (by number
and start time, so that a reused number does not count), or, for other machines, when its heartbeat has not changed for
`patience` seconds of our own clock: no clocks are compared.
"""

import contextlib
import errno
import os
import pathlib
import re

from attnjax.folder import Folder, enter
from attnjax.sweep.owner import BEAT, RELEASED, Owner, Watch, first_line, myself, parse, read, second_line

FILE = re.compile(r"lease-(\d{6})")


class Lease:
    """A run that this process holds. `renew` before `patience` runs out elsewhere; `release` when done."""

    def __init__(self, path: pathlib.Path, descriptor: int, owner: Owner, size: int):
        self.path, self.owner = path, owner
        self._descriptor, self._size, self._beat = descriptor, size, 0

    def held(self) -> bool:
        """Whether nobody took over, say because this machine slept."""
        try:
            with enter(self.path.parent) as folder:
                return self._descriptor >= 0 and _latest(folder) == self.path.name
        except (OSError, ValueError):
            return False

    def renew(self) -> bool:
        """Beat once; False where the lease is lost."""
        self._beat += 1
        self._mark(BEAT)
        return self.held()

    def release(self) -> None:
        """Let others have the run. Safe to call twice."""
        if self._descriptor >= 0:
            try:
                self._mark(RELEASED)
            except OSError:  # a disk that refuses this may yet shorten the file
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
            os.close(self._descriptor)
            self._descriptor = -1

    def _mark(self, word: str) -> None:
        # In place: replacing the file could bring back one that a successor removed.
        os.lseek(self._descriptor, self._size, os.SEEK_SET)
        os.write(self._descriptor, second_line(word, self._beat))


def claim(directory: pathlib.Path, watch: Watch, step: int = 0) -> Lease | Owner:
    """The run's lease, or who has it. `step`: how far the run is, to tell a run that kills its workers from bad luck.

    Raises OSError where the folder cannot be written to, ValueError where it is a link.
    """
    with enter(directory) as folder:
        latest = _latest(folder)
        number, attempt = 1, 1
        if latest is not None:
            content = read(folder, latest)
            owner = parse(content)
            if not watch.is_free(directory / latest, content, owner):
                return owner
            watch.forget(directory / latest)
            number = int(latest[-6:]) + 1
            attempt = 1 if owner.released or step > owner.step else owner.attempt + 1
        lease = _create(folder, f"lease-{number:06d}", myself(attempt, step))
        if lease is None or not lease.held():
            if lease is not None:
                folder.remove(lease.path.name)
                lease.release()
            return _holder(folder) or Owner()
        for old in folder.names():
            if FILE.fullmatch(old) and old < lease.path.name:
                with contextlib.suppress(OSError):  # in nobody's way
                    folder.remove(old)
        return lease


def look(directory: pathlib.Path, watch: Watch) -> Owner:
    """Who holds the run, noting for later whether its lease beats."""
    with enter(directory) as folder:
        latest = _latest(folder)
        if latest is None:
            return Owner()
        content = read(folder, latest)
    watch.is_free(directory / latest, content, parse(content))
    return parse(content)


def working(directory: pathlib.Path, watch: Watch) -> Owner | None:
    """Who works on the run: its holder, unless that one is dead."""
    with enter(directory) as folder:
        latest = _latest(folder)
        if latest is None:
            return None
        content = read(folder, latest)
    owner = parse(content)
    return None if watch.is_free(directory / latest, content, owner) else owner


def holder(directory: pathlib.Path) -> Owner | None:
    """Who holds the run, as far as its lease says."""
    with enter(directory) as folder:
        return _holder(folder)


def _holder(folder: Folder) -> Owner | None:
    latest = _latest(folder)
    return None if latest is None else parse(read(folder, latest))


def _create(folder: Folder, name: str, owner: Owner) -> Lease | None:
    head = first_line(owner)
    try:
        descriptor = folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return None
    try:
        if os.write(descriptor, head + second_line(BEAT, 0)) < len(head):
            raise OSError(errno.ENOSPC, "no space left for a lease", str(folder.path / name))
    except BaseException:
        os.close(descriptor)
        folder.remove(name)
        raise
    return Lease(folder.path / name, descriptor, owner, len(head))


def _latest(folder: Folder) -> str | None:
    return max((name for name in folder.names() if FILE.fullmatch(name)), default=None)
