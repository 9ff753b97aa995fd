"""Runs a sweep in several processes of this machine. The driver only watches them; workers claim runs by themselves.

A worker that is killed is replaced, and its runs are taken over. If the driver is killed, its workers end too: they see
the end of their standard input, save, and end; the same command continues from there.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any

from attnjax import folder
from attnjax.records import files
from attnjax.records.status import FINAL
from attnjax.sweep import devices
from attnjax.sweep.execute import DEFAULT, ExecutionConfig, states, statuses
from attnjax.sweep.run_context import UNWRITTEN, Event, Progress
from attnjax.sweep.stop import Stop, on_signals
from attnjax.sweep.store import LOGS, Store
from attnjax.sweep.summary import Ledger, Summary, summarise

TAIL = 2000
"""Bytes of a worker's log in which its last line is looked for."""


@dataclasses.dataclass
class Worker:
    """A worker process, its number, its pipes, where else it prints to, and whether it got as far as claiming a run."""

    process: subprocess.Popen[str]
    number: int
    orders: IO[str]
    events: IO[str]
    log: pathlib.Path
    claimed: bool = False


def run_workers(
    store: Store,
    trainer: str,
    workers: int,
    execution: ExecutionConfig = DEFAULT,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Summary:
    """Train all runs of a sweep that have not ended, in `workers` processes with `threads` each (default: cores / workers).

    `trainer` is "module:function", see `run_context.Train`. Raises ValueError where workers end before they claim a run, or
    without being killed.
    """
    if workers < 1 or (threads is not None and threads < 1):
        raise ValueError(f"workers and threads must be at least 1, got {workers} and {threads}")
    stop, before, ledger = Stop() if stop is None else stop, statuses(store), Ledger(progress)
    pool = WorkerPool(store, trainer, execution, threads or max(1, _cores() // workers), workers)
    with on_signals(stop, before_exit=pool.signal_kill):
        try:
            for number in range(workers):
                pool.start(number)
            pool.watch(ledger, stop)
        finally:
            pool.kill()
    return summarise(store, before, states(store), ledger)


class WorkerPool:
    """The worker processes of one driver."""

    def __init__(self, store: Store, trainer: str, execution: ExecutionConfig, threads: int, workers: int):
        self._store, self._execution, self._workers = store, execution, workers
        wanted = [entry.run for entry in store.runs]
        self._order = {
            "root": str(store.root),
            "runs": wanted,
            "trainer": trainer,
            "execution": dataclasses.asdict(execution),
        }
        self._threads = threads
        self._events: queue.SimpleQueue[tuple[Worker, dict[str, Any] | None]] = queue.SimpleQueue()
        self._alive: list[Worker] = []
        self._started, self._in_vain = 0, 0

    def start(self, number: int) -> None:
        """Start a worker, with its log and a thread that listens to it; its GPU and its memory depend on its number."""
        logs = files.inside(self._store.root, LOGS)
        logs.mkdir(exist_ok=True)
        self._started += 1
        log = files.inside(logs, f"worker-{os.getpid()}-{self._started}.txt")
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "attnjax.sweep.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment(self._threads, self._workers, number),
                text=True,
                start_new_session=True,  # Ctrl-C is for the driver, which asks workers to save
            )
        assert process.stdin is not None
        assert process.stdout is not None
        worker = Worker(process, number, process.stdin, process.stdout, log)
        self._alive.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        with contextlib.suppress(BrokenPipeError):
            worker.orders.write(json.dumps({**self._order, "log": str(log)}) + "\n")
            worker.orders.flush()

    def watch(self, progress: Progress, stop: Stop) -> None:
        """Pass events on until all workers have ended, and replace those that were killed."""
        while self._alive:
            if stop.reason:
                self._ask_to_stop()
            try:
                worker, event = self._events.get(timeout=0.2)
            except queue.Empty:
                continue
            if event is None:
                self._ended(worker, stop)
                continue
            worker.claimed = True
            self._in_vain = 0 if event["state"] in FINAL else self._in_vain
            progress(Event(**event))
            if event["state"] in ("failed", UNWRITTEN) and self._execution.fail_fast:
                stop.set(f"run {event['run']} failed")

    def kill(self) -> None:
        """Kill all workers and wait for their end. Their work since the last checkpoint is done again later."""
        self.signal_kill()
        for worker in self._alive:
            _close(worker)
        self._alive.clear()

    def signal_kill(self) -> None:
        """Send SIGKILL to all workers without waiting for their end."""
        for worker in list(self._alive):
            worker.process.kill()

    def _listen(self, worker: Worker) -> None:
        for line in worker.events:
            with contextlib.suppress(ValueError):
                self._events.put((worker, json.loads(line)))
        self._events.put((worker, None))

    def _ended(self, worker: Worker, stop: Stop) -> None:
        self._alive.remove(worker)
        code = _close(worker)
        if code == 0 or stop.reason:
            return
        # Where it was killed while it trained, its leases count that, so that a run that kills its workers is given up.
        self._in_vain += not (code < 0 and worker.claimed)
        by_itself = code > 0 and not worker.claimed
        if by_itself or self._in_vain > self._execution.attempts * self._workers:
            raise ValueError(
                f"workers end before they finish a run, the last with exit status {code}; "
                f"the last line of its log {worker.log} is: {last_line(worker.log)}"
            )
        self.start(worker.number)

    def _ask_to_stop(self) -> None:
        for worker in self._alive:
            with contextlib.suppress(OSError):
                worker.orders.close()


def environment(threads: int, workers: int, number: int) -> dict[str, str]:
    """The environment of worker `number` of `workers`: its threads, its GPU, and its share of the memory of that."""
    mine = {"NPROC": str(threads), "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    path = os.pathsep.join(import_path())
    return {**os.environ, **devices.of_worker(number, workers, os.environ), **mine, "PYTHONPATH": path}


def last_line(log: pathlib.Path) -> str:
    """The last line of a worker's log, however long the log is."""
    try:
        with folder.enter(log.parent) as logs, logs.opened(log.name) as descriptor:
            os.lseek(descriptor, max(0, os.fstat(descriptor).st_size - TAIL), os.SEEK_SET)
            lines = os.read(descriptor, TAIL).decode(errors="replace").strip().splitlines()
    except (OSError, ValueError) as error:
        return f"(it cannot be read: {error})"
    return lines[-1] if lines else "(it is empty)"


def import_path() -> Sequence[str]:
    """The folders in which a worker looks for modules: those of its driver, as absolute paths."""
    return [os.path.abspath(entry) for entry in sys.path]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _close(worker: Worker) -> int:
    code = worker.process.wait()
    for pipe in (worker.orders, worker.events):
        with contextlib.suppress(OSError):
            pipe.close()
    return code
