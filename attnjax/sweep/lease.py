"""Leases: at most one process works on a run, and after its death, another.

A lease is the file `lease-000001` in the run's folder, made by an exclusive creation. Taking over makes `lease-000002`, and
so on: the highest number owns the run. No lease is ever removed, so two processes that both find one dead cannot both win,
even if one of them sees the folder as it was a minute ago, as file systems shared by several machines show it: exclusive
creation is the one operation that they decide in one place. A lease is dead when it was released, when its process on this
machine has ended (by number and start time, so that a reused number does not count), or, for other machines and for processes
of other users that the system hides, when its heartbeat has not changed for `patience` seconds of our own clock: no clocks are
compared.

The first line of the file says for good who the owner is, the second whether it holds the lease, with a counter that a
thread raises while the owner works, so that a long compilation does not look like death. Every mark is followed by fsync, after
which another machine that opens the file sees it. The last mark of an owner that has recorded the end of its run says so: its
status may be seen later than its lease, and a run that has ended is claimed by nobody but `retry`.
"""

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import platform
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from attnjax.config.schema import SCHEMA
from attnjax.folder import Folder, enter
from attnjax.records.status import FINAL
from attnjax.sweep.stop import Stop

FILE = re.compile(r"lease-(\d{6})")
BEAT, RELEASED = "beat", "free"
LAST = re.compile(f"{RELEASED} 0*({'|'.join(FINAL)})\n".encode())
"""The second line of the last lease of a run that has ended; earlier versions read that it is released."""
STATE = ("released", "ended")
"""What the second line says of an owner."""
PATIENCE = 60.0
PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True)
class Owner:
    """The process that holds a lease, as the lease says. `attempt` counts deaths in a row since the
    run had a new checkpoint, and `step` is that of the newest.

    `ended`: how the run ended, "done" or "failed", where it has.
    """

    host: str = "?"
    machine: str = ""
    pid: int = 0
    started: str = ""
    attempt: int = 1
    step: int = 0
    released: bool = False
    ended: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Watch:
    """The last heartbeat that was observed of each run whose owner is on another machine, and when by our own clock.

    Taking over is one, and a lease that cannot be read at a look is none.
    """

    def __init__(self, patience: float = PATIENCE):
        self.patience = patience
        self._seen: dict[pathlib.Path, tuple[str, bytes, float, bool]] = {}

    def is_free(self, path: pathlib.Path, content: bytes, owner: Owner) -> bool:
        """Return whether the lease is dead, and remember its heartbeat where its owner is on another machine, or hidden."""
        if owner.released or (owner.machine and owner.machine == machine_id() and not is_hidden(owner.pid)):
            self.forget(path.parent)
            return owner.released or not is_running(owner.pid, owner.started)
        now = time.monotonic()
        name, before, since, _ = self._seen.setdefault(path.parent, (path.name, content, now, False))
        if name != path.name or (content and content != before):
            self._seen[path.parent] = (path.name, content, now, True)
            return False
        return now - since > self.patience

    def silence(self, directory: pathlib.Path) -> tuple[float, bool] | None:
        """Return for how many seconds no heartbeat of the run was observed, and whether one ever was.

        None where its owner is on this machine, or has released it.
        """
        if directory not in self._seen:
            return None
        *_, since, alive = self._seen[directory]
        return time.monotonic() - since, alive

    def forget(self, directory: pathlib.Path) -> None:
        """Forget the heartbeats of a run, whose lease was taken over or released."""
        self._seen.pop(directory, None)

    def keep(self, directories: Collection[pathlib.Path]) -> None:
        """Forget the heartbeats of all runs but these, which are still waited for."""
        self._seen = {path: seen for path, seen in self._seen.items() if path in directories}

    def undecided(self, directory: pathlib.Path | None = None) -> bool:
        """Return whether waiting may yet show that an owner, of this run or of any, is dead: its lease was read, but no
        heartbeat was observed yet.
        """
        return any(not alive for path, (*_, alive) in self._seen.items() if directory in (None, path))


