"""Sweeps on a real SLURM of two nodes on this machine: submitted, disturbed and preempted."""

import json
import random
import time

import pytest
from checks import ENVIRONMENT, check_complete, check_populations, command, until

from attnjax.sweep import load
from tests.engines.cluster import INSTALL, Cluster, job_of, missing
from tests.engines.interruptions import in_training

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}: {INSTALL}"),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def sweep(slurm, root, config, *options):
    """Exit status, output and errors of `attnjax run` on that SLURM."""
    environment = {**slurm.environment, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    process = command("run", config, "--out", root, "--executor", "slurm", *options, env=environment)
    told, errors = process.communicate(timeout=120)
    return process.returncode, told, errors


def written(folder, *, runs, steps=10, **options):
    """A config of so many runs of the training function of hashes."""
    config = {"name": "small", "task": {"options": options}, "train": {"steps": steps, "checkpoint_every": 2}}
    config["evaluate"] = {"lengths": [10, 20]}
    sweep = [{"seed": seed} for seed in range(runs)]
    path = folder / "small.py"
    path.write_text(f"def get_config():\n    return {config}\n\n\ndef sweep():\n    return {sweep}\n")
    return path


def ended(store):
    return all(store.status(entry.run).state in ("done", "failed") for entry in store.runs)


WAYS = ("requeue", "warn", "requeue", "cancel", "warn", "requeue", "warn", "requeue")


def test_an_array_that_is_cancelled_requeued_and_warned_at_random_has_one_result_for_each_run(slurm, tmp_path):
    """24 runs by 4 workers, in pairs; a third as many blows meet workers that train, each in one of three ways.

    The job that is cancelled does not come back, and the others do.
    """
    root, config = tmp_path / "out", written(tmp_path, runs=24, work=500_000)
    status, told, errors = sweep(slurm, root, config, "--workers", "4", "--population", "2", "--wait")
    assert status == 0, errors
    assert f"24 runs in {root}; 4 workers submitted to slurm: " in told
    store, draw, ways, cancelled = load(root), random.Random(0), list(WAYS), ""
    deadline = time.monotonic() + 400
    while not ended(store):
        assert time.monotonic() < deadline, (slurm.jobs(), slurm.logs())
        states = slurm.jobs()
        assert states.get(cancelled, "COMPLETING") == "COMPLETING"
        training = {job_of(process) for process in in_training(store)} if ways else set()
        if met := sorted(job for job, state in states.items() if state == "RUNNING" and job in training):
            way, job = ways.pop(0), draw.choice(met)
            command = {
                "requeue": ("scontrol", "requeue", job),
                "warn": ("scancel", "--batch", "--signal=USR1", job),
                "cancel": ("scancel", job),
            }[way]
            slurm.run(*command, check=False)
            cancelled = job if way == "cancel" else cancelled
        time.sleep(1)
    assert not ways
    check_complete(store)
    assert check_populations(store, 2) >= 12
    assert sum(run["resumed_from"] > 0 for run in manifests(store)) >= 2
    until(lambda: not slurm.jobs(), 120)
    assert "JobState=CANCELLED" in slurm.run("scontrol", "show", "job", cancelled)


def manifests(store):
    return [json.loads((store.folder(entry.run) / "manifest.json").read_text()) for entry in store.runs]


@pytest.mark.parametrize("partition", ["low", "sudden"])
def test_a_job_that_a_higher_partition_preempts_goes_on_later(slurm, tmp_path, partition):
    """After a warning, so that the script asks for it, or at once, so that SLURM alone does."""
    root, config = tmp_path / "out", written(tmp_path, runs=1, steps=20, work=2_000_000)
    where = [f"--cluster={one}" for one in (f"partition={partition}", "cpus-per-task=2", "nodelist=n1")]
    status, _, errors = sweep(slurm, root, config, *where)
    assert status == 0, errors
    store = load(root)
    until(lambda: (store.folder(store.runs[0].run) / "checkpoints/2").exists(), 120)
    job = tmp_path / "urgent.sh"
    job.write_text("#!/bin/bash\nsleep 3\n")
    slurm.run("sbatch", "--partition=high", "--nodelist=n1", "-c2", f"--output={tmp_path}/urgent.txt", str(job))
    until(lambda: ended(store), 360)
    check_complete(store)
    assert manifests(store)[0]["resumed_from"] > 0
    until(lambda: not slurm.jobs(), 120)
