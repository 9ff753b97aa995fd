"""Sweeps on a real SLURM of two nodes on this machine: submitted, disturbed, preempted, and what it refuses."""

import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest
from checks import check_complete, check_populations, until

from attnjax.records.runs import read_manifest
from attnjax.sweep import load
from attnjax.sweep.profiles import Profile
from attnjax.sweep.slurm import Slurm
from tests.engines.cluster import INSTALL, Cluster, job_of, missing
from tests.engines.interruptions import in_training, leases

SWEEP = pathlib.Path(__file__).parents[1] / "sweep"
PATHS = os.pathsep.join([str(SWEEP), str(SWEEP.parents[1])])

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}: {INSTALL}"),
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
    environment = {**slurm.environment, "PYTHONPATH": PATHS}
    return subprocess.run(
        [*command, "--trainer", trainer], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def written(folder, *, runs, steps=10, **options):
    """A config of so many runs of the training function of hashes."""
    path = folder / "small.py"
    path.write_text(
        f'''"""Hashes."""


def get_config():
    task = {{"options": {options}}}
    train = {{"steps": {steps}, "checkpoint_every": 2}}
    return {{"name": "small", "task": task, "train": train, "evaluate": {{"lengths": [10, 20]}}}}


def sweep():
    for seed in range({runs}):
        yield {{"seed": seed}}
'''
    )
    return path


def ended(store):
    return all(store.status(entry.run).state in ("done", "failed") for entry in store.runs)


def profile(folder, text):
    path = folder / "cluster.toml"
    path.write_text(f"[slurm]\n{text}\n")
    return str(path)


WAYS = ("requeue", "warn", "requeue", "cancel", "warn", "requeue", "warn", "requeue")


def test_an_array_that_is_cancelled_requeued_and_warned_at_random_trains_each_run_once(slurm, tmp_path, monkeypatch):
    """24 runs by 4 workers, in pairs; a third as many blows meet workers that train, each in one of three ways.

    The job that is cancelled does not come back, and the others do.
    """
    root, config = tmp_path / "out", written(tmp_path, runs=24, work=500_000)
    done = sweep(slurm, root, config, "--workers", "4", "--population", "2", "--wait")
    assert done.returncode == 0, done.stderr
    array = done.stdout.splitlines()[-2].rsplit(maxsplit=1)[1]
    assert f"24 runs in {root}; 4 workers submitted to slurm: {array}" in done.stdout
    store, draw, ways, cancelled = load(root), random.Random(0), list(WAYS), ""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    executor = Slurm(store, [], 4, Profile())
    assert (executor.living(), sum(executor.poll(array).values())) == ({array: 4}, 4)
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
    assert len(WAYS) - len(ways) >= 0.3 * 24, ways
    check_complete(store)
    assert check_populations(store, 2) >= 12
    folders = [store.directory(entry.run) for entry in store.runs]
    assert sum(len(leases(folder)) - 1 for folder in folders) >= 0.3 * 24, (
        "each blow met a run, which was claimed again"
    )
    assert sum(read_manifest(folder)["resumed_from"] > 0 for folder in folders) >= 2
    until(lambda: not slurm.jobs(), 120)
    assert "JobState=CANCELLED" in slurm.run("scontrol", "show", "job", cancelled)
    assert (executor.living(), executor.poll(array), executor.poll("999999")) == ({}, {}, {})
    assert (root / "logs" / "slurm.sh").read_text().startswith("#!/bin/bash\n# 4 workers of the sweep in ")


@pytest.mark.parametrize(
    ("partition", "options"),
    [("low", []), ("low", ["--signal=B:TERM@60"]), ("sudden", [])],
    ids=["warned", "terminated", "at_once"],
)
@pytest.mark.slow
def test_a_job_that_a_higher_partition_preempts_goes_on_later(slurm, tmp_path, partition, options):
    """By SIGUSR1 or SIGTERM some seconds before, so that the script asks for it, or at once, so that SLURM alone does."""
    root, config = tmp_path / "out", written(tmp_path, runs=1, steps=20, work=2_000_000)
    where = profile(tmp_path, f'partition = "{partition}"\ncpus = 2\noptions = {["--nodelist=n1", *options]}')
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
    until(lambda: not slurm.jobs(), 120)


def test_a_command_that_does_not_authenticate_by_munge_is_refused(slurm, tmp_path):
    ours = pathlib.Path(slurm.environment["SLURM_CONF"]).read_text()
    assert ours.count("AuthType=auth/munge\nCredType=cred/munge\n") == 1
    (tmp_path / "slurm.conf").write_text(ours.replace("/munge\n", "/none\n"))
    environment = {**slurm.environment, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    done = subprocess.run(["sbatch", "--wrap=true"], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "auth/none(100) not found" in slurm.logs()


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
