"""Several processes on one sweep: each run once, whoever is killed."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import threading

import fake_training
import pytest
from checks import check_complete, until

from attnjax.sweep import ExecutionConfig, product, retry, run_here, run_workers, scan, seeds, vary
from attnjax.sweep.lease import holder, is_running

TRAINER = "fake_training:train"
ALONE = ExecutionConfig(population=1)


def test_worker_processes_share_the_runs(make):
    store, events = make(seeds(4)), []
    summary = run_workers(store, TRAINER, 2, ALONE, threads=1, progress=events.append)
    assert len(summary.of("done")) == 4
    check_complete(store)
    manifests = [run.manifest() for run in scan(store.root).runs]
    assert {one["threads"] for one in manifests} == {1}
    assert sorted(event.run for event in events if event.state == "done") == sorted(summary.states)
    assert str(run_workers(store, "fake_training:never", 2)) == "4 runs: 4 done; 4 of them before"


@pytest.mark.parametrize(("cells", "workers", "kills"), [(12, 3, 4), pytest.param(100, 10, 30, marks=pytest.mark.slow)])
def test_workers_are_killed_at_random_and_each_run_ends_once(make, cells, workers, kills):
    """A third as many SIGKILLs as cells, at random moments."""
    store = make(vary("train.batch", range(1, cells + 1)), task={"options": {"work": 10_000}})
    moments, seen, victims = sorted(random.Random(0).sample(range(5, 9 * cells), kills)), [], []

    def progress(event):
        seen.append(event)
        if event.state == "running" and moments and len(seen) >= moments[0]:
            owner = holder(store.directory(event.run))
            if not owner.released and is_running(owner.pid, owner.started):
                os.kill(owner.pid, signal.SIGKILL)
                victims.append(owner.pid)
                moments.pop(0)

    summary = run_workers(store, TRAINER, workers, threads=1, progress=progress)
    assert len(victims) == kills
    assert set(summary.states.values()) == {"done"}
    check_complete(store)
    assert not scan(store.root).problems


def test_populations_are_split_over_workers_and_one_that_is_killed_is_replaced_with_the_same_members(make, tmp_path):
    """Three pairs for three workers. One is killed in the middle of its first run; the others wait for that."""
    killed = tmp_path / "killed"
    store = make(seeds(6), task={"options": {"slow_until": str(killed)}})
    names, victims = [entry.run for entry in store.runs], []

    def progress(event):
        if event.step == 2 and not victims:
            victims.append(holder(store.directory(event.run)).pid)
            os.kill(victims[0], signal.SIGKILL)
            killed.touch()

    summary = run_workers(store, TRAINER, 3, ExecutionConfig(population=2), threads=1, progress=progress)
    assert (len(victims), len(summary.of("done"))) == (1, 6)
    check_complete(store)
    manifests = [run.manifest() for run in scan(store.root).runs]
    assert [one["population"] for one in manifests] == [names[:2]] * 2 + [names[2:4]] * 2 + [names[4:]] * 2
    assert all(one["changed_on_resume"] == [] for one in manifests)
    assert sorted(len([*store.directory(name).glob("lease-*")]) for name in names) == [1, 1, 1, 1, 2, 2]
    processes = {one["process"] for one in manifests}
    assert len(processes) >= 2
    assert victims[0] not in processes


def test_a_run_that_kills_its_workers_is_given_up_and_the_rest_goes_on(make):
    store = make([{"seed": 0}, {"seed": 1, "task.options": {"suicide": True}}, {"seed": 2}])
    summary = run_workers(store, "fake_training:suicidal", 2, ExecutionConfig(population=1, attempts=2), threads=1)
    assert [summary.states[entry.run] for entry in store.runs] == ["done", "failed", "done"]
    assert (
        "worker died 2 times in a row without a new checkpoint, the last time at step 0"
        in store.status(store.runs[1].run).reason
    )
    check_complete(store, except_for=[store.runs[1].run])


def test_a_run_that_kills_its_workers_at_other_steps_each_time_is_given_up_and_the_rest_goes_on(make):
    """A status is written every few seconds, so that its step is another one at each death."""
    store = make([{"seed": 0, "task.options": {"suicide": True}}, {"seed": 1}, {"seed": 2}])
    summary = run_workers(store, "fake_training:dies", 1, ExecutionConfig(population=1, attempts=2), threads=1)
    assert [summary.states[entry.run] for entry in store.runs] == ["failed", "done", "done"]
    told = "its worker died 2 times in a row without a new checkpoint, the last time at step 2: killed"
    assert store.status(store.runs[0].run).reason.startswith(told)
    check_complete(store, except_for=[store.runs[0].run])


def test_workers_may_be_killed_as_often_as_they_like_while_their_run_gets_on(make):
    """Nine deaths, each after a further checkpoint."""
    store = make([{"seed": 0, "task.options": {"saving": True}}, {"seed": 1}])
    summary = run_workers(store, "fake_training:dies", 1, ExecutionConfig(population=1, attempts=2), threads=1)
    assert str(summary) == "2 runs: 2 done"
    assert len([*store.directory(store.runs[0].run).glob("lease-*")]) == 10
    check_complete(store)


def test_a_failure_in_a_worker_is_recorded_and_fail_fast_stops_the_others(make):
    store = make(product(vary("task.options", [{"fail_at": 1, "work": 1}]), seeds(6)))
    summary = run_workers(store, TRAINER, 2, ALONE, threads=1)
    assert len(summary.of("failed")) == 6
    assert "RuntimeError" in (store.directory(store.runs[5].run) / "traceback.txt").read_text()
    retry(store)
    summary = run_workers(store, TRAINER, 1, ExecutionConfig(population=1, fail_fast=True), threads=1)
    assert len(summary.of("failed")) == 1


@pytest.mark.parametrize(
    ("trainer", "message"),
    [("not_there:train", "No module named 'not_there'"), ("fake_training:no", "has no attribute")],
)
def test_workers_that_cannot_start_are_told_with_what_they_said(make, trainer, message):
    with pytest.raises(ValueError, match=rf"before they finish a run(.|\n)*{message}"):
        run_workers(make(seeds(2)), trainer, 1, threads=1)


def test_two_drivers_on_one_folder_share_the_work(make):
    store = make(vary("train.batch", range(1, 7)), task={"options": {"work": 10_000}})
    summaries = []

    def drive():
        summaries.append(run_workers(store, TRAINER, 1, threads=1))

    threads = [threading.Thread(target=drive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(summaries) == 2
    check_complete(store)
    processes = {run.manifest()["process"] for run in scan(store.root).runs}
    assert len(processes) == 2
    assert {run.manifest()["attempt"] for run in scan(store.root).runs} == {1}


DRIVER = """
import pathlib, sys
from attnjax.sweep import load, run_workers
run_workers(load(pathlib.Path(sys.argv[1])), "fake_training:train", 2, threads=1)
"""


def test_a_killed_driver_takes_its_workers_along_and_the_next_finishes(make):
    store = make(vary("train.batch", range(1, 9)), task={"options": {"work": 10_000}})
    paths = [str(pathlib.Path(fake_training.__file__).parent), str(pathlib.Path(__file__).parents[2])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(store.root)], env=environment)
    try:
        until(lambda: any(store.status(entry.run).state == "done" for entry in store.runs))
    finally:
        driver.kill()
        driver.wait()
    owners = [holder(store.directory(entry.run)) for entry in store.runs]
    until(lambda: not any(owner and is_running(owner.pid, owner.started) for owner in owners))
    kept = {run.run: run.manifest()["end_time"] for run in scan(store.root).runs if run.status.state == "done"}
    summary = run_here(store, fake_training.train)
    assert set(summary.states.values()) == {"done"}
    assert set(summary.skipped) == set(kept)
    check_complete(store)
    for run in scan(store.root).runs:
        assert kept.get(run.run, run.manifest()["end_time"]) == run.manifest()["end_time"]
