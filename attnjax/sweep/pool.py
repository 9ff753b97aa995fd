"""Runs a sweep in several processes of this machine. The driver only watches them; workers claim runs by themselves.

A worker that is killed is replaced, and its runs are taken over. If the driver is killed, its workers end too: they see the end
of their standard input, save, and end. A worker is `python -m attnjax.sweep.pool`: it reads its order from standard input and
writes events to standard output.
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
from collections.abc import Mapping
from typing import IO, Any

from attnjax.config.mesh import MeshShape
from attnjax.records.status import FINAL
from attnjax.records.values import jsonable
from attnjax.safety import inside
from attnjax.sweep import devices, manifest
from attnjax.sweep.attempt import Event, Progress
from attnjax.sweep.outcome import Stop, Summary, at_end_of_input, on_signals, states, summarise
from attnjax.sweep.plan import groups
from attnjax.sweep.store import LOGS, Store, load
from attnjax.sweep.worker import DEFAULT, ExecutionConfig, import_train, noting, work


@dataclasses.dataclass
class Member:
    """A worker process, its number, its log, and whether it got as far as claiming a run."""

    process: subprocess.Popen[str]
    number: int
    log: pathlib.Path
    claimed: bool = False

    def ask_to_stop(self) -> None:
        """Close its standard input, so that it saves and ends."""
        with contextlib.suppress(OSError):
            pipe(self.process.stdin).close()

    def ended(self) -> int:
        """Wait for its end, and return its exit status."""
        code = self.process.wait()
        self.ask_to_stop()
        pipe(self.process.stdout).close()
        return code


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
    """Train all runs of a sweep that have not ended, in `workers` processes, or as many as there are populations, if fewer.

    On a CPU a worker has `threads` cores (default: cores / workers), over which it spreads the members of a population.
    `trainer` is "module:function", see `attempt.Train`. Raises ValueError where workers end before they claim a run.
    """
    if workers < 1 or (threads is not None and threads < 1):
        raise ValueError(f"workers and threads must be at least 1, got {workers} and {threads}")
    stop, before, unwritten = stop or Stop(), states(store), {}
    left = [entry for entry in store.runs if before[entry.run] not in FINAL]
    workers = min(workers, len(groups(left, key=lambda entry: entry.group, limit=execution.population)) or 1)
    pool = Pool(store, trainer, execution, threads or max(1, _cores() // workers), workers)
    with on_signals(stop, before_exit=pool.kill):
        try:
            for number in range(workers):
                pool.start(number)
            pool.watch(noting(unwritten, progress), stop)
        finally:
            pool.kill()
            for member in pool.alive:
                member.ended()
    return summarise(store, before, unwritten)


class Pool:
    """The worker processes of one driver."""

    def __init__(self, store: Store, trainer: str, execution: ExecutionConfig, threads: int, workers: int):
        self._logs, self._execution = inside(store.root, LOGS), execution
        runs = [entry.run for entry in store.runs]
        order = {"root": str(store.root), "runs": runs, "trainer": trainer, "execution": dataclasses.asdict(execution)}
        self._order, self._threads, self._workers = json.dumps(order) + "\n", threads, workers
        self._events: queue.SimpleQueue[tuple[Member, dict[str, Any] | None]] = queue.SimpleQueue()
        self.alive: list[Member] = []
        self._started = self._in_vain = 0

    def start(self, number: int) -> None:
        """Start a worker, with its log and a thread that listens to it; its GPU and its memory depend on its number."""
        self._logs.mkdir(exist_ok=True)
        self._started += 1
        log = inside(self._logs, f"worker-{os.getpid()}-{self._started}.txt")
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "attnjax.sweep.pool"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment(self._threads, self._workers, number),
                text=True,
                start_new_session=True,  # Ctrl-C is for the driver, which asks workers to save
            )
        member = Member(process, number, log)
        self.alive.append(member)
        threading.Thread(target=self._listen, args=(member,), daemon=True).start()
        with contextlib.suppress(BrokenPipeError):
            pipe(process.stdin).write(self._order)
            pipe(process.stdin).flush()

    def watch(self, progress: Progress, stop: Stop) -> None:
        """Pass events on until all workers have ended, and replace those that were killed."""
        while self.alive:
            if stop.reason:
                for member in self.alive:
                    member.ask_to_stop()
            try:
                member, event = self._events.get(timeout=0.2)
            except queue.Empty:
                continue
            if event is None:
                self._ended(member, stop)
                continue
            member.claimed = True
            self._in_vain = 0 if event["state"] in FINAL else self._in_vain
            progress(Event(**event))

    def kill(self) -> None:
        """Kill all workers. Their work since the last checkpoint is done again later."""
        for member in list(self.alive):
            member.process.kill()

    def _listen(self, member: Member) -> None:
        for line in pipe(member.process.stdout):
            with contextlib.suppress(ValueError):
                self._events.put((member, json.loads(line)))
        self._events.put((member, None))

    def _ended(self, member: Member, stop: Stop) -> None:
        self.alive.remove(member)
        code = member.ended()
        if code == 0 or stop.reason:
            return
        # Where it was killed while it trained, claims count that, so that a run that kills its workers is given up.
        self._in_vain += not (code < 0 and member.claimed)
        if (code > 0 and not member.claimed) or self._in_vain > self._execution.attempts * self._workers:
            raise ValueError(
                f"workers end before they finish a run, the last with exit status {code}; "
                f"the last line of its log {member.log} is: {last_line(member.log)}"
            )
        self.start(member.number)


def environment(threads: int, workers: int, number: int) -> Mapping[str, str]:
    """Return the environment of worker `number` of `workers`: its threads, its GPU, and its share of the memory of that."""
    mine = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "JAX_NUM_CPU_DEVICES"), str(threads))
    return {**os.environ, **devices.of_worker(number, workers, os.environ), **mine, "PYTHONPATH": import_path()}


def import_path() -> str:
    """Return where a worker looks for modules: in the folders of its driver, as absolute paths."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def last_line(log: pathlib.Path) -> str:
    """Return the last line of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "(it is empty)"


def pipe(stream: IO[str] | None) -> IO[str]:
    """Return a pipe of a process that was started with pipes."""
    assert stream is not None
    return stream


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """Train the runs of the order on standard input."""
    events, lock = os.fdopen(os.dup(1), "w", encoding="utf-8"), threading.Lock()
    os.dup2(2, 1)  # standard output is for events alone: whatever else is printed goes where errors go
    order, stop = json.loads(sys.stdin.readline()), Stop()
    at_end_of_input(stop)

    def report(event: Event) -> None:
        try:
            with lock:
                events.write(json.dumps(jsonable(event._asdict())) + "\n")
                events.flush()
        except OSError:
            stop.set("the driver is gone")

    with on_signals(stop):
        train = import_train(order["trainer"])
        found = manifest.of_jax()  # a missing backend must end this worker, and none of the runs
        store, execution = load(pathlib.Path(order["root"])).only(order["runs"]), ExecutionConfig(**order["execution"])
        if found.get("backend") == "cpu":
            execution = dataclasses.replace(execution, mesh=str(MeshShape(population=found["device_count"])))
        work(store, train, execution, report, stop)


if __name__ == "__main__":
    main()
