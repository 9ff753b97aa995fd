"""Workers as tasks of Ray. Ray starts a worker again whose process or node is lost; the driver one that a signal stopped.

A task is the same worker as everywhere (`worker.work`). Nodes need attnjax, and the folder of the sweep under one path.
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
import socket
from collections.abc import Callable, Mapping
from typing import Any

from attnjax.sweep.local import import_path
from attnjax.sweep.outcome import INTERRUPTED, Stop, Summary, exit_status, on_signals, summarise
from attnjax.sweep.store import Store, load
from attnjax.sweep.worker import ExecutionConfig, import_train, run_here


def train_task(root: str, trainer: str, execution: dict[str, Any]) -> int:
    """Train what is open, in a process of Ray; returns the exit status of a worker."""
    stop = Stop()
    summary = run_here(load(pathlib.Path(root)), import_train(trainer), ExecutionConfig(**execution), stop=stop)
    return exit_status(summary, stop)


def run_tasks(
    store: Store,
    trainer: str,
    workers: int,
    execution: ExecutionConfig,
    options: Mapping[str, str],
    *,
    stop: Stop,
) -> Summary:
    """Train all runs of a sweep that have not ended, in `workers` tasks of Ray.

    `options`: `address` of a Ray cluster; without it, one of this machine, for this command alone. All others are numbers that
    each worker takes: num_cpus, num_gpus, or your own resources.

    Raises ValueError where Ray is not installed, its cluster cannot be reached, or a worker raises.
    """
    ray = library()
    takes = {name: float(value) for name, value in options.items() if name != "address"}
    own = {name: takes.pop(name) for name in list(takes) if name not in ("num_cpus", "num_gpus")}
    threads = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), f"{takes.get('num_cpus', 1):.0f}")
    settings: dict[str, Any] = {} if "address" in options else {"include_dashboard": False}
    settings["runtime_env"] = {"env_vars": {"PYTHONPATH": import_path(), **threads}}
    words = str(store.root.absolute()), trainer, dataclasses.asdict(dataclasses.replace(execution, wait=True))
    try:
        check_reachable(options.get("address", ""))
        ray.init(options.get("address", "local"), log_to_driver=False, logging_level=logging.ERROR, **settings)
        task = ray.remote(max_retries=-1, resources=own, scheduling_strategy="SPREAD", **takes)(train_task)
        with on_signals(stop):
            watch(ray, lambda: task.remote(*words), workers, stop)
    except (OSError, RuntimeError, ConnectionError, ray.exceptions.RayError) as error:
        told = str(getattr(error, "cause", "") or error).strip().splitlines() or ["?"]
        raise ValueError(f"Ray: {told[0]}") from error
    finally:
        ray.shutdown()
    return summarise(store, {})


def check_reachable(address: str) -> None:
    """Raise OSError where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def watch(ray: Any, start: Callable[[], Any], workers: int, stop: Stop) -> None:
    """Wait until all tasks have ended: cancel them after a stop, and start those again that a signal ended."""
    tasks, asked = [start() for _ in range(workers)], False
    while tasks:
        ended, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=1.0)
        if stop.reason and not asked:
            asked = True
            for one in tasks:
                ray.cancel(one, force=False)
        for one in ended:
            with contextlib.suppress(ray.exceptions.TaskCancelledError):
                if ray.get(one) == INTERRUPTED and not asked:
                    tasks.append(start())


def library() -> Any:
    """Return the package ray. Raises ValueError where it is missing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray reads it on every system, while it is imported: without it, the ports of a cluster of its own are open to the network.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError(f"Ray is not installed: pip install 'attnjax[ray]' ({error})") from None
    return ray
