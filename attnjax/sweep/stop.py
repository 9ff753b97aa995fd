"""Stops work at its next step after a signal, a failure of another run or a lost lease, and at once after a second signal.

The first SIGTERM or Ctrl-C sets a `Stop`, which work reads at every step; so does any SIGUSR1 or SIGUSR2 where they are
listened to, by which schedulers warn of the end of a job. A second SIGTERM or Ctrl-C raises `Terminated` or `KeyboardInterrupt`
in the main thread. Python can raise nothing in a thread that hangs in C code: where the block of
`on_signals` is not left within `GRACE` seconds, the stacks of all threads are written and the process ends at once.
"""

import contextlib
import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

GRACE = 5.0
"""Seconds that the main thread has to end after the second signal."""
AGAIN = 0.1
"""Seconds after which the main thread gets the second signal again, if it has not seen it."""
LOOK = 0.05
"""Most seconds between two looks of who waits for a stop."""
TOGETHER = 0.2
"""Seconds within which two SIGTERM count as one: `timeout` sends one to its child, and one to the group of the child."""


GONE = "the process that started this one asked for it, or is gone"
WARNINGS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""What schedulers send before they end or suspend a job; Windows has none."""


class Terminated(KeyboardInterrupt):
    """The second SIGTERM: like the second Ctrl-C, with an exit status of its own."""


class Stop:
    """Set once; read at every step: `reason` is "" until then.

    It has no lock. A handler of signals runs in the main thread, wherever that is: one that waits for a lock which the main
    thread itself holds, as that of a `threading.Event` inside of `wait`, waits for ever.
    """

    def __init__(self) -> None:
        self.reason = ""

    def set(self, reason: str) -> None:
        """Ask for a stop; the first reason stays."""
        self.reason = self.reason or reason

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until `LOOK` seconds after a stop is asked for; whether one is."""
        end = time.monotonic() + seconds
        while not self.reason and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK))
        return bool(self.reason)


def exit_status(interrupt: KeyboardInterrupt) -> int:
    """The exit status of a process that a signal ended: 143 for SIGTERM, 130 for Ctrl-C."""
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


def at_end_of_input(stop: Stop) -> None:
    """Sets `stop`, for the reason `GONE`, when standard input ends: whoever holds its other end closed it, or died."""
    threading.Thread(target=_wait_for_the_end, args=(stop,), name="input", daemon=True).start()


def _wait_for_the_end(stop: Stop) -> None:
    # Not through sys.stdin, whose lock a waiting thread would still hold when Python ends.
    while os.read(0, 4096):
        pass
    stop.set(GONE)


@contextlib.contextmanager
def on_signals(
    stop: Stop, before_exit: Callable[[], None] = lambda: None, warnings: Sequence[int] = ()
) -> Iterator[None]:
    """Listens to SIGTERM and Ctrl-C during the block, see the module's text; in other threads than the main one not at all.

    Args:
      stop: set by the first signal.
      before_exit: called, in another thread, before the process ends because its main thread hangs.
      warnings: further signals that set `stop`, however often they come: `WARNINGS`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = _Signals(stop, before_exit)
    before = {number: signal.signal(number, signals.handle) for number in (signal.SIGINT, signal.SIGTERM, *warnings)}
    try:
        with signals.listening():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Signals:
    """Counts signals where they arrive, in a thread of its own: the main thread sees none while it is in C code."""

    def __init__(self, stop: Stop, before_exit: Callable[[], None]):
        self._stop, self._before_exit = stop, before_exit
        self._first = 0.0
        self._second: int | None = None

    def handle(self, number: int, _: FrameType | None) -> None:
        """The handler, in the main thread. Raises once for the second signal, so that what it interrupts can clean up."""
        self._stop.set(signal.Signals(number).name)
        if self._second is not None:
            second, self._second = self._second, None
            raise Terminated if second == signal.SIGTERM else KeyboardInterrupt

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Has the system write the number of every signal to a socket, from which the thread reads."""
        ears, mouth = socket.socketpair()
        mouth.setblocking(False)
        thread = threading.Thread(target=self._listen, args=(ears,), name="signals", daemon=True)
        before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            mouth.close()  # the thread reads the end, and ends
            thread.join()
            ears.close()

    def _listen(self, ears: socket.socket) -> None:
        while numbers := ears.recv(64):
            for number in numbers:
                if number in (signal.SIGINT, signal.SIGTERM) and self._is_second(number):
                    self._second = number
                    if not self._left(ears, number):
                        self._exit(number)
                    return

    def _left(self, ears: socket.socket, number: int) -> bool:
        """Whether the block is left in time, now that `handle` raises. A signal just before a system call is not seen in it."""
        again = time.monotonic()
        deadline = again + GRACE
        ears.settimeout(AGAIN)
        while (now := time.monotonic()) < deadline:
            if now >= again and self._second is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(threading.main_thread().ident or 0, number)
                again = now + AGAIN
            with contextlib.suppress(TimeoutError):
                if not ears.recv(64):
                    return True
        return False

    def _is_second(self, number: int) -> bool:
        now = time.monotonic()
        if not self._first:
            self._first = now
            return False
        return number == signal.SIGINT or now - self._first > TOGETHER

    def _exit(self, number: int) -> None:
        name = signal.Signals(number).name
        with contextlib.suppress(OSError, ValueError):
            text = f"attnjax: the second {name} ends a process whose main thread hung for {GRACE:g} s here:\n"
            os.write(2, text.encode())
            faulthandler.dump_traceback(file=2)
        try:
            self._before_exit()
        finally:
            os._exit(128 + number)
