"""Writes the stack traces of all threads while a run makes no progress. It ends nothing.

The timer is that of `faulthandler`, in C: it also runs while a library that hangs holds Python's lock.
"""

import contextlib
import faulthandler
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator

from attnjax import folder
from attnjax.sweep.store import LOGS

STDERR = 2


class Watchdog:
    """Writes stacks to an open file after `seconds` without a call of `progress`, and again after as long.

    Args:
      seconds: how long is too long.
      descriptor: the file to write to.
      where: its name, for people.
    """

    def __init__(self, seconds: float, descriptor: int, where: str):
        self._seconds, self._descriptor, self._where = seconds, descriptor, where
        self._armed = 0.0

    def progress(self) -> None:
        """Restart the timer, at most once a second, because each start makes a system thread."""
        if time.monotonic() - self._armed > min(1.0, self._seconds / 10):
            self._arm()

    @contextlib.contextmanager
    def watching(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Watches during the block; `tell`, called in another thread, gets a sentence whenever stacks were written."""
        ended = threading.Event()
        self._arm()
        thread = threading.Thread(target=self._watch, args=(ended, tell), name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            ended.set()
            thread.join()

    def _arm(self) -> None:
        self._armed = time.monotonic()
        faulthandler.dump_traceback_later(self._seconds, repeat=True, file=self._descriptor)

    def _watch(self, ended: threading.Event, tell: Callable[[str], None]) -> None:
        # A little late, so that the stacks are there when the sentence about them is read.
        late = min(1.0, self._seconds / 2)
        since, times = self._armed, 1
        while not ended.wait(max(0.0, since + times * self._seconds + late - time.monotonic())):
            if since != self._armed:
                since, times = self._armed, 1
            else:
                tell(f"no step for {times * self._seconds:g} s; the stacks of all threads are in {self._where}")
                times += 1


@contextlib.contextmanager
def watchdog(root: pathlib.Path, seconds: float, log: str = "") -> Iterator[Watchdog]:
    """A watchdog that writes to standard error where that is the file `log`, else to `logs/stacks-PID.txt` of a sweep."""
    if log:
        yield Watchdog(seconds, STDERR, log)
        return
    name = f"stacks-{os.getpid()}.txt"
    try:
        descriptor = _open(root, name)
    except (OSError, ValueError):  # a full disk, or a link: a hang is worth seeing all the same
        descriptor = STDERR
    if descriptor == STDERR:
        yield Watchdog(seconds, STDERR, "what was printed above")
        return
    try:
        yield Watchdog(seconds, descriptor, str(root / LOGS / name))
    finally:
        empty = os.fstat(descriptor).st_size == 0
        os.close(descriptor)
        with contextlib.suppress(OSError, ValueError):
            if empty:
                _remove(root, name)


def _open(root: pathlib.Path, name: str) -> int:
    with folder.enter(root, follow=True) as sweep, sweep.make(LOGS) as logs:
        return logs.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _remove(root: pathlib.Path, name: str) -> None:
    with folder.enter(root, follow=True) as sweep, sweep.enter(LOGS) as logs:
        logs.remove(name)
