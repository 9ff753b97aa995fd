"""How runs and commands end: signals that ask for a stop, the states of all runs, and the exit status.

    0      every run is done
    1      a run failed, or has not ended when the command ends
    2      the command cannot be carried out as it was given
    130    interrupted by SIGINT, SIGTERM, SIGUSR1 or SIGUSR2; runs that were in training are saved

The first signal sets a `Stop`, which training reads at every step. A second SIGINT or SIGTERM ends the process at once; the
runs then go on from their last checkpoint.
"""

import contextlib
import dataclasses
import errno
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from attnjax.records.runs import config_table, status_of
from attnjax.records.status import FINAL
from attnjax.sweep.claim import Owner, living
from attnjax.sweep.store import Store

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
UNWRITTEN = "unwritten"
"""The state of a run that this process could not read or write: on the disk it has not ended."""
DAMAGED = "damaged"
LOOK = 0.05
TOGETHER = 0.2
"""Seconds within which two signals count as one: `timeout` sends one to its child, and one to the group of the child."""
SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a disk says that takes no more; libraries below Python pass it on as text."""
OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory|cannot allocate memory|bad_alloc", re.IGNORECASE)
"""What XLA, the C library and C++ say where there is no memory left."""


class Stop:
    """Set once; read at every step: `reason` is "" until then. It has no lock, for it is set while signals are handled."""

    def __init__(self) -> None:
        self.reason = ""

    def set(self, reason: str) -> None:
        """Ask for a stop; the first reason stays."""
        self.reason = self.reason or reason

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until a stop is asked for; returns whether one is."""
        end = time.monotonic() + seconds
        while not self.reason and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK))
        return bool(self.reason)


@contextlib.contextmanager
def on_signals(stop: Stop, before_exit: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Listen to `SIGNALS` during the block: the first sets `stop`, a second SIGINT or SIGTERM ends the process with 130.

    `before_exit` is called before that. Does nothing outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A thread reads them from a socket: Python calls no handler while its main thread is in C code, as when XLA compiles.
    ears, mouth = socket.socketpair()
    mouth.setblocking(False)
    thread = threading.Thread(target=_listen, args=(ears, stop, before_exit), name="signals", daemon=True)
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    thread.start()
    wakeup = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        mouth.close()  # the thread reads the end, and ends
        thread.join()
        ears.close()


def _listen(ears: socket.socket, stop: Stop, before_exit: Callable[[], None]) -> None:
    first = 0.0
    while numbers := ears.recv(64):
        for number in numbers:
            name, now = signal.Signals(number).name, time.monotonic()
            if first and now - first > TOGETHER and name in ("SIGINT", "SIGTERM"):
                os.write(2, f"attnjax: the second {name} ends this process; the same command continues\n".encode())
                before_exit()
                os._exit(INTERRUPTED)
            if name in SIGNALS:
                stop.set(name)
                first = first or now


def why(error: BaseException) -> str:
    r"""Return the reason of a failure in one line, after a word for its kind, such as `oom:`.

    Example:
      >>> why(MemoryError("no 4 GiB")), why(ValueError("no\nsuch word"))
      ('oom: MemoryError: no 4 GiB', 'ValueError: no such word')
    """
    whole = " ".join(str(error).split())
    line = f"{type(error).__name__}: {whole[:300]}" if whole else type(error).__name__
    if isinstance(error, OSError) and (error.errno in FULL or any(os.strerror(number) in whole for number in FULL)):
        return f"disk full: {line}"
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(whole):
        return f"oom: {line}"
    return f"exit: {line}" if isinstance(error, SystemExit) else line


@dataclasses.dataclass(frozen=True)
class Summary:
    """How every run stands when a command ends.

    Args:
      states: the state of each run: done, failed, preempted, pending, running, damaged or unwritten.
      unwritten: why a run could not be read or written.
      others: the process that works on a run, where it is another one.
    """

    states: Mapping[str, str]
    unwritten: Mapping[str, str]
    others: Mapping[str, Owner]

    def of(self, state: str) -> list[str]:
        """Return the runs in a state."""
        return [run for run, found in self.states.items() if found == state]

    def open(self) -> list[str]:
        """Return the runs that have not ended, whoever works on them, and can."""
        return [run for run, state in self.states.items() if state not in (*FINAL, DAMAGED)]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in Counter(self.states.values()).items())
        return f"{len(self.states)} runs: {counts}"


def exit_status(summary: Summary, stop: Stop) -> int:
    """Return the exit status of a command that trained, see the text of the module."""
    if stop.reason.partition(" ")[0] in SIGNALS:  # without "of process 1"
        return INTERRUPTED
    return DONE if len(summary.of("done")) == len(summary.states) else FAILED


def summarise(store: Store, refused: Mapping[str, str]) -> Summary:
    """Return the states of all runs on the disk; `refused` says why this process could not read or write some."""
    found = states(store)
    unwritten = {run: reason for run, reason in refused.items() if found[run] not in FINAL}
    found |= dict.fromkeys(unwritten, UNWRITTEN)
    return Summary(found, unwritten, others(store, found))


def states(store: Store) -> dict[str, str]:
    """Return the state of each run on the disk; "damaged" if its folder, status or config is not sound."""
    return {entry.run: _state(store, entry.run) for entry in store.runs}


def is_open(store: Store) -> bool:
    """Return whether a run is left that has not ended. Looks no further than the first."""
    return any(_state(store, entry.run) not in (*FINAL, DAMAGED) for entry in store.runs)


def others(store: Store, states: Mapping[str, str]) -> dict[str, Owner]:
    """Return the processes that hold runs that have not ended; those of other machines may be dead."""
    found = {}
    for run in (run for run, state in states.items() if state not in (*FINAL, DAMAGED, UNWRITTEN)):
        with contextlib.suppress(OSError, ValueError):  # whoever can say more has the folder
            if owner := living(store.directory(run)):
                found[run] = owner
    return found


def _state(store: Store, run: str) -> str:
    try:
        directory = store.directory(run)
        config_table(directory)
        return status_of(directory).state
    except (ValueError, OSError):
        return DAMAGED
