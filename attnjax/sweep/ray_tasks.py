"""Workers as tasks of Ray. The driver of the sweep stays, starts workers again, and stops them when it is stopped.

A task runs `attnjax work` as a process of its own, on whatever node Ray chooses, and returns its exit status. Only lists of
strings travel, and Ray finds the function of the task by its name, so that nothing of ours is pickled; the nodes
need attnjax, and the folder of the sweep on a file system that all of them see.

A task that Ray cancels sends its worker SIGTERM, so that it saves. Where the process of a task or its raylet dies, the standard
input of the worker ends, and it saves too (`attnjax work --attached`), unless Ray kills it first. Ray repeats no task by itself
(`max_retries=0`), because it knows nothing of 75 and of how often a worker was started. The driver starts a lost worker again
with `--wait`, so that the new one takes over what the lost one held, whether that is dead or still saves.
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attnjax.records import files
from attnjax.sweep.execute import ExecutionConfig, states
from attnjax.sweep.executors import attend, starts_again, worker_command
from attnjax.sweep.profiles import Profile
from attnjax.sweep.run_context import Progress
from attnjax.sweep.stop import Stop, on_signals
from attnjax.sweep.store import LOGS, Store
from attnjax.sweep.summary import Ledger, Summary, summarise
from attnjax.sweep.workers import import_path, last_line

SECONDS = 10
"""That a cluster has to answer. Ray itself tries for minutes, and then ends the process."""
POLL = 0.1
MEMORY = 80 << 20
"""Bytes of shared memory of a cluster of our own. No task returns more than a number, and Ray takes no less than 75 MiB."""

Tell = Callable[[str], None]


def run_tasks(
    store: Store,
    trainer: str,
    workers: int,
    execution: ExecutionConfig,
    profile: Profile,
    *,
    progress: Progress,
    stop: Stop,
    tell: Tell,
) -> Summary:
    """Train all runs of a sweep that have not ended, in `workers` tasks of Ray; `tell` is called with news of workers.

    Raises ValueError where Ray is not installed, its cluster cannot be reached, or a worker cannot be started.
    """
    before, ledger = states(store), Ledger(progress)
    if any(state not in ("done", "failed", "damaged") for state in before.values()):
        executor = RayTasks(store, worker_command(store.root, trainer, execution), workers, profile, tell)
        with connected(profile), on_signals(stop):
            attend(executor, store, ledger, stop, fail_fast=execution.fail_fast)
    return summarise(store, before, states(store), ledger)


def work(words: list[str], environment: list[str], folder: str, log: str) -> int:
    """The task: `python words...` in a folder; returns its exit status. KeyboardInterrupt becomes SIGTERM, and is raised later.

    Args:
      words: behind the interpreter, which is that of the node.
      environment: NAME=VALUE, in addition to the environment that Ray made.
      folder: the working directory.
      log: the file to which standard output and errors are appended.
    """
    added = dict(one.split("=", 1) for one in environment)
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,  # ends with this process, however that ends
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, **added},
            start_new_session=True,  # Ray kills the group of a process that ends
        )
    cancelled = False
    while True:
        try:
            while process.poll() is None:
                time.sleep(POLL)
            break
        except KeyboardInterrupt:
            if not cancelled:
                process.send_signal(signal.SIGTERM)
            cancelled = True
    if cancelled:
        raise KeyboardInterrupt
    return process.returncode


@dataclasses.dataclass
class Task:
    """A worker: its number, the task that it is now, its log, how often it was started, and whether it was stopped for good."""

    number: int
    reference: Any = None
    log: pathlib.Path = pathlib.Path()
    starts: int = 0
    stopped: bool = False


class RayTasks:
    """See `executors.Executor`; inside `connected`."""

    def __init__(self, store: Store, command: Sequence[str], workers: int, profile: Profile, tell: Tell):
        self._store, self._command, self._profile, self._tell = store, command, profile, tell
        self._tasks = [Task(number + 1) for number in range(workers)]
        self.name = ""

    def submit(self) -> str:
        """Submit a task for each worker; returns the number of Ray's job."""
        files.inside(self._store.root, LOGS).mkdir(exist_ok=True)
        self.name = library().get_runtime_context().get_job_id()
        if lack := lacking(library().nodes(), self._needs()):
            if not self._profile.address:
                raise ValueError(f"no worker can be started: {lack}")
            self._tell(f"workers wait: {lack}")
        for task in self._tasks:
            self._start(task, ())
        return self.name

    def poll(self, workers: str) -> Mapping[str, int]:
        """How many workers wait for a node, and how many run. Starts those again that are to be."""
        alive = [task for task in self._tasks if task.reference is not None]
        if alive:
            ready, _ = library().wait([task.reference for task in alive], num_returns=len(alive), timeout=0)
            for task in alive:
                if task.reference in ready:
                    self._ended(task)
        meant = [task for task in self._meant(workers) if task.reference is not None]
        return Counter("running" if task.log.exists() else "waiting" for task in meant)

    def stop(self, workers: str) -> None:
        """Cancel the tasks: a worker that runs gets SIGTERM, and saves."""
        for task in self._meant(workers):
            if not task.stopped and task.reference is not None:
                library().cancel(task.reference, force=False)
            task.stopped = True

    def _meant(self, workers: str) -> list[Task]:
        return [task for task in self._tasks if workers in (self.name, f"{self.name}_{task.number}")]

    def _needs(self) -> dict[str, float]:
        """What a worker takes of a node, in Ray's words."""
        gpus = {"GPU": self._profile.gpus} if self._profile.gpus else {}
        return {"CPU": self._profile.cpus or 1, **gpus, **self._profile.resources}

    def _start(self, task: Task, more: Sequence[str]) -> None:
        task.starts += 1
        log = files.inside(self._store.root, LOGS, f"ray-{self.name}-{os.getpid()}-{task.number}-{task.starts}.txt")
        task.log = pathlib.Path(os.path.abspath(log))
        words = [*self._command[1:], "--attached", *more]
        needs = self._needs()
        remote = library().remote(
            num_cpus=needs.pop("CPU"),
            num_gpus=needs.pop("GPU", 0),
            resources=needs,
            max_retries=0,
            scheduling_strategy="SPREAD",
        )(work)
        task.reference = remote.remote(words, self._environment(), os.getcwd(), str(task.log))

    def _environment(self) -> list[str]:
        threads = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self._profile.cpus or 1))
        path = {"PYTHONPATH": os.pathsep.join(import_path())}
        return [f"{name}={value}" for name, value in {**threads, **path, **self._profile.environment}.items()]

    def _ended(self, task: Task) -> None:
        """Look at what became of a task that has ended, and start its worker again where it is to be."""
        reference, task.reference = task.reference, None
        errors = library().exceptions
        try:
            code = library().get(reference)
        except errors.TaskCancelledError:
            return
        except errors.RayTaskError as error:
            raise ValueError(f"a worker could not be started by Ray: {first_line(error.cause or error)}") from None
        except errors.RayError as error:
            if not task.stopped:
                self._again(task, f"was lost ({first_line(error)})", ["--wait"])
            return
        if code == 2 and not task.stopped:
            raise ValueError(f"a worker ended with exit status 2; the last line of its log is: {last_line(task.log)}")
        if starts_again(code) and not task.stopped:
            self._again(task, f"ended with exit status {code}", ["--wait"] if code < 0 else [])
        elif code not in (0, 3) and not task.stopped:
            self._tell(
                f"worker {task.number} ended with exit status {code}; the last line of its log {task.log} is: "
                f"{last_line(task.log)}"
            )

    def _again(self, task: Task, why: str, more: Sequence[str]) -> None:
        if task.starts > self._profile.restarts:
            self._tell(
                f"worker {task.number} {why}; it was started again {self._profile.restarts} times, and is not now"
            )
            return
        self._tell(f"worker {task.number} {why}, and is started again")
        self._start(task, more)


