"""A disturbed sweep on a real SLURM, Ray or both beside the same sweep undisturbed here: the same bits, each run once.

    python -m tests.engines.run --engine slurm        24 runs by four workers; about ten minutes on two cores
    python -m tests.engines.run --engine slurm ray both --out tests/engines/records

Workers are requeued, warned, killed or cancelled in the middle of a run, and nodes are lost. With `both`, two workers of SLURM
and two of Ray claim the runs of one folder. Afterwards the digest of the parameters of each run at its last step must be that
of the undisturbed one, its log and evaluations must be the same and each line there once, and it must have ended once. The
record names machine and versions, says how many leases each run had and how often it ended, and how many trainings were met
after their first step.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

from attnjax.records import jsonl
from attnjax.records.runs import read_manifest
from attnjax.sweep import ExecutionConfig, Run, Store, load, manifest, scan
from attnjax.sweep.executors import attend, worker_command
from attnjax.sweep.profiles import Profile
from attnjax.sweep.ray_tasks import RayTasks, connected, library
from attnjax.sweep.run_context import Event
from attnjax.sweep.stop import Stop
from tests.engines import cluster, ray_nodes, together
from tests.engines.interruptions import in_training, leases, resumptions

CONFIG = '''"""Copying strings, a few steps."""


def get_config():
    model = {"layers": 1, "model": 16, "heads": 2, "hidden": 32}
    train = {"steps": 300, "batch": 16, "checkpoint_every": 50, "log_every": 50}
    return {"name": "engines", "model": model, "task": {"name": "copy", "length_max": 8}, "train": train,
            "evaluate": {"lengths": [8, 12], "count": 32, "batch": 32}}


def sweep():
    for encoding in ("rope", "alibi"):
        for seed in range(12):
            yield {"model.encoding": encoding, "seed": seed}
'''
WAYS = {
    "slurm": ("requeue", "warn", "requeue", "cancel", *("warn", "requeue") * 5),
    "ray": ("kill", "node", "warn", "cancel", "kill", "warn", "node", "warn", *("kill", "warn") * 2),
    "both": ("kill", "warn") * 7,
}
THREADS = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
"""Bits depend on the number of threads, and these nodes are of one machine."""


def main(arguments: list[str] | None = None) -> int:
    """Train twice, compare, and write the record; 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.run", description=__doc__)
    parser.add_argument(
        "--engine", choices=sorted(WAYS), nargs="+", default=["slurm"], help="what starts the workers; default: slurm"
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/engines"), help="folder of the records")
    chosen = parser.parse_args(arguments)
    for engine in chosen.engine:
        lacks = {"slurm": [cluster], "ray": [ray_nodes]}.get(engine, [cluster, ray_nodes])
        if absent := ", ".join(filter(None, (one.missing() for one in lacks))):
            parser.error(f"{engine} needs {absent}, see docs/clusters.md")
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = folder / "engines.py"
        config.write_text(CONFIG)
        begin = time.monotonic()
        _attnjax(
            os.environ | THREADS, "sweep", config, "--out", folder / "alone", "--population", "1", "--workers", "2"
        )
        seconds = round(time.monotonic() - begin)
        return max([_disturbed(engine, config, folder, seconds, chosen.out) for engine in chosen.engine])


def _disturbed(engine: str, config: pathlib.Path, folder: pathlib.Path, seconds: int, out: pathlib.Path) -> int:
    """Train on an engine, compare with what was trained alone, and write the record; 1 where anything differs."""
    (own := folder / engine).mkdir()
    begin, machine = time.monotonic(), manifest.of_machine()
    told = {"slurm": _on_slurm, "ray": _on_ray, "both": _on_both}[engine](config, own / "disturbed", own)
    record = {
        **{key: machine[key] for key in ("python", "processor", "version_jax", "version_flax")},
        "version_orbax_checkpoint": machine["version_orbax_checkpoint"],
        "date": manifest.now()[:10],
        engine: told.pop("version"),
        "disturbed": told,
        "seconds_alone": seconds,
        "seconds_disturbed": round(time.monotonic() - begin),
        **compared(folder / "alone", own / "disturbed"),
    }
    (out / f"{engine}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))
    return int(bool(record["differ"]) or record["done"] != record["runs"] or set(record["ends"]) != {1})


def _on_slurm(config: pathlib.Path, root: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """Train on SLURM, and count what was done to the jobs."""
    setup = [f"export {name}={value}" for name, value in THREADS.items()]
    (folder / "cluster.toml").write_text(f"[slurm]\nsetup = {json.dumps(setup)}\n")
    where = ["--executor", "slurm", "--workers", "4", "--profile", folder / "cluster.toml"]
    with cluster.Cluster(folder / "slurm") as slurm:
        _attnjax(slurm.environment, "sweep", config, "--out", root, *where, "--wait", "--population", "1")
        store, draw, ways = load(root), random.Random(0), list(WAYS["slurm"])
        told = {"requeue": 0, "warn": 0, "cancel": 0, "jobs": 4}
        while any(store.status(entry.run).state not in ("done", "failed") for entry in store.runs):
            time.sleep(0.3)
            training = {cluster.job_of(process) for process in in_training(store)} if ways else set()
            if met := sorted(job for job, state in slurm.jobs().items() if state == "RUNNING" and job in training):
                way, job = ways.pop(0), draw.choice(met)
                command = {"requeue": ["scontrol", "requeue", job], "cancel": ["scancel", job]}
                slurm.run(*command.get(way, ["scancel", "--batch", "--signal=USR1", job]), check=False)
                told[way] += 1
                time.sleep(4)
        return told | {"version": slurm.version()}


def _on_ray(config: pathlib.Path, root: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """Train on two nodes of Ray, and count what was done to workers, tasks and nodes. It comes as training proceeds."""
    _attnjax(os.environ | THREADS, "sweep", config, "--out", root, "--plan")
    store, draw, ways, words = load(root), random.Random(0), list(WAYS["ray"]), []
    command = worker_command(root, "attnjax.train:train", ExecutionConfig(population=1))
    every = sum(store.config(entry.run).train.steps for entry in store.runs) / (len(ways) + 2)
    steps: dict[str, int] = {}
    told = {"warn": 0, "kill": 0, "node": 0, "cancel": 0, "workers": 4}
    with ray_nodes.Nodes(cpus=2) as nodes, connected(Profile(address=nodes.address)):
        executor = RayTasks(store, command, 4, Profile(address=nodes.address, environment=THREADS), words.append)

        def disturb(event: Any) -> None:
            steps[event.run] = event.step
            due = sum(steps.values()) > (len(WAYS["ray"]) - len(ways) + 1) * every
            if ways and due and (working := in_training(store)):
                way, one = ways.pop(0), draw.choice(working)
                how = {"warn": lambda: one.send_signal(signal.SIGUSR1), "kill": one.kill, "node": nodes.lose}
                how.get(way, lambda: executor.stop(f"{executor.name}_{draw.randint(1, 4)}"))()
                told[way] += 1

        attend(executor, store, disturb, Stop())
        version = library().__version__
    print("\n".join(words), file=sys.stderr)
    lost, again = (sum(what in one for one in words) for what in ("was lost (", "is started again"))
    return told | {"workers_lost": lost, "workers_started_again": again, "version": version}


def _on_both(config: pathlib.Path, root: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """Train on SLURM and Ray at once, and kill or warn workers of whichever engine."""
    draw, ways = random.Random(0), list(WAYS["both"])
    told = {f"{way}_{engine}": 0 for way in ("kill", "warn") for engine in ("slurm", "ray")}
    begun = time.monotonic()

    def disturb(store: Store, event: Event, engines: together.Engines) -> None:
        nonlocal begun
        working = [one for one in in_training(store) if one.pid in engines]
        if ways and working and set(engines.values()) == {"slurm", "ray"} and time.monotonic() - begun > 4:
            way, one, begun = ways.pop(0), draw.choice(working), time.monotonic()
            one.send_signal(signal.SIGKILL if way == "kill" else signal.SIGUSR1)
            told[f"{way}_{engines[one.pid]}"] += 1

    engines, version = together.train(config, root, folder, THREADS, disturb)
    return told | {"workers": 2 * together.WORKERS, **together.shares(load(root), engines), "version": version}


def compared(alone: pathlib.Path, disturbed: pathlib.Path) -> dict[str, Any]:
    """How many runs are done once, and which differ in anything but the story of their training."""
    ours, theirs = ({run.run: run for run in scan(root).runs} for root in (disturbed, alone))
    different = []
    for name, run in ours.items():
        digests = [read_manifest(one.directory).get("parameters_sha256") for one in (run, theirs[name])]
        logs = [(one.metrics().tables, one.results().tables) for one in (run, theirs[name])]
        without_time = [
            [[{k: v for k, v in row.items() if "second" not in k} for row in part] for part in log] for log in logs
        ]
        same = digests[0] is not None and digests[0] == digests[1] and without_time[0] == without_time[1]
        if not same or _lines(run) != tuple(map(len, logs[1])):
            different.append(name)
    resumed = sum(read_manifest(run.directory).get("resumed_from", 0) > 0 for run in ours.values())
    done = sum(run.status is not None and run.status.state == "done" and not run.problems for run in ours.values())
    return {
        "runs": len(theirs),
        "done": done,
        "resumed": resumed,
        "differ": different,
        "leases": [len(leases(run.directory)) for run in ours.values()],
        "ends": [_ends(run) for run in ours.values()],
        "trainings_met": sum(resumptions(run.directory) for run in ours.values()),
    }


def _lines(run: Run) -> tuple[int, ...]:
    """The lines of log and evaluations as they are on the disk: a reader drops evaluations that are there twice."""
    return tuple(len((run.directory / name).read_text(encoding="utf-8").splitlines()) for name in jsonl.FILES)


def _ends(run: Run) -> int:
    """How often a run ended: each end writes its evaluations."""
    found = Counter(map(jsonl.identity, jsonl.read(run.directory / jsonl.RESULTS).tables))
    return max(found.values(), default=0)


def _attnjax(environment: Any, *arguments: Any) -> None:
    command = [sys.executable, "-m", "attnjax", *map(str, arguments)]
    subprocess.run(command, env=environment, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
