"""Runs a sweep in several processes of this machine. The driver only watches them; workers claim runs by themselves.

A worker that is killed is replaced, and its runs are taken over. If the driver is killed,
its workers end too: they see the end of their standard input, save, and end. A worker is `python -m
attnjax.sweep.local`; it reads its order from standard input, and what it prints goes to a log.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from attnjax.config.mesh import MeshShape
from attnjax.records.status import FINAL
from attnjax.safety import inside
from attnjax.sweep import devices, manifest
from attnjax.sweep.claim import holder
from attnjax.sweep.outcome import Stop, Summary, on_signals, states, summarise
from attnjax.sweep.plan import groups
from attnjax.sweep.store import LOGS, Store, load
from attnjax.sweep.worker import DEFAULT, ExecutionConfig, import_train, run_here

LOOK = 0.2
"""Seconds between looks at workers."""


def run_workers(
    store: Store,
    trainer: str,
    workers: int,
    execution: ExecutionConfig = DEFAULT,
    *,
    threads: int | None = None,
    stop: Stop | None = None,
) -> Summary:
    """Train all runs of a sweep that have not ended, in `workers` processes, or as many as there are populations, if fewer.

    On a CPU a worker has `threads` cores (default: cores / workers), over which it spreads the members of a population.
    `trainer` is "module:function", see `attempt.Train`. Raises ValueError where workers end before they claim a run.
    """
    stop, now = stop or Stop(), states(store)
    left = [entry for entry in store.runs if now[entry.run] not in FINAL]
    workers = min(workers, len(groups(left, key=lambda entry: entry.group, limit=execution.population)) or 1)
    pool = Pool(store, trainer, execution, threads or max(1, manifest.threads() // workers), workers)
    with on_signals(stop, before_exit=pool.kill):
        try:
            for number in range(workers):
                pool.start(number)
            pool.watch(stop)
        finally:
            pool.kill()
    return summarise(store, {})


class Process(NamedTuple):
    """A worker process, and its log."""

    process: subprocess.Popen[str]
    log: pathlib.Path

    def ask_to_stop(self) -> None:
        """Close its standard input, so that it saves and ends."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()


class Pool:
    """The worker processes of one driver, by their numbers."""

    def __init__(self, store: Store, trainer: str, execution: ExecutionConfig, threads: int, workers: int):
        self._store, self._attempts, self._threads, self._workers = store, execution.attempts, threads, workers
        runs = [entry.run for entry in store.runs]
        order = {"root": str(store.root), "runs": runs, "trainer": trainer, "execution": dataclasses.asdict(execution)}
        self._order = json.dumps(order) + "\n"
        self._alive: dict[int, Process] = {}
        self._started = self._in_vain = 0

    def start(self, number: int) -> None:
        """Start a worker; its GPU and its memory depend on its number."""
        logs = inside(self._store.root, LOGS)
        logs.mkdir(exist_ok=True)
        self._started += 1
        log = inside(logs, f"worker-{os.getpid()}-{self._started}.txt")
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "attnjax.sweep.local"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment(self._threads, self._workers, number),
                text=True,
                start_new_session=True,  # Ctrl-C is for the driver, which asks workers to save
            )
        self._alive[number] = Process(process, log)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self._order)
            process.stdin.flush()

    def watch(self, stop: Stop) -> None:
        """Wait until all workers have ended, and replace those that were killed."""
        while self._alive:
            for number, one in list(self._alive.items()):
                if stop.reason:
                    one.ask_to_stop()
                if one.process.poll() is not None:
                    self._ended(number, stop)
            time.sleep(LOOK)

    def kill(self) -> None:
        """Kill all workers. Their work since the last checkpoint is done again later."""
        for one in list(self._alive.values()):
            one.process.kill()
            one.process.wait()
            one.ask_to_stop()

    def _ended(self, number: int, stop: Stop) -> None:
        """Start another worker in the place of one that was killed. Its claim counts the deaths at one run."""
        one = self._alive.pop(number)
        one.ask_to_stop()
        process, log = one
        if process.returncode == 0 or stop.reason:
            return
        owners = (holder(self._store.root / entry.run) for entry in self._store.runs)
        claimed = any(owner is not None and owner.pid == process.pid for owner in owners)
        self._in_vain = 0 if claimed else self._in_vain + 1
        if not claimed and (process.returncode > 0 or self._in_vain > self._attempts):
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "(it is empty)")
            raise ValueError(
                f"workers end before they claim a run, the last with exit status {process.returncode}; "
                f"the last line of its log {log} is: {last}"
            )
        self.start(number)


def environment(threads: int, workers: int, number: int) -> Mapping[str, str]:
    """Return the environment of worker `number` of `workers`: its threads, its GPU, and its share of the memory of that."""
    mine = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "JAX_NUM_CPU_DEVICES"), str(threads))
    return {**os.environ, **devices.of_worker(number, workers, os.environ), **mine, "PYTHONPATH": import_path()}


def import_path() -> str:
    """Return where a worker looks for modules: in the folders of its driver, as absolute paths."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def _at_end_of_input(stop: Stop) -> None:
    # Not through sys.stdin, whose lock a waiting thread would still hold when Python ends.
    while os.read(0, 4096):
        pass
    stop.set("the process that started this one asked for it, or is gone")


def main() -> None:
    """Train the runs of the order on standard input, until that ends."""
    order, stop = json.loads(sys.stdin.readline()), Stop()
    threading.Thread(target=_at_end_of_input, args=(stop,), name="input", daemon=True).start()
    train = import_train(order["trainer"])
    found = manifest.of_jax()  # a missing backend must end this worker, and none of the runs
    store, execution = load(pathlib.Path(order["root"])).only(order["runs"]), ExecutionConfig(**order["execution"])
    if found.get("backend") == "cpu":
        execution = dataclasses.replace(execution, mesh=str(MeshShape(population=found["device_count"])))
    summary = run_here(store, train, execution, stop=stop)
    print(summary, *summary.unwritten.values(), sep="\n")


if __name__ == "__main__":
    main()
