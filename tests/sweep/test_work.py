"""`attnjax work`: workers that a scheduler starts, warns and kills; each run is trained once, with the same bits."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import hanging
import pytest
from checks import check_complete, check_populations, until

from attnjax.cli import main
from attnjax.sweep import load, scan, seeds
from attnjax.sweep.lease import holder

REQUEUE = 75


def worker(root, trainer="fake_training:train", *options):
    """`attnjax work` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "attnjax", "work", str(root), "--trainer", trainer, *options],
        env={**os.environ, "PYTHONPATH": hanging.PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_planned_sweep_is_trained_by_a_worker(tmp_path, capsys):
    config = tmp_path / "small.json"
    config.write_text(
        '{"name": "small", "train": {"steps": 10, "checkpoint_every": 2}, "evaluate": {"lengths": [10, 20]}}'
    )
    given = ["sweep", str(config), "--seeds", "2", "--out", str(tmp_path / "out"), "--trainer", "fake_training:train"]
    assert main([*given, "--plan"]) == 0
    assert f"2 runs planned in {tmp_path / 'out'}: attnjax work {tmp_path / 'out'}" in capsys.readouterr().out
    work = ["work", str(tmp_path / "out"), "--trainer", "fake_training:train"]
    assert main(work) == 0
    assert "2 runs: 2 done" in capsys.readouterr().out
    assert main(work) == 0
    assert "2 runs: 2 done; 2 of them before" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--extend", "--seeds", "3"]], ids=["again", "dry", "more"])
def test_a_protocol_that_is_changed_after_the_first_run_is_told_and_does_not_count(tmp_path, capsys, options):
    """The sha256 in the manifest of each run is that of the text in sweep.json."""
    config, out = tmp_path / "small.py", tmp_path / "out"
    text = '"""{}"""\ndef get_config():\n    return {{"train": {{"steps": 2}}, "evaluate": {{"lengths": [10]}}}}\n'
    given = ["sweep", str(config), "--out", str(out), "--trainer", "fake_training:train", "--population", "1"]
    config.write_text(text.format("Before."))
    assert main([*given, "--seeds", "2", "--plan"]) == 0
    assert "note" not in capsys.readouterr().out
    config.write_text(text.format("After."))
    assert main([*given, *([] if "--seeds" in options else ["--seeds", "2"]), *options]) == 0
    told = f"note: the text of {config} is not that in {out / 'sweep.json'}, which counts and stays"
    assert told in capsys.readouterr().out
    assert load(out).protocol == "Before."
    hashes = {run.manifest().get("protocol_sha256") for run in scan(out).runs}
    assert hashes == ({None} if "--dry-run" in options else {hashlib.sha256(b"Before.").hexdigest()})


@pytest.mark.quick("SIGUSR1")
@pytest.mark.parametrize("number", ["SIGUSR1", "SIGUSR2", "SIGTERM"])
def test_a_warned_worker_saves_gives_its_runs_back_and_asks_to_be_started_again(make, number):
    store = make(seeds(2), task={"options": {"work": 2_000_000}})
    process = worker(store.root)
    until(lambda: any((store.directory(entry.run) / "checkpoints/last").exists() for entry in store.runs))
    process.send_signal(getattr(signal, number))
    told, errors = process.communicate(timeout=60)
    assert process.returncode == REQUEUE, errors
    assert f"stopped: {number}; the same command continues" in told
    found = [store.status(entry.run) for entry in store.runs]
    assert {one.state for one in found} <= {"preempted", "done", "pending"}
    assert any(one.reason == number for one in found)
    assert all(owner is None or owner.released for owner in (holder(store.directory(one.run)) for one in store.runs))


def test_warnings_that_come_again_change_nothing(make):
    """A scheduler may warn more than once: no second SIGUSR1 ends a worker that saves."""
    store = make(seeds(1))
    process = worker(store.root, "hanging:held")
    until(lambda: (store.directory(store.runs[0].run) / "begun").exists())
    for _ in range(3):
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
    (store.directory(store.runs[0].run) / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == REQUEUE
    assert store.status(store.runs[0].run).state == "preempted"


@pytest.mark.slow
def test_an_array_of_workers_is_warned_and_killed_at_random(make):
    """Four workers that are started again whenever they ask for it or a signal ends them, as a scheduler does.

    The signals come as training proceeds, at each twelfth of all steps, however fast the machine is. One that comes
    while a worker still loads its libraries ends it at once: it holds nothing yet.
    """
    store = make(seeds(24), task={"options": {"work": 30_000}})
    every = sum(store.config(entry.run).train.steps for entry in store.runs) / 12
    draw, ends, started, disturbed = random.Random(0), [], 0, 0
    options = ("--population", "2", "--wait", "--attempts", "50")
    alive = [worker(store.root, "fake_training:train", *options) for _ in range(4)]
    deadline = time.monotonic() + 300
    while alive and time.monotonic() < deadline:
        time.sleep(0.02)
        if disturbed < 8 and sum(store.status(entry.run).step for entry in store.runs) > disturbed * every:
            draw.choice(alive).send_signal(draw.choice([signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL]))
            disturbed += 1
        for process in [one for one in alive if one.poll() is not None]:
            alive.remove(process)
            process.communicate()
            ends.append(process.returncode)
            if process.returncode == REQUEUE or process.returncode < 0:
                started += 1
                alive.append(worker(store.root, "fake_training:train", *options))
    assert not alive
    assert {end for end in ends if end >= 0} <= {0, REQUEUE}
    assert disturbed == 8
    assert started >= 4
    check_complete(store)
    assert check_populations(store, 2) >= 12


def test_a_folder_without_a_sweep(tmp_path, capsys):
    assert main(["work", str(tmp_path)]) == 2
    assert "holds no sweep: there is no sweep.json" in capsys.readouterr().err
