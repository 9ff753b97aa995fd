"""A disturbed sweep on a real SLURM beside the same sweep undisturbed on this machine: the same bits, each run exactly once.

    python -m tests.engines.run                       24 runs by four workers; about ten minutes on two cores
    python -m tests.engines.run --out tests/engines/records

Jobs are requeued, warned or cancelled while they train. Afterwards the digest of the parameters of each run at its
last step must be that of the undisturbed one, its log and evaluations must be the same, and it must have ended once. The record
names machine and versions.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

from attnjax.records.runs import read_manifest
from attnjax.sweep import load, manifest, scan
from tests.engines.cluster import Cluster, missing

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
WAYS = ("requeue", "warn", "requeue", "cancel", "warn", "requeue", "warn", "requeue")
THREADS = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
"""Bits depend on the number of threads, and these nodes are of one machine."""


def main(arguments: list[str] | None = None) -> int:
    """Train twice, compare, and write the record; 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.run", description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/engines"), help="folder of the record")
    chosen = parser.parse_args(arguments)
    if absent := missing():
        parser.error(f"this needs {absent}: apt-get install slurmctld slurmd slurm-client")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = folder / "engines.py"
        config.write_text(CONFIG)
        alone, disturbed = folder / "alone", folder / "disturbed"
        begin = time.monotonic()
        _attnjax(os.environ | THREADS, "sweep", config, "--out", alone, "--population", "1")
        between = time.monotonic()
        with Cluster(folder / "slurm") as slurm:
            told = _disturbed(slurm, config, disturbed, folder)
        record = {
            **{key: value for key, value in manifest.of_machine().items() if key in ("processor", "python")},
            **{
                f"version_{one}": manifest.of_machine()[f"version_{one}"] for one in ("jax", "flax", "orbax_checkpoint")
            },
            "date": manifest.now()[:10],
            "slurm": told.pop("slurm"),
            "disturbed": told,
            "seconds_alone": round(between - begin),
            "seconds_disturbed": round(time.monotonic() - between),
            **compared(alone, disturbed),
        }
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "slurm.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))
    return int(bool(record["differ"]) or record["done"] != record["runs"])


def _disturbed(slurm: Cluster, config: pathlib.Path, root: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """Train on SLURM, and count what was done to the jobs."""
    setup = [f"export {name}={value}" for name, value in THREADS.items()]
    (folder / "cluster.toml").write_text(f"[slurm]\nsetup = {json.dumps(setup)}\n")
    where = (
        "--executor",
        "slurm",
        "--workers",
        "4",
        "--profile",
        folder / "cluster.toml",
        "--wait",
        "--population",
        "1",
    )
    _attnjax(slurm.environment, "sweep", config, "--out", root, *where)
    store, draw, ways = load(root), random.Random(0), list(WAYS)
    told = {"requeue": 0, "warn": 0, "cancel": 0, "jobs": 4}
    while any(store.status(entry.run).state not in ("done", "failed") for entry in store.runs):
        time.sleep(4)
        states = slurm.run("squeue", "--array", "--noheader", "--format=%A %T").splitlines()
        running = [line.split()[0] for line in states if line.endswith("RUNNING")]
        if ways and running:
            way, job = ways.pop(0), draw.choice(running)
            command = {"requeue": ["scontrol", "requeue", job], "cancel": ["scancel", job]}
            slurm.run(*command.get(way, ["scancel", "--batch", "--signal=USR1", job]), check=False)
            told[way] += 1
    return told | {"slurm": slurm.run("sinfo", "--version").strip()}


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
        if digests[0] is None or digests[0] != digests[1] or without_time[0] != without_time[1]:
            different.append(name)
    resumed = sum(read_manifest(run.directory).get("resumed_from", 0) > 0 for run in ours.values())
    done = sum(run.status is not None and run.status.state == "done" and not run.problems for run in ours.values())
    return {"runs": len(theirs), "done": done, "resumed": resumed, "differ": different}


def _attnjax(environment: Any, *arguments: Any) -> None:
    command = [sys.executable, "-m", "attnjax", *map(str, arguments)]
    subprocess.run(command, env=environment, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