@contextlib.contextmanager
def connected(profile: Profile) -> Iterator[None]:
    """During the block, Ray is connected to the cluster of a profile, or to one of its own on the loopback device alone.

    Raises ValueError where Ray is not installed, or its cluster cannot be reached.
    """
    _check_reachable(profile.address)
    ray = library(profile)
    alone: dict[str, Any] = {} if profile.address else {"include_dashboard": False, "object_store_memory": MEMORY}
    main, before = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=profile.address or "local", log_to_driver=False, logging_level=logging.ERROR, **alone)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ValueError(f"no Ray cluster at {profile.address or 'this machine'}: {first_line(error)}") from None
    try:
        yield
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, before)


def library(profile: Profile | None = None) -> Any:
    """The package ray; the profile matters where it is imported for the first time. Raises ValueError where it is missing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if profile is not None and not profile.address:
        # Despite its name Ray reads it on every system, while it is imported: without it, its ports are open to the network.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # The token of this cluster is in the environment of its processes alone; Ray's own is a file, for all its clusters.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise ValueError(f"Ray is not installed: pip install 'attnjax[ray]' ({error})") from None
    return ray


def lacking(nodes: Sequence[Mapping[str, Any]], needs: Mapping[str, float]) -> str:
    """A sentence where no node that is alive has what a worker takes, "" where one has.

    Example:
      >>> lacking([{"Alive": True, "Resources": {"CPU": 2.0}}], {"CPU": 1, "GPU": 1})
      'no node has what each takes (CPU 1, GPU 1)'
      >>> lacking([{"Alive": True, "Resources": {"CPU": 2.0}}], {"CPU": 1})
      ''
    """
    for node in nodes:
        if node["Alive"] and all(node["Resources"].get(name, 0) >= amount for name, amount in needs.items()):
            return ""
    return f"no node has what each takes ({', '.join(f'{name} {amount:g}' for name, amount in needs.items())})"


def _check_reachable(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not address or address == "auto":
        return
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"address must be host:port, ray://host:port or auto, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster at {address}: {error.strerror or error}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error that has one."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
