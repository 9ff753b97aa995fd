"""Which process trains a run: the file `claim` in the folder of the run, made with O_EXCL, so that one process makes it.

A claim names its process. Its heartbeat is its modification time, which a thread renews. A claim is dead when its process has
ended (on this machine: by number and start time, so that a reused number does not count), or, for other machines, when it is
older than `patience` seconds. Its age is taken by the clock of the file system (`file_time`), so that no clocks of two
machines are compared. A dead claim is moved away before a new one is made; one that is released is deleted.

A claim saves work and decides nothing: a process that is slow for longer than `patience` loses its claim and its run may be
computed twice. Each process writes into a folder of its own, and one result is published (`attempt.publish`).
"""

import contextlib
import json
import os
import pathlib
import platform
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from attnjax import safety
from attnjax.config.files import parse_json

FILE = "claim"
PATIENCE = 60.0
LARGEST = 4096
"""Bytes of a claim."""


class Owner(NamedTuple):
    """The process that holds a claim, and what it trains: the attempt, the step of the newest checkpoint at its begin, and how
    many processes have died in a row at that checkpoint.
    """

    attempt: str = ""
    host: str = "?"
    machine: str = ""
    pid: int = 0
    started: str = ""
    step: int = 0
    deaths: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Claim:
    """The claim that this process holds on the run in a folder.

    `certain`: the process before it, if any, has given up or died for certain, and writes nothing any more.
    """

    def __init__(self, run: pathlib.Path, owner: Owner, *, certain: bool):
        self.run, self.owner, self.certain, self.released = run, owner, certain, False

    def beat(self) -> bool:
        """Renew the claim. Returns False where another process has it by now."""
        if self.released:
            return True
        there = holder(self.run)
        if there is None or there.attempt != self.owner.attempt:
            return self.released
        os.utime(self.run / FILE)
        return True

    def release(self) -> None:
        """Give the run back, unless another process has it. A second call does nothing."""
        if not self.released:
            self.released = True
            with contextlib.suppress(OSError):
                if (there := holder(self.run)) is not None and there.attempt == self.owner.attempt:
                    (self.run / FILE).unlink()


def claim(run: pathlib.Path, now: float, patience: float, *, attempt: str = "", step: int = 0) -> Claim | Owner:
    """Return a claim on a run, or the owner of the one that another process holds.

    Args:
      run: the folder of the run.
      now: the time of the file system, see `file_time`.
      patience: seconds without heartbeat after which a process of another machine counts as dead.
      attempt: its name.
      step: of the newest checkpoint: an owner that died without a newer one counts as one more death.

    Raises OSError where the folder cannot be written to.
    """
    there, deaths, certain = holder(run), 0, True
    if there is not None:
        if not is_dead(run, there, now, patience):
            return there
        if not _moved_away(run, there):
            return holder(run) or Owner()
        deaths = 0 if step > there.step else there.deaths + 1
        certain = there.machine == machine_id() != ""
    pid = os.getpid()
    owner = Owner(attempt, socket.gethostname()[:100], machine_id(), pid, start_time(pid), step, deaths)
    try:
        with (run / FILE).open("x") as file:
            file.write(json.dumps(owner._asdict()))
    except FileExistsError:
        return holder(run) or Owner()
    except OSError:
        with contextlib.suppress(OSError):
            (run / FILE).unlink(missing_ok=True)
        raise
    return Claim(run, owner, certain=certain)


def holder(run: pathlib.Path) -> Owner | None:
    """Return the owner that the claim of a run names, dead or alive; None where there is no claim.

    It is an unknown one, judged by its heartbeat alone, where the claim cannot be read or is being written.
    """
    return _owner(run / FILE)


def _owner(path: pathlib.Path) -> Owner | None:
    try:
        table = parse_json(safety.read(path, LARGEST).decode("utf-8"))
        defaults = Owner()._asdict()
        return Owner(**{name: table[name] for name, one in defaults.items() if type(table[name]) is type(one)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return Owner()


def living(run: pathlib.Path, now: float, patience: float = PATIENCE) -> Owner | None:
    """Return the owner of a run; None where it has none, or a dead one."""
    there = holder(run)
    return None if there is None or is_dead(run, there, now, patience) else there


def is_dead(run: pathlib.Path, owner: Owner, now: float, patience: float) -> bool:
    """Return whether the owner of a claim has ended, or seems to: see the text of the module."""
    if owner.machine and owner.machine == machine_id():
        return not is_running(owner.pid, owner.started)
    return silence(run, now) > patience


def silence(run: pathlib.Path, now: float) -> float:
    """Return how many seconds ago the heartbeat of a claim was; 0 where the claim is gone."""
    try:
        return now - (run / FILE).lstat().st_mtime
    except OSError:
        return 0.0


def file_time(folder: pathlib.Path) -> float:
    """Return the time by the clock of a file system: that of a file just made. Raises OSError where none can be made."""
    path = folder / f".clock-{secrets.token_hex(6)}.tmp"
    path.touch()
    try:
        return path.stat().st_mtime
    finally:
        path.unlink()


@contextlib.contextmanager
def heartbeat(claims: Sequence[Claim], interval: float, lost: Callable[[Claim], None]) -> Iterator[None]:
    """Renew claims in a thread until the end of the block; `lost` is called with each that another process has taken over."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(interval):
            for one in claims:
                with contextlib.suppress(OSError):  # a lost folder is for the training function to meet
                    if not one.beat():
                        lost(one)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _moved_away(run: pathlib.Path, dead: Owner) -> bool:
    """Move a dead claim away. Another process may have done so, and made its own claim: that is put back, and False."""
    away = run / f".{FILE}-{secrets.token_hex(6)}"
    try:
        os.rename(run / FILE, away)
    except FileNotFoundError:
        return True
    mine = _owner(away) == dead
    if not mine:
        with contextlib.suppress(OSError):
            os.link(away, run / FILE)
    away.unlink()
    return mine


def machine_id() -> str:
    """Return an id of this machine, its boot and its process namespace (containers number processes for themselves).

    It is "" where the system has none: owners are then judged by their heartbeat alone.
    """
    if sys.platform == "darwin":
        return f"{platform.node()}/{_output('sysctl', '-n', 'kern.boottime')}"
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Return when a process started, in the words of the system; "" for no process or a zombie."""
    if sys.platform == "darwin":
        return _output("ps", "-o", "lstart=", "-p", str(pid))
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()  # a name may hold spaces and brackets
    return "" if state in ("Z", "X") else fields[18]


def is_running(pid: int, started: str) -> bool:
    """Return whether the process with this number and start time still runs."""
    return bool(started) and start_time(pid) == started


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