class Lease:
    """The lease of a run that this process holds. Call `renew` more often than `patience`, and `release` when done.

    `ended`: the final status that is on the disk, for `release` to tell; at first that of the lease before.
    """

    def __init__(self, path: pathlib.Path, descriptor: int, owner: Owner, size: int):
        self.path, self.owner, self.ended = path, owner, ""
        self._descriptor, self._size, self._beat = descriptor, size, 0
        self._lock = threading.Lock()  # a run of several may end, and its lease be released, while a thread renews all

    def held(self) -> bool:
        """Return whether no other process took over, say while this machine was suspended.

        Raises OSError, or ValueError for a link, where the folder cannot be read.
        """
        with enter(self.path.parent) as folder:
            return self._descriptor >= 0 and (_latest(folder) or "") <= self.path.name

    def renew(self) -> bool:
        """Raise the heartbeat by one, unless it is released. Returns False where the lease is lost."""
        with self._lock:
            if self._descriptor < 0:
                return True
            self._beat += 1
            self._mark(BEAT)
            return self.held()

    def release(self) -> None:
        """Release the lease, so that others may claim the run if it has not `ended`. A second call does nothing."""
        with self._lock:
            if self._descriptor < 0:
                return
            try:
                self._mark(RELEASED, self.ended)
            except OSError:  # a disk that refuses this may yet shorten the file
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
            os.close(self._descriptor)
            self._descriptor = -1

    def _mark(self, word: str, ended: str = "") -> None:
        # In place: replacing the file would give it another inode, which readers of a shared file system may not see for long.
        os.lseek(self._descriptor, self._size, os.SEEK_SET)
        os.write(self._descriptor, heartbeat_line(word, ended or self._beat))
        os.fsync(self._descriptor)


def claim(directory: pathlib.Path, watch: Watch, step: int = 0, *, again: bool = False) -> Lease | Owner:
    """Return a lease of the run, or the owner of the one that another process holds or with which the run ended.

    `step` is that of the newest checkpoint of the run, from which it goes on: an owner that died since counts as one more
    failed attempt. `again`: a run that has ended is claimed too.

    Raises OSError where the folder cannot be written to, ValueError where it is a link.
    """
    with enter(directory) as folder:
        latest = _latest(folder)
        number, attempt, ended = 1, 1, ""
        if latest is not None:
            content = _read(folder, latest)
            owner = _parse(content)
            ended = owner.ended
            if ended and not again:
                return owner
            if not watch.is_free(directory / latest, content, owner):
                return owner
            watch.forget(directory)
            number = int(latest[-6:]) + 1
            attempt = 1 if owner.released or step > owner.step else owner.attempt + 1
        lease = _create(folder, f"lease-{number:06d}", this_process(attempt, step))
        if lease is None or not lease.held():
            if lease is not None:  # of a folder whose first leases an earlier version removed
                lease.release()
            return _holder(folder) or Owner()
        lease.ended = ended
        return lease


def observe(directory: pathlib.Path, watch: Watch) -> Owner:
    """Return the owner of the run, dead or alive, and let `watch` observe its heartbeat."""
    owner, _ = _observed(directory, watch)
    return owner or Owner()


def live_owner(directory: pathlib.Path, watch: Watch) -> Owner | None:
    """Return the owner of the run; None where it has none, or a dead one. `watch` observes its heartbeat too."""
    owner, free = _observed(directory, watch)
    return None if free else owner


def _observed(directory: pathlib.Path, watch: Watch) -> tuple[Owner | None, bool]:
    """Return the owner that the newest lease names, None where there is no lease, and whether the run is free."""
    with enter(directory) as folder:
        latest = _latest(folder)
        if latest is None:
            return None, True
        content = _read(folder, latest)
    owner = _parse(content)
    return owner, watch.is_free(directory / latest, content, owner)


def holder(directory: pathlib.Path) -> Owner | None:
    """Return the owner of the run as its lease says, dead or alive; None where there is no lease."""
    with enter(directory) as folder:
        return _holder(folder)


