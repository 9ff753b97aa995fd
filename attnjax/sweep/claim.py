"""Which process trains a run: the file `claim` in the folder of the run, made with O_EXCL, so that one process makes it.

A claim names its process, and its modification time is the heartbeat, which a thread renews. A claim is dead when its process
has ended, if that is of this machine, or when its heartbeat is older than `patience` seconds. A dead claim is moved away before
a new one is made; one that is released is deleted.

A claim saves work and decides nothing: a process that is slow for longer than `patience` loses its claim, and its run may be
computed twice. Each process writes into a folder of its own, and one result is published (`attempt.publish`).
"""

import contextlib
import json
import os
import pathlib
import platform
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from attnjax import safety

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
    step: int = 0
    deaths: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def ended(self) -> bool:
        """Whether its process is one of this machine, and runs no more."""
        return self.machine == machine_id() and not is_running(self.pid)


class Claim(NamedTuple):
    """The claim that this process holds on the run in a folder.

    `certain`: the process before it, if any, has given up or died for certain, and writes nothing any more.
    """

    run: pathlib.Path
    owner: Owner
    certain: bool

    def beat(self) -> bool:
        """Renew the claim. Returns False where another process has it by now."""
        there = holder(self.run)
        if there is not None and there.attempt == self.owner.attempt:
            os.utime(self.run / FILE)
        return there is None or there.attempt == self.owner.attempt

    def release(self) -> None:
        """Give the run back, unless another process has it."""
        with contextlib.suppress(OSError):
            if (there := holder(self.run)) is not None and there.attempt == self.owner.attempt:
                (self.run / FILE).unlink()


def claim(run: pathlib.Path, patience: float, *, attempt: str = "", step: int = 0) -> Claim | Owner:
    """Return a claim on the run in a folder, or the owner of the one that another process holds.

    `attempt` is its name. `step` is that of the newest checkpoint: an owner that died without a newer one counts as one more
    death. Raises OSError where the folder cannot be written to.
    """
    there, deaths, certain = holder(run), 0, True
    if there is not None:
        if not is_dead(run, there, patience):
            return there
        if not _moved_away(run, there):
            return holder(run) or Owner()
        deaths, certain = 0 if step > there.step else there.deaths + 1, there.ended
    owner = Owner(attempt, socket.gethostname()[:100], machine_id(), os.getpid(), step, deaths)
    try:
        with (run / FILE).open("x") as file:
            file.write(json.dumps(owner._asdict()))
    except FileExistsError:
        return holder(run) or Owner()
    except OSError:
        with contextlib.suppress(OSError):
            (run / FILE).unlink(missing_ok=True)
        raise
    return Claim(run, owner, certain)


def holder(run: pathlib.Path) -> Owner | None:
    """Return the owner that the claim of a run names, dead or alive; None where there is no claim.

    It is an unknown one, judged by its heartbeat alone, where the claim cannot be read or is being written.
    """
    return _owner(run / FILE)


def _owner(path: pathlib.Path) -> Owner | None:
    try:
        table = safety.parse_json(safety.read_text(path, LARGEST))
        defaults = Owner()._asdict()
        return Owner(**{name: table[name] for name, one in defaults.items() if type(table[name]) is type(one)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return Owner()


def living(run: pathlib.Path, patience: float = PATIENCE) -> Owner | None:
    """Return the owner of a run; None where it has none, or a dead one."""
    there = holder(run)
    return None if there is None or is_dead(run, there, patience) else there


def is_dead(run: pathlib.Path, owner: Owner, patience: float) -> bool:
    """Return whether the owner of a claim has ended, or seems to: see the text of the module."""
    if owner.ended:
        return True
    try:
        return time.time() - (run / FILE).lstat().st_mtime > patience
    except OSError:
        return False


def heartbeat(
    claims: Sequence[Claim], interval: float, lost: Callable[[Claim], None]
) -> contextlib.AbstractContextManager[None]:
    """Renew claims in a thread until the end of the block; `lost` is called with each that another process has taken over."""

    def beat(ended: threading.Event) -> None:
        while not ended.wait(interval):
            for one in claims:
                with contextlib.suppress(OSError):  # a lost folder is for the training function to meet
                    if not one.beat():
                        lost(one)

    return beside("heartbeat", beat)


@contextlib.contextmanager
def beside(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work(ended)` in a thread beside the block; at the end of the block `ended` is set, and the thread is waited for."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
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
    """Return an id of this machine, its boot and its process namespace, since containers number processes for themselves."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # systems without /proc
        return platform.node()


def is_running(pid: int) -> bool:
    """Return whether there is a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user, or no number of a process
        return True
    return True
