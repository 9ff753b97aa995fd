"""Saves a checkpoint again and again, each time with trouble at the next operation on files; prints one line of counts.

    python -m tests.train.interrupted_saves FOLDER fail-once | fail-from | kill

`fail-once`: the Nth operation is refused, as by a disk with an error; `fail-from`: every operation from the Nth on, as by a
full disk. `kill`: what lies on the disk before the Nth operation is what a process leaves that is killed there. The
operations are those that Python tells its audit hooks of, in whatever library and thread, and os.write and os.fsync.
"""

import contextlib
import errno
import os
import pathlib
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator

import jax.numpy as jnp
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

    @contextlib.contextmanager
    def watched(self, before: Callable[[int], None]) -> Iterator[None]:
        self.before, self.count = before, 0
        try:
            yield
        finally:
            self.before = None

    def _heard(self, event: str, arguments: tuple) -> None:
        if event in EVENTS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
            self._happens()

    def _counted(self, real):
        def operation(*arguments, **named):
            self._happens()
            return real(*arguments, **named)

        return operation

    def _happens(self) -> None:
        before = self.before
        if before is not None:
            self.count += 1
            before(self.count)


def state(step: int) -> dict:
    return {"w": jnp.arange(64.0) + step}


def check(folder: pathlib.Path, allowed: tuple[int, ...]) -> int:
    """The step that is restored: one of those allowed, with the values that were saved."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged step would be told
        found = checkpoint.restore(folder, state(0))
    assert found is not None, "neither the old nor the new step is there"
    assert found.step in allowed, (found.step, allowed)
    np.testing.assert_array_equal(found.state["w"], state(found.step)["w"])
    return found.step


def begin(folder: pathlib.Path) -> None:
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(parents=True)
    for step in (1, 2):
        checkpoint.save(folder, step, state(step))


def refused(folder: pathlib.Path, operations: Operations, number: int, *, lasting: bool) -> tuple[bool, int]:
    """Save step 3 with operation `number` refused; whether there was one, and the step that is then restored."""

    def before(count: int) -> None:
        if count == number or (lasting and count > number):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    begin(folder)
    failed = False
    with operations.watched(before):
        try:
            checkpoint.save(folder, 3, state(3))
        except OSError:
            failed = True
    step = check(folder, (2, 3) if failed else (3,))
    checkpoint.save(folder, 4, state(4))
    assert check(folder, (4,)) == 4
    left = [path.name for path in folder.iterdir() if not path.name.isdecimal()]
    assert not left, f"left behind after operation {number}: {left}"
    return operations.count >= number, step


def killed(folder: pathlib.Path, operations: Operations) -> tuple[int, list[int]]:
    """How many operations a save has, and the steps restored from what lies on the disk before each."""

    def before(count: int) -> None:
        operations.before = None
        shutil.copytree(folder.parent, _left(folder, count).parent)
        operations.before = before

    begin(folder)
    with operations.watched(before):
        checkpoint.save(folder, 3, state(3))
    steps = []
    for number in range(1, operations.count + 1):
        copy = _left(folder, number)
        steps.append(check(copy, (2, 3)))
        checkpoint.save(copy, 4, state(4))
        assert check(copy, (4,)) == 4
        assert sorted(path.name for path in copy.iterdir()) == sorted(["4", str(steps[-1])]), number
    return operations.count, steps


def _left(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Where what a process left that was killed before this operation is kept."""
    return folder.parents[1] / str(number) / folder.parent.name / folder.name


def main() -> None:
    root, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
    operations, folder = Operations(), root / "run" / "checkpoints"
    if mode == "kill":
        count, steps = killed(folder, operations)
    else:
        count, steps, more = 0, [], True
        while more:
            more, step = refused(folder, operations, count + 1, lasting=mode == "fail-from")
            count, steps = count + more, steps + [step] * more
    print(f"{count} operations: {steps.count(2)} times the old step, {steps.count(3)} times the new one")


if __name__ == "__main__":
    main()
