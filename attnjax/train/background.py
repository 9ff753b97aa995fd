"""Saving while training goes on: a thread writes a copy of the state, one save at a time.

with BackgroundSave() as saving:
    ...
    saving.wait()                                  # the one before has ended: at most one copy is in memory
    saving.start(functools.partial(write, copy))
    ...
    saving.check()                                 # at every step: raises what a save has raised
# no thread is left, also after an error or an interruption: whoever takes the folder over is alone in it
"""

import threading
from collections.abc import Callable
from typing import Self


class BackgroundSave:
    """A function that runs in a thread; an error that it raises is raised again by `check` and `wait`.

    Example:
      >>> done = []
      >>> with BackgroundSave() as saving:
      ...     saving.start(lambda: done.append(60))
      ...     saving.wait()
      >>> done
      [60]
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.join()

    def start(self, save: Callable[[], None]) -> None:
        """Call `save` in a thread, after the save before has ended. Raises what that one raised."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(save,), name="checkpoint")
        self._thread.start()

    def ended(self) -> bool:
        """Return whether no save is in flight."""
        return self._thread is None or not self._thread.is_alive()

    def check(self) -> None:
        """Raise the error of a save that has ended with one. Does not wait."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait for the save in flight, if there is one, and raise its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _run(self, save: Callable[[], None]) -> None:
        try:
            save()
        except BaseException as error:  # raised again in the thread that trains
            self._error = error
