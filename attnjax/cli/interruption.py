"""Ctrl-C while modules are imported: answered when the import has ended.

Inside an import, KeyboardInterrupt can get lost: C extensions make an ImportError of it, and callbacks of the garbage
collector print and drop it.
"""

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
    since, raised = 0.0, False

    def interrupt(_: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, or look again soon where something is being imported."""
        nonlocal since, raised
        since = since or time.monotonic()
        if _importing(frame) and time.monotonic() - since < PATIENCE:
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        since, raised = 0.0, True
        raise KeyboardInterrupt

    # The timer sends SIGINT anew, so that whoever handles it by then gets it.
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, alarm)
        if (raised or since) and not isinstance(sys.exception(), KeyboardInterrupt):
            raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    """Whether a statement `import` is being executed: the file of a config, which may be endless, is run without one."""
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
