"""Sweeps on a real SLURM of two nodes on this machine: submitted, disturbed, preempted, and what it refuses."""

import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest
from checks import check_complete, until

from attnjax.sweep import load
from tests.engines.cluster import Cluster, missing

SWEEP = pathlib.Path(__file__).parents[1] / "sweep"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}: apt-get install slurmctld slurmd slurm-client"),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def sweep(slurm, root, config, *options, trainer="fake_training:train"):
    """`attnjax sweep` on that SLURM."""
    command = [
        sys.executable,
        "-m",
        "attnjax",
        "sweep",
        str(config),
        "--out",
        str(root),
        "--executor",
        "slurm",
        *options,
    ]
    paths = os.pathsep.join([str(SWEEP), str(SWEEP.parents[1])])
    environment = {**slurm.environment, "PYTHONPATH": paths}
    return subprocess.run(
        [*command, "--trainer", trainer], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def written(folder, *, runs, steps=10, work=2000):
    """A config of so many runs of the training function of hashes."""
    path = folder / "small.py"
    path.write_text(
        f'''"""Hashes."""


def get_config():
    task = {{"options": {{"work": {work}}}}}
    train = {{"steps": {steps}, "checkpoint_every": 2}}
    return {{"name": "small", "task": task, "train": train, "evaluate": {{"lengths": [10, 20]}}}}


def sweep():
    for batch in range(1, {runs} + 1):
        yield {{"train.batch": batch}}
'''
    )
    return path


def jobs(slurm):
    """State of each job of all arrays, by its own number."""
    told = slurm.run("squeue", "--array", "--noheader", "--format=%A %T")
    return dict(line.split() for line in told.splitlines())


def ended(store):
    return all(store.status(entry.run).state in ("done", "failed") for entry in store.runs)


def profile(folder, text):
    path = folder / "cluster.toml"
    path.write_text(f"[slurm]\n{text}\n")
    return str(path)


def test_an_array_that_is_cancelled_requeued_and_warned_at_random_trains_each_run_once(slurm, tmp_path):
    """24 runs by 4 workers; a third of them are disturbed, one after another, each in one of three ways."""
    root, config = tmp_path / "out", written(tmp_path, runs=24, work=500_000)
    done = sweep(slurm, root, config, "--workers", "4", "--population", "2", "--wait")
    assert done.returncode == 0, done.stderr
    array = done.stdout.splitlines()[-2].rsplit(maxsplit=1)[1]
    assert f"24 runs in {root}; 4 workers submitted to slurm: {array}" in done.stdout
    store, draw, ways = (
        load(root),
        random.Random(0),
        ["requeue", "warn", "requeue", "cancel", "warn", "requeue", "warn"],
    )
    deadline, disturbed = time.monotonic() + 400, []
    while not ended(store):
        assert time.monotonic() < deadline, (jobs(slurm), slurm.logs())
        running = [job for job, state in jobs(slurm).items() if state == "RUNNING"]
        if ways and running:
            way, job = ways.pop(0), draw.choice(running)
            command = {
                "requeue": ("scontrol", "requeue", job),
                "warn": ("scancel", "--batch", "--signal=USR1", job),
                "cancel": ("scancel", job),
            }[way]
            slurm.run(*command, check=False)
            disturbed.append(way)
        time.sleep(1.5)
    assert len(disturbed) >= 6
    check_complete(store)
    until(lambda: not jobs(slurm), 120)
    assert (root / "logs" / "slurm.sh").read_text().startswith("#!/bin/bash\n# 4 workers of the sweep in ")


def test_a_job_that_a_higher_partition_preempts_goes_on_later(slurm, tmp_path):
    root, config = tmp_path / "out", written(tmp_path, runs=1, steps=40, work=2_000_000)
    where = profile(tmp_path, 'partition = "low"\ncpus = 2\noptions = ["--nodelist=n1"]')
    done = sweep(slurm, root, config, "--profile", where)
    assert done.returncode == 0, done.stderr
    store = load(root)
    directory = store.directory(store.runs[0].run)
    until(lambda: (directory / "checkpoints/last").exists(), 120)
    job = tmp_path / "urgent.sh"
    job.write_text("#!/bin/bash\nsleep 3\n")
    slurm.run("sbatch", "--partition=high", "--nodelist=n1", "-c2", f"--output={tmp_path}/urgent.txt", str(job))
    until(lambda: store.status(store.runs[0].run).state == "preempted", 120)
    until(lambda: ended(store), 240)
    check_complete(store)
    table = json.loads((directory / "manifest.json").read_text())
    assert table["resumed_from"] > 0
    until(lambda: not jobs(slurm), 120)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('partition = "nowhere"', "sbatch refused: sbatch: error: invalid partition specified: nowhere"),
        ('time = "soon"', "sbatch refused: sbatch: error: Invalid --time specification"),
        ("options = ['--nonsense']", "sbatch refused: sbatch: unrecognized option '--nonsense'"),
    ],
)
def test_what_slurm_refuses_is_told_in_its_words(slurm, tmp_path, text, words):
    done = sweep(slurm, tmp_path / "out", written(tmp_path, runs=1), "--profile", profile(tmp_path, text))
    assert done.returncode == 2
    assert done.stderr.startswith(f"attnjax: error: {words}"), done.stderr
