"""Executors: who starts the workers of a sweep. What became of the runs is read from the folder, never from an executor.

    local     processes of this machine, see `workers.py`; the driver stays
    slurm     an array of jobs, see `slurm.py`; the command ends when they are submitted
    ray       tasks of Ray, see `ray_tasks.py`; the driver stays, starts workers again, and stops them when it is stopped

A worker is `attnjax work DIR`, whoever starts it: it claims runs by their leases, so that executors, and several sweeps of one
folder from several of them, need not know of each other. Local ones are not behind the protocol below: their driver holds their
pipes, hears each event when it happens and replaces a killed worker at once, where `attend` looks every second.
"""

import contextlib
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from attnjax.records.status import FINAL
from attnjax.sweep.execute import ExecutionConfig
from attnjax.sweep.run_context import Event, Progress
from attnjax.sweep.stop import Stop
from attnjax.sweep.store import Store

EXECUTORS = ("local", "slurm", "ray")
REQUEUE = 75
"""What `attnjax work` exits with after a signal while runs are left: "temporary failure" of sysexits.h, to be started again."""
LOOK = 1.0
"""Seconds between two looks at workers and runs."""


class Executor(Protocol):
    """Starts workers elsewhere. `workers` is what `submit` returned; with _1, _2, ... behind it, one of them alone."""

    def submit(self) -> str:
        """Submit the workers; returns the name under which `poll` and `stop` know them.

        Raises ValueError, with the words of the executor, where it refuses.
        """
        ...

    def poll(self, workers: str) -> Mapping[str, int]:
        """How many workers wait, run or are in another state, in the executor's words; {} when it knows of none any more.

        Where the executor does not start workers again by itself, this does. Raises ValueError where it cannot say.
        """
        ...

    def stop(self, workers: str) -> None:
        """Ask them to save and end, and start none of them again."""
        ...


def starts_again(code: int) -> bool:
    """Whether a worker with this exit status is to be started again: runs are left, or a signal ended it.

    Example:
      >>> [starts_again(code) for code in (0, 1, 2, 3, 75, 137, -9)]
      [False, False, False, False, True, True, True]
    """
    return code == REQUEUE or code < 0 or code > 128


def attend(executor: Executor, store: Store, progress: Progress, stop: Stop, *, fail_fast: bool = False) -> None:
    """Submit the workers and watch until all have ended; `stop` stops them. News of runs are read from the folder."""
    news, asked, workers = News(store), False, executor.submit()
    try:
        while executor.poll(workers):
            failed = news.tell(progress)
            if failed and fail_fast:
                stop.set(f"run {failed[0]} failed")
            if stop.reason and not asked:
                asked = True
                executor.stop(workers)
            if asked:
                time.sleep(LOOK)
            else:
                stop.wait(LOOK)
    except BaseException:
        executor.stop(workers)
        raise
    news.tell(progress)


class News:
    """What has become of runs since the last look at their folders."""

    def __init__(self, store: Store):
        self._store = store
        self._seen: dict[str, tuple[str, int]] = {}
        self.tell(lambda event: None)

    def tell(self, progress: Progress) -> list[str]:
        """Pass on an event for each run whose state or step is another one; returns those that have failed since."""
        failed = []
        for entry in self._store.runs:
            before = self._seen.get(entry.run, ("pending", 0))
            if before[0] in FINAL:
                continue
            with contextlib.suppress(OSError, ValueError):  # the summary at the end tells which are damaged
                now = self._store.status(entry.run)
                self._seen[entry.run] = now.state, now.step
                if before != (now.state, now.step) and now.state != "pending":
                    progress(Event(entry.run, now.state, now.step, {}, now.reason))
                    failed += [entry.run] * (now.state == "failed")
        return failed


def worker_command(root: pathlib.Path, trainer: str, execution: ExecutionConfig) -> Sequence[str]:
    """The command line of a worker: what `attnjax work` needs to execute runs as `execution` says."""
    options = (word for option in worker_options(trainer, execution) for word in option)
    return [sys.executable, "-m", "attnjax", "work", str(root), *options]


def worker_options(trainer: str, execution: ExecutionConfig) -> list[tuple[str, ...]]:
    """The options of `attnjax work`, each with its value."""
    options: list[tuple[str, ...]] = [("--trainer", trainer), ("--patience", f"{execution.patience:g}")]
    options += [("--attempts", str(execution.attempts)), ("--stall", f"{execution.stall:g}")]
    options += [("--population", str(execution.population))] if execution.population else []
    options += [("--mesh", execution.mesh)] if execution.mesh else []
    options += [("--wait",)] * execution.wait + [("--fail-fast",)] * execution.fail_fast
    return options + [("--import", one) for one in execution.imports]
