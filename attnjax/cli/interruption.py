"""Ctrl-C while modules are imported: answered when the import has ended.

Inside an import, KeyboardInterrupt can get lost: C extensions make an ImportError of it, and callbacks of the garbage
collector print and drop it.
"""

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

PATIENCE = 10.0
"""Seconds after which an import that has not ended is interrupted nevertheless."""
AGAIN = 0.02
"""Seconds between two looks at whether it has ended."""


@contextlib.contextmanager
def after_imports() -> Iterator[None]:
    """During the block, Ctrl-C raises KeyboardInterrupt as ever, or, inside an import, as soon as the import has ended.

    Where C code drops that KeyboardInterrupt, it is raised at the end of the block.
    Does nothing in other threads than the main one, and where somebody else handles Ctrl-C.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupts = _Interrupts()
    signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupts.end()


class _Interrupts:
    """One Ctrl-C that waits, at most. Without locks: a handler may run while the main thread holds any of them."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._raised = False
        self._thread = threading.get_ident()

    def handle(self, _: int, frame: FrameType | None) -> None:
        """The handler of SIGINT. Raises KeyboardInterrupt outside of imports."""
        now = time.monotonic()
        since = now if self._since is None else self._since
        if not _importing(frame) or now - since > PATIENCE:
            self._since, self._raised = None, True
            raise KeyboardInterrupt
        self._since = since
        _thread.start_new_thread(self._again, ())

    def _again(self) -> None:
        time.sleep(AGAIN)
        if self._since is None:
            return
        if hasattr(signal, "pthread_kill"):  # unlike interrupt_main, it wakes a thread that sleeps
            signal.pthread_kill(self._thread, signal.SIGINT)
        else:
            _thread.interrupt_main()

    def end(self) -> None:
        """Raise KeyboardInterrupt if one still waits, or if one was raised and has not arrived here."""
        asked, self._since = self._raised or self._since is not None, None
        if asked and not isinstance(sys.exception(), KeyboardInterrupt):
            raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    """Whether a statement `import` is being executed: the file of a config, which may be endless, is run without one."""
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
