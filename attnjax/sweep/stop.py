"""Asking work to stop at its next step: by a signal, by another run's failure, by losing a lease."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Stop:
    """Set once; read at every step: `reason` is "" until then."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def set(self, reason: str) -> None:
        """Ask for a stop; the first reason stays."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until a stop is asked for; whether one is."""
        return self._event.wait(seconds)


@contextlib.contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """SIGTERM and the first Ctrl-C ask for a stop; the second Ctrl-C is a KeyboardInterrupt.

    Only the main thread may listen to signals; in any other this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        if stop.reason and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
