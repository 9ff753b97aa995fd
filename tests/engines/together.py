"""One folder of a sweep for two engines at once: workers that SLURM started and workers that Ray started claim its runs."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from attnjax.sweep import ExecutionConfig, Store, load
from attnjax.sweep.executors import attend, worker_command
from attnjax.sweep.lease import holder
from attnjax.sweep.profiles import Profile
from attnjax.sweep.ray_tasks import RayTasks, connected, library
from attnjax.sweep.run_context import Event
from attnjax.sweep.stop import Stop
from tests.engines import cluster, ray_nodes
from tests.engines.interruptions import leases

WORKERS = 2
"""Of each engine."""
Engines = dict[int, str]
"""Which engine started a process: "slurm" or "ray"."""


def train(
    config: pathlib.Path,
    root: pathlib.Path,
    folder: pathlib.Path,
    environment: Mapping[str, str],
    disturb: Callable[[Store, Event, Engines], None],
    trainer: str = "attnjax.train:train",
) -> tuple[Engines, str]:
    """Train a sweep on SLURM and on Ray until every run has ended; returns the processes that held runs, and the versions.

    `environment` is that of the workers in addition. `disturb` is called with every event, whichever engine it comes from.
    """
    setup = [f"export {name}={value}" for name, value in environment.items() if name != "PYTHONPATH"]
    (folder / "cluster.toml").write_text(f"[slurm]\nsetup = {json.dumps(setup)}\n")
    options = ["--executor", "slurm", "--workers", str(WORKERS), "--profile", str(folder / "cluster.toml")]
    options += ["--trainer", trainer, "--population", "1", "--wait"]
    engines: Engines = {}

    def look(event: Event) -> None:
        engines.update(holding(store))
        disturb(store, event, engines)

    with cluster.Cluster(folder / "slurm") as slurm, ray_nodes.Nodes(cpus=WORKERS) as nodes:
        profile = Profile(address=nodes.address, environment=dict(environment))
        with connected(profile):
            submit = [sys.executable, "-m", "attnjax", "sweep", str(config), "--out", str(root), *options]
            subprocess.run(submit, env={**slurm.environment, **environment}, check=True, stdout=sys.stderr)
            store = load(root)
            command = worker_command(root, trainer, ExecutionConfig(population=1, wait=True))
            attend(RayTasks(store, command, WORKERS, profile, lambda _: None), store, look, Stop())
            return engines, f"{slurm.version()}; Ray {library().__version__}"


def holding(store: Store) -> Engines:
    """The living processes that hold a run."""
    found = {}
    for entry in store.runs:
        owner = holder(store.directory(entry.run))
        if owner is not None and not owner.released and psutil.pid_exists(owner.pid):
            found[owner.pid] = engine_of(owner.pid)
    return {pid: engine for pid, engine in found.items() if engine}


def engine_of(pid: int) -> str:
    """The engine that started a process; "" where that has ended."""
    try:
        process = psutil.Process(pid)
        return "slurm" if cluster.job_of(process) else "ray" if "--attached" in process.cmdline() else ""
    except psutil.Error:
        return ""


def shares(store: Store, engines: Engines) -> dict[str, Any]:
    """How many runs each engine ended, and how many passed from one to the other; "" for a process that was not seen."""
    of_runs = []
    for entry in store.runs:
        heads = [json.loads(path.read_text().splitlines()[0]) for path in leases(store.directory(entry.run))]
        of_runs.append([engines.get(head["pid"], "") for head in heads])
    ended = [of_run[-1] for of_run in of_runs]
    return {
        "ended_by": {engine: ended.count(engine) for engine in sorted(set(ended))},
        "passed_on": sum(len(set(of_run)) > 1 for of_run in of_runs),
    }
