"""Workers as tasks of Ray. The driver of the sweep stays, starts workers again, and stops them when it is stopped.

A task runs `attnjax work` as a process of its own, on whatever node Ray chooses, and returns its exit status. Only lists of
strings travel, and Ray finds the function of the task by its name, so that nothing of ours is pickled; the nodes
need attnjax, and the folder of the sweep on a file system that all of them see.

A task that Ray cancels sends its worker SIGTERM, so that it saves. Where the process of a task or its raylet dies, the standard
input of the worker ends, and it saves too (`attnjax work --attached`), unless Ray kills it first. Ray repeats no task by itself
(`max_retries=0`), because it knows nothing of 75 and of how often a worker was started. The driver starts a lost worker again
with `--wait`, so that the new one takes over what the lost one held, whether that is dead or still saves.

Where the profile says so a worker is several tasks, a process each, which train one model together (`ray_hosts.py`). They are
started together. Where one ends and others do not, these are cancelled; when all have ended they are started again as one.
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
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from attnjax.records import files
from attnjax.sweep.execute import ExecutionConfig, is_open, states
from attnjax.sweep.executors import REQUEUE, attend, starts_again, worker_command
from attnjax.sweep.profiles import Profile
from attnjax.sweep.ray_hosts import GRACE, PORT_TAKEN, End, Placement, described, free_address, lacking
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
    if is_open(store):
        executor = RayTasks(store, worker_command(store.root, trainer, execution), workers, profile, tell)
        with connected(profile), on_signals(stop):
            attend(executor, store, ledger, stop, fail_fast=execution.fail_fast)
    return summarise(store, before, states(store), ledger)


def work(words: list[str], environment: list[str], folder: str, log: str, coordinator: str = "") -> int:
    """The task: `python words...` in a folder; returns its exit status. KeyboardInterrupt becomes SIGTERM, and is raised later.

    Args:
      words: behind the interpreter, which is that of the node.
      environment: NAME=VALUE, in addition to the environment that Ray made.
      folder: the working directory.
      log: the file to which standard output and errors are appended.
      coordinator: where process 0 of several listens; "": there is one process.
    """
    words = [*words, "--coordinator", coordinator] if coordinator else words
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
    """A worker, of one process or of several.

    Args:
      number: which worker it is, from 1.
      references: the tasks of Ray that have not ended, by the numbers of their processes.
      logs: what each process prints to.
      starts: how often it was started.
      stopped: whether it was stopped for good.
      ends: how its other tasks have ended since it was started last.
      since: when the first of them had ended, in seconds of `time.monotonic`.
      parted: whether the others were cancelled because of that.
      placement: the nodes of several processes.
    """

    number: int
    references: dict[int, Any] = dataclasses.field(default_factory=dict)
    logs: list[pathlib.Path] = dataclasses.field(default_factory=list)
    starts: int = 0
    stopped: bool = False
    ends: dict[int, End] = dataclasses.field(default_factory=dict)
    since: float = 0.0
    parted: bool = False
    placement: Placement | None = None

    def cancel(self) -> None:
        """Cancel its tasks that have not ended: their processes get SIGTERM, and save."""
        for reference in self.references.values():
            library().cancel(reference, force=False)


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
        if lack := lacking(library().nodes(), self._needs(), self._profile):
            if not self._profile.address:
                raise ValueError(f"no worker can be started: {lack}")
            self._tell(f"workers wait: {lack}")
        for task in self._tasks:
            self._start(task, ())
        return self.name

    def poll(self, workers: str) -> Mapping[str, int]:
        """How many workers wait for a node, and how many run. Starts those again that are to be."""
        open_tasks = [reference for task in self._tasks for reference in task.references.values()]
        if open_tasks:
            ready, _ = library().wait(open_tasks, num_returns=len(open_tasks), timeout=0)
            for task in self._tasks:
                if task.references:
                    self._look(task, ready)
        meant = [task for task in self._meant(workers) if task.references]
        return Counter("running" if task.logs[0].exists() else "waiting" for task in meant)

    def stop(self, workers: str) -> None:
        """Cancel the tasks: a worker that runs gets SIGTERM, and saves."""
        for task in self._meant(workers):
            if not task.stopped:
                task.cancel()
            task.stopped = True

    def _meant(self, workers: str) -> list[Task]:
        return [task for task in self._tasks if workers in (self.name, f"{self.name}_{task.number}")]

    def _needs(self) -> dict[str, float]:
        """What each process of a worker takes of a node, in Ray's words."""
        gpus = {"GPU": self._profile.gpus} if self._profile.gpus else {}
        return {"CPU": self._profile.cpus or 1, **gpus, **self._profile.resources}

    def _start(self, task: Task, more: Sequence[str]) -> None:
        task.starts += 1
        task.ends, task.since, task.parted = {}, 0.0, False
        count = self._profile.processes
        task.logs = [self._log(task, f"-{number}" if number else "") for number in range(count)]
        words, given = [*self._command[1:], "--attached", *more], (self._environment(), os.getcwd())
        if count == 1:
            task.references = {0: self._remote(work, "SPREAD").remote(words, *given, str(task.logs[0]))}
            return
        task.placement = Placement(library(), self._needs(), self._profile)
        address = self._remote(free_address, task.placement.of(0)).remote()
        for number, log in enumerate(task.logs):
            own = [*words, "--processes", str(count), "--process-id", str(number)]
            remote = self._remote(work, task.placement.of(number))
            task.references[number] = remote.remote(own, *given, str(log), address)

    def _log(self, task: Task, process: str) -> pathlib.Path:
        name = f"ray-{self.name}-{os.getpid()}-{task.number}-{task.starts}{process}.txt"
        return pathlib.Path(os.path.abspath(files.inside(self._store.root, LOGS, name)))

    def _remote(self, function: Callable[..., Any], where: Any) -> Any:
        """The function as one that Ray runs, with what a process needs, where `scheduling_strategy` says."""
        needs = self._needs()
        return library().remote(
            num_cpus=needs.pop("CPU"),
            num_gpus=needs.pop("GPU", 0),
            resources=needs,
            max_retries=0,
            scheduling_strategy=where,
        )(function)

    def _environment(self) -> list[str]:
        threads = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self._profile.cpus or 1))
        path = {"PYTHONPATH": os.pathsep.join(import_path())}
        return [f"{name}={value}" for name, value in {**threads, **path, **self._profile.environment}.items()]

    def _look(self, task: Task, ready: Container[Any]) -> None:
        """Look at what became of those of a worker's tasks that have ended; cancel the others, where they do not end too."""
        for number in [number for number, reference in task.references.items() if reference in ready]:
            task.ends[number] = self._end(task.references.pop(number))
            task.since = task.since or time.monotonic()
        if None in task.ends.values() and not task.parted and not task.stopped:  # somebody else cancelled it
            task.stopped = True
            task.cancel()
        if not task.references:
            self._ended(task)
        elif task.ends and not task.parted and time.monotonic() - task.since > GRACE:
            task.parted = True
            task.cancel()

    def _end(self, reference: Any) -> End:
        errors = library().exceptions
        try:
            return library().get(reference)
        except errors.TaskCancelledError:
            return None
        except errors.RayTaskError as error:
            raise ValueError(f"a worker could not be started by Ray: {first_line(error.cause or error)}") from None
        except errors.RayError as error:
            return f"was lost ({first_line(error)})"

    def _ended(self, task: Task) -> None:
        """Start a worker again that has ended, where it is to be. Process 0 says whether runs are left, unless it was lost."""
        if task.placement is not None:
            task.placement.remove()
        ends = list(task.ends.values())
        if task.stopped or task.ends[0] in (0, 3):
            return
        wrong = [last_line(task.logs[number]) for number, end in task.ends.items() if end == 2]
        if any(PORT_TAKEN not in line for line in wrong):
            raise ValueError(f"a worker ended with exit status 2; the last line of its log is: {wrong[0]}")
        if wrong or any(not isinstance(end, int) or starts_again(end) for end in ends):
            self._again(task, described(task.ends), [] if set(ends) == {REQUEUE} else ["--wait"])
            return
        self._tell(
            f"worker {task.number} {described(task.ends)}; the last line of its log {task.logs[0]} is: "
            f"{last_line(task.logs[0])}"
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
