"""Saves a checkpoint again and again, each time with trouble at the next operation on files; prints one line of counts.

    python -m tests.train.interrupted_saves FOLDER fail-once | fail-from | kill

`fail-once`: the Nth operation is refused, as by a disk with an error; `fail-from`: every operation from the Nth on, as by a
full disk. `kill`: what lies on the disk before the Nth operation is what a process leaves that is killed there. The
operations are those that Python tells its audit hooks of, in whatever library and thread, and os.write and os.fsync.
"""

import errno
import os
import pathlib
import shutil
import sys
import warnings
from collections.abc import Callable

import numpy as np

from attnjax.train import checkpoint

EVENTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "os.utime", "shutil.rmtree")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Operations:
    """Counts operations while `before` is set, and calls it with their number."""

    def __init__(self) -> None:
        self.before: Callable[[int], None] | None = None
        self.count = 0
        sys.addaudithook(self._heard)
        for name in ("write", "fsync"):
            setattr(os, name, self._counted(getattr(os, name)))

    def _heard(self, event: str, arguments: tuple) -> None:
        if event in EVENTS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
            self._happens()

    def _counted(self, real):
        return lambda *arguments, **named: (self._happens(), real(*arguments, **named))[1]

    def _happens(self) -> None:
        if before := self.before:
            self.before = None  # what is done here is no operation of a save
            self.count += 1
            try:
                before(self.count)
            finally:
                self.before = before


def state(step: int) -> dict:
    return {"w": np.arange(64, dtype=np.float32) + step}


def save(folder: pathlib.Path, operations: Operations, before: Callable[[int], None]) -> bool:
    """Save step 3 where steps 1 and 2 are; returns whether that failed."""
    shutil.rmtree(folder, ignore_errors=True)
    for step in (1, 2):
        checkpoint.save(folder, step, state(step))
    operations.before, operations.count = before, 0
    try:
        checkpoint.save(folder, 3, state(3))
    except OSError:
        return True
    finally:
        operations.before = None
    return False


def check(folder: pathlib.Path, allowed: tuple[int, ...]) -> int:
    """The step that is restored, one of those allowed, with the values that were saved; then another save finds no remains."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged step would be told
        found = checkpoint.restore(folder, state(0))
        assert found is not None, "neither the old nor the new step is there"
        assert found.step in allowed, (found.step, allowed)
        np.testing.assert_array_equal(found.state["w"], state(found.step)["w"])
        checkpoint.save(folder, 4, state(4))
    assert sorted(path.name for path in folder.iterdir()) == sorted(["4", str(found.step)])
    return found.step


def main(root: pathlib.Path, mode: str) -> None:
    operations, folder, steps = Operations(), root / "checkpoints", []
    if mode == "kill":
        save(folder, operations, lambda count: shutil.copytree(folder, root / str(count)))
        steps = [check(root / str(count), (2, 3)) for count in range(1, operations.count + 1)]
    while mode != "kill":
        number = len(steps) + 1

        def refuse(count: int, number: int = number) -> None:
            if count == number or (mode == "fail-from" and count > number):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        failed = save(folder, operations, refuse)
        step = check(folder, (2, 3) if failed else (3,))
        if operations.count < number:
            break
        steps.append(step)
    print(f"{len(steps)} operations: {steps.count(2)} times the old step, {steps.count(3)} times the new one")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