def _holder(folder: Folder) -> Owner | None:
    latest = _latest(folder)
    return None if latest is None else _parse(_read(folder, latest))


def _create(folder: Folder, name: str, owner: Owner) -> Lease | None:
    head = identity_line(owner)
    try:
        descriptor = folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return None
    try:
        if os.write(descriptor, head + heartbeat_line(BEAT, 0)) < len(head):
            raise OSError(errno.ENOSPC, "no space left for a lease", str(folder.path / name))
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        folder.remove(name)
        raise
    return Lease(folder.path / name, descriptor, owner, len(head))


def _latest(folder: Folder) -> str | None:
    return max((name for name in folder.names() if FILE.fullmatch(name)), default=None)


@contextlib.contextmanager
def heartbeat(leases: Sequence[Lease], interval: float, stop: Stop) -> Iterator[None]:
    """Renew leases in a thread until the end of the block. Where one was lost, set `stop`, and go on with the others."""
    ended = threading.Event()

    def beat() -> None:
        """Renew all leases until the block ends: whoever saves the other runs still holds them."""
        while not ended.wait(interval):
            for lease in leases:
                try:
                    renewed = lease.renew()
                except (OSError, ValueError):  # a full disk, a lost folder: for the training function to meet
                    continue
                if not renewed:
                    stop.set(f"the lease of {lease.path.parent.name} was taken over")

    thread = threading.Thread(target=beat, name="lease-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# The file of a lease


def this_process(attempt: int, step: int) -> Owner:
    """Return this process as an owner."""
    return Owner(socket.gethostname()[:100], machine_id(), os.getpid(), start_time(os.getpid()), attempt, step)


def identity_line(owner: Owner) -> bytes:
    """Return the first line of a lease: its owner, which never changes."""
    fields = {name: value for name, value in dataclasses.asdict(owner).items() if name not in STATE}
    return json.dumps({"schema": SCHEMA, "token": secrets.token_hex(8), **fields}).encode() + b"\n"


def heartbeat_line(word: str, mark: int | str) -> bytes:
    """Return the second line of a lease: its state, and its heartbeat or how the run ended, always of the same length."""
    return f"{word} {mark:0>12}\n".encode()


def _read(folder: Folder, name: str) -> bytes:
    """Return the content of a lease, empty where it vanished or its owner died while writing it."""
    try:
        with folder.opened(name) as descriptor:
            return os.read(descriptor, 4096)
    except (OSError, ValueError):
        return b""


def _parse(content: bytes) -> Owner:
    """Return the owner that a lease names; an unknown one, judged by its heartbeat alone, where it is unreadable."""
    head, end, tail = content.partition(b"\n")
    try:
        table = json.loads(head)
        names = {field.name: type(field.default) for field in dataclasses.fields(Owner) if field.name not in STATE}
        values: dict[str, Any] = {
            name: table[name] for name, kind in names.items() if isinstance(table.get(name), kind)
        }
    except (ValueError, AttributeError, RecursionError):
        return Owner()
    found = LAST.match(tail)
    released = bool(end) and (not tail or tail.startswith(RELEASED.encode()))
    return Owner(**values, released=released, ended=found[1].decode() if found else "")


# Processes of this machine


def machine_id() -> str:
    """Return an id of this machine, its boot and its process namespace (containers number processes for themselves).

    It is "" where the system has none: owners are then judged by their heartbeat alone.
    """
    if sys.platform == "darwin":
        return f"{platform.node()}/{_output('sysctl', '-n', 'kern.boottime')}"
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Return when a process started, in the words of the system; "" for no process or a zombie."""
    if sys.platform == "darwin":
        return _output("ps", "-o", "lstart=", "-p", str(pid))
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()  # a name may hold spaces and brackets
    return "" if state in ("Z", "X") else fields[18]


def is_running(pid: int, start: str) -> bool:
    """Return whether the process with this number and start time still runs."""
    return bool(start) and start_time(pid) == start


def is_hidden(pid: int) -> bool:
    """Return whether there is a process of another user with this number whose start the system does not tell (`hidepid`)."""
    if start_time(pid):
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
