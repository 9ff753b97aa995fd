"""Several processes on one sweep: each run has one result, the undisturbed one, whoever is killed or stopped."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import fake_training
import pytest
from checks import ENVIRONMENT, check_complete, command, until

from attnjax.records import stored
from attnjax.records.runs import folder_of
from attnjax.sweep import ExecutionConfig, load, local, run_here, run_workers, seeds, vary
from attnjax.sweep.claim import FILE, holder, is_running
from attnjax.sweep.devices import CUDA
from attnjax.sweep.outcome import TOGETHER
from tests.runs import runs_in
from tests.train.killing import killer

TRAINER = "fake_training:train"
ALONE = ExecutionConfig(population=1)
SMALL = '{"name": "small", "train": {"steps": 10, "checkpoint_every": 2}, "evaluate": {"lengths": [10, 20]}}'


@pytest.fixture
def started(monkeypatch):
    """The GPU of each worker that is started; there are two, 5 and 7."""
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv(CUDA, "5,7")
    found, popen = [], subprocess.Popen

    def recorded(*arguments, **options):
        found.append(options["env"][CUDA])
        return popen(*arguments, **options)

    monkeypatch.setattr(local.subprocess, "Popen", recorded)
    return found


def test_a_run_that_kills_its_workers_is_given_up_and_the_rest_goes_on(make, started):
    """Also where its status says another step at each death. A worker that replaces another has the GPU of that one."""
    store = make([{"seed": 0}, {"seed": 1, "task.options": {"suicide": True}}, {"seed": 2}])
    execution = ExecutionConfig(population=1, attempts=2)
    summary = run_workers(store, "fake_training:dies", 1, execution, threads=1)
    assert [summary.states[entry.run] for entry in store.runs] == ["done", "failed", "done"]
    assert started == ["5"] * 3
    reason = store.status(store.runs[1].run).reason
    assert reason.startswith("its worker died 2 times in a row without a new checkpoint, the last time at step ")
    check_complete(store, except_for=[store.runs[1].run])


def test_workers_are_killed_at_random_and_each_run_has_one_undisturbed_result(make, started):
    cells, workers = 8, 2
    store = make(vary("train.batch", range(1, cells + 1)), task={"options": {"work": 100_000}})
    with killer(store, 3, 0.3) as victims:
        summary = run_workers(store, TRAINER, workers, threads=1)
    assert len(victims) == 3
    assert set(summary.states.values()) == {"done"}
    check_complete(store)
    assert not stored.read(store.root).skipped
    for entry in store.runs:
        assert sorted(os.listdir(store.directory(entry.run))) == ["config.json", "result"]
    assert started[:workers] == ["5", "7"]
    told = [run.manifest() for run in runs_in(store.root)]
    assert {one["threads"] for one in told} == {1}
    assert len({(one["process"], one["environment"][CUDA]) for one in told}) == len({one["process"] for one in told})


def test_workers_that_cannot_start_are_told_with_what_they_said(make):
    with pytest.raises(ValueError, match=r"before they claim a run(.|\n)*No module named 'not_there'"):
        run_workers(make(seeds(2)), "not_there:train", 1, threads=1)


DRIVER = """
import pathlib, sys
from attnjax.sweep import load, run_workers
run_workers(load(pathlib.Path(sys.argv[1])), "fake_training:train", 1, threads=1)
"""


def test_a_killed_driver_takes_its_workers_along_and_another_on_the_folder_finishes(make, tmp_path):
    """Runs are slow until the first driver is killed, when both have a worker that trains."""
    store = make(vary("train.batch", range(1, 7)), task={"options": {"slow_until": str(tmp_path / "go")}})
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(store.root)], env=ENVIRONMENT)
    owners = lambda: [owner for entry in store.runs if (owner := holder(store.directory(entry.run)))]

    def kill():
        until(lambda: len(owners()) == 2)
        driver.kill()
        (tmp_path / "go").touch()

    killing = threading.Thread(target=kill)
    try:
        until(lambda: any(store.status(entry.run).step for entry in store.runs))
        (owner,) = owners()
        killing.start()
        run_workers(store, TRAINER, 1, ExecutionConfig(population=1, wait=True), threads=1)
    finally:
        driver.kill()
        driver.wait()
    killing.join()
    check_complete(store)
    until(lambda: not is_running(owner.pid))


def test_a_slow_owner_that_wakes_after_a_takeover_changes_nothing_of_the_published_result(make):
    """It is suspended amid its run, its machine seems to be gone, and another process trains the run to its end."""
    store = make(seeds(1))
    run = store.directory(store.runs[0].run)
    slow = command("work", store.root, "--patience", "2", trainer="held")
    until(lambda: any(run.glob("attempt-*/begun")))
    slow.send_signal(signal.SIGSTOP)
    claim = holder(run)._replace(machine="another")
    (run / FILE).write_text(json.dumps(claim._asdict()))
    os.utime(run / FILE, (1, 1))
    assert str(run_here(store, fake_training.train)) == "1 runs: 1 done"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    (run / "go").touch()
    slow.send_signal(signal.SIGCONT)
    told, errors = slow.communicate(timeout=60)
    assert "Traceback" not in errors
    assert "1 done" in told
    (run / "go").unlink()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    check_complete(store)


# Signals to workers and to commands


def test_an_interrupted_worker_gives_its_runs_back_and_the_same_command_goes_on(make, tmp_path):
    """By Ctrl-C while Python starts or the command begins, and by a warning amid a run."""
    store = make(seeds(2), train={"steps": 60}, task={"options": {"slow_until": str(tmp_path / "go")}})
    process = command("work", store.root)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    if "attnjax/cli/" in errors or "attnjax:" in errors:  # otherwise Python was still starting
        assert (process.returncode, "Traceback" in errors) == (130, False), errors
    process = command("work", store.root)
    until(lambda: any((folder_of(store.directory(one.run)) / "checkpoints/2").exists() for one in store.runs))
    process.send_signal(signal.SIGUSR1)
    told, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped: SIGUSR1; the same command continues" in told
    assert {store.status(entry.run).state for entry in store.runs} <= {"preempted", "pending"}
    assert not any(holder(store.directory(one.run)) for one in store.runs)
    (tmp_path / "go").touch()
    assert str(run_here(store, fake_training.train)) == "2 runs: 2 done"
    check_complete(store)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--workers", "1")], ids=["here", "workers"])
def test_a_second_signal_ends_a_hang_also_in_c_with_its_workers_and_loses_nothing(tmp_path, options):
    (tmp_path / "small.json").write_text(SMALL)
    root = tmp_path / "out"
    process = command("run", tmp_path / "small.json", "--out", root, *options, trainer="native")
    until(lambda: any(root.glob("*/attempt-*/begun")))
    owner = holder(runs_in(root)[0].directory)
    process.send_signal(signal.SIGTERM)
    time.sleep(2 * TOGETHER)
    assert process.poll() is None, "the first asks, and nobody listens"
    process.send_signal(signal.SIGTERM)
    told = process.communicate(timeout=40)[1]
    assert process.returncode == 130
    assert "the second SIGTERM ends this process" in told
    until(lambda: not is_running(owner.pid))
    assert str(run_here(load(root), fake_training.train)) == "1 runs: 1 done"


@pytest.mark.slow
def test_a_full_and_a_read_only_file_system_lose_nothing(tmp_path):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs a mount namespace")
    (tmp_path / "small.json").write_text(SMALL)
    words = ["run", tmp_path / "small.json", "--seeds", "2", "--out", tmp_path / "out"]
    assert "2 runs planned" in command(*words, "--plan").communicate(timeout=60)[0]
    again = " ".join(map(str, ["-m", "attnjax", *words, "--trainer", TRAINER]))
    script = f"""
        mkdir {tmp_path}/mounted; mount -t tmpfs -o size=2m none {tmp_path}/mounted; cp -r {tmp_path}/out {tmp_path}/mounted
        dd if=/dev/zero of={tmp_path}/mounted/filler bs=4096 2>/dev/null || true
        WORK="{sys.executable} -m attnjax work {tmp_path}/mounted/out --trainer {TRAINER}"
        $WORK || echo "code $?"; rm {tmp_path}/mounted/filler; $WORK && echo "code $?"
        mount --bind {tmp_path}/out {tmp_path}/out; mount -o remount,bind,ro {tmp_path}/out
        {sys.executable} {again} || echo "code $?" """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    told = (done.stdout + done.stderr).splitlines()
    assert [line for line in told if line.startswith("code")] == ["code 2", "code 0", "code 2"], told
    assert sum("No space left on device" in line or "Read-only file system" in line for line in told) == 2
