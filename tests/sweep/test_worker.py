"""Executing sweeps in this process: each run once, whatever fails or stops on the way; the exit status."""

import json
import os
import shutil
import signal
import threading
import time

import fake_training
import pytest
from checks import check_complete, until

from attnjax.records import status
from attnjax.sweep import ExecutionConfig, Stop, Summary, product, retry, run_here, seeds, vary
from attnjax.sweep.attempt import begin, next_token, update_manifest
from attnjax.sweep.claim import FILE, Owner, claim, holder, machine_id
from attnjax.sweep.outcome import TOGETHER, exit_status
from tests.runs import runs_in

ALONE = ExecutionConfig(population=1)
NOBODY = 2**30
"""A number that no process has."""


def test_a_sweep_runs_in_this_process_equal_shapes_together_and_the_second_time_does_nothing(make):
    store, calls = make(product(vary("model.layers", [1, 2]), seeds(3))), []

    def train(configs, directories, context):
        calls.append([(config.model.layers, config.seed) for config in configs])
        fake_training.train(configs, directories, context)

    pairs = ExecutionConfig(population=2)
    assert str(run_here(store, train, pairs)) == "6 runs: 6 done"
    check_complete(store)
    assert sorted(calls) == [[(1, 0), (1, 1)], [(1, 2)], [(2, 0), (2, 1)], [(2, 2)]]
    assert sorted(len(run.manifest()["population"]) for run in runs_in(store.root)) == [1, 1, 2, 2, 2, 2]
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    assert str(run_here(store, fake_training.never)) == "6 runs: 6 done"
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before
    assert all(holder(store.directory(entry.run)) is None for entry in store.runs)


def test_a_run_that_raises_leaves_its_traceback_the_rest_goes_on_and_a_retry_goes_on_from_its_checkpoint(make):
    store = make([{"seed": 0}, {"seed": 1, "task.options": {"fail_at": 4}}, {"seed": 2}])
    (bad,) = run_here(store, fake_training.train, ALONE).of("failed")
    assert store.status(bad) == ("failed", 4, "RuntimeError: broken at step 4")
    assert "RuntimeError: broken at step 4" in (store.folder(bad) / "traceback.txt").read_text()
    check_complete(store, except_for=[bad])
    assert run_here(store, fake_training.never).of("failed") == [bad]
    assert retry(store) == [bad]
    assert store.status(bad) == ("pending", 4, "tried again")
    assert run_here(store, fake_training.train).of("failed") == [bad]
    assert runs_in(store.root)[1].manifest()["resumed_from"] == 4


def test_a_population_that_raises_is_tried_one_by_one_so_that_only_the_culprit_fails(make):
    def train(configs, directories, context):
        if any(config.seed == 1 for config in configs):
            raise MemoryError("too many at once")
        fake_training.train(configs, directories, context)

    store = make(seeds(3))
    summary = run_here(store, train)
    assert [summary.states[entry.run] for entry in store.runs] == ["done", "failed", "done"]
    check_complete(store, except_for=[store.runs[1].run])
    assert runs_in(store.root)[0].manifest()["population"] == [store.runs[0].run]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(123), "exit: SystemExit: 123"),
        (MemoryError(), "oom: MemoryError"),
        (RuntimeError("RESOURCE_EXHAUSTED: 8 GB"), "oom: RuntimeError: RESOURCE_EXHAUSTED: 8 GB"),
        (OSError("said below Python: No space left on device"), "disk full: OSError"),
    ],
)
def test_the_reason_says_of_which_kind_a_failure_is(make, error, reason):
    def train(configs, directories, context):
        raise error

    store = make(seeds(1))
    (bad,) = run_here(store, train).of("failed")
    assert store.status(bad).reason.startswith(reason)


def test_a_signal_stops_at_the_next_step_and_the_same_call_goes_on(make):
    store, seen, stop = make(seeds(3)), [], Stop()
    before = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)

    def told(run, step):
        seen.append(step)
        if len(seen) == 16:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(20)

    summary = run_here(store, fake_training.watched(fake_training.train, told), ALONE, stop=stop)
    assert (signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)) == before
    assert [summary.states[entry.run] for entry in store.runs] == ["done", "preempted", "pending"]
    stopped = store.status(store.runs[1].run)
    assert (stopped.reason, 0 < stopped.step < 10) == ("SIGTERM", True)
    assert len(run_here(store, fake_training.train).of("done")) == 3
    check_complete(store)
    assert runs_in(store.root)[1].manifest()["resumed_from"] == stopped.step


@pytest.mark.parametrize(
    ("states", "others", "reason", "expected"),
    [
        ("done done", {}, "", 0),
        ("done failed", {}, "", 1),
        ("done running", {"b": Owner()}, "", 1),
        ("done pending", {}, "run a failed", 1),
        ("done preempted", {}, "SIGUSR1 of process 1", 130),
    ],
)
def test_the_exit_status_is_0_1_or_130(states, others, reason, expected):
    stop = Stop()
    stop.set(reason)
    assert exit_status(Summary(dict(zip("ab", states.split(), strict=True)), {}, others), stop) == expected


def test_two_sigterm_at_once_are_one(make):
    """As `timeout` sends them: one to its child, one to the group that the child is in."""

    def train(configs, directories, context):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        until(context.stopping)
        time.sleep(TOGETHER)
        fake_training.train(configs, directories, context)

    stop = Stop()
    assert str(run_here(make(seeds(1)), train, stop=stop)) == "1 runs: 1 preempted"
    assert stop.reason == "SIGTERM"


def test_manifests_have_what_a_result_depends_on_and_no_secrets(make, monkeypatch):
    stop = Stop()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("NPROC", "1")
    store = make(seeds(1))
    run_here(store, fake_training.watched(fake_training.train, lambda _, step: step == 4 and stop.set("x")), stop=stop)
    monkeypatch.setenv("NPROC", "2")
    run_here(store, fake_training.train)
    manifest = runs_in(store.root)[0].manifest()
    assert "hunter2" not in json.dumps(manifest)
    assert (manifest["parameter_count"], manifest["state"], manifest["resumed_from"]) == (7, "done", 4)
    assert manifest["changed_on_resume"] == ["threads"]
    assert manifest["attempt_token"].startswith("0002-")


def test_a_folder_removed_while_it_is_trained_is_no_success_and_no_crash(make):
    store = make(seeds(2))

    def train(configs, directories, context):
        shutil.rmtree(directories[0].parent)
        context.step(directories[0], 1)

    assert set(run_here(store, train, ALONE).states.values()) == {"unwritten"}


def test_runs_that_another_process_holds_are_left_to_it_or_waited_for(make):
    store = make(seeds(2))
    theirs = claim(store.directory(store.runs[0].run), 60.0)
    summary = run_here(store, fake_training.train, ALONE)
    assert str(summary) == "2 runs: 1 pending, 1 done"
    assert summary.others == {store.runs[0].run: theirs.owner}
    released = threading.Timer(0.3, theirs.release)
    released.start()
    assert len(run_here(store, fake_training.train, ExecutionConfig(wait=True)).of("done")) == 2
    released.join()
    check_complete(store)


# Which runs train together


def begun(store, number, step, population, state="preempted"):
    """A run as it stands after it was trained with others to this checkpoint."""
    run = store.directory(store.runs[number].run)
    folder = begin(run, next_token(run))
    if step:
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
    update_manifest(folder, {"population": [store.runs[one].run for one in population], "state": state})
    status.write(folder, status.Status("pending" if state == "failed" else state, step))


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], [[0, 1, 2, 3]]),
        ([(0, 6, [0])], [[0], [1, 2, 3]]),
        ([(n, 6 - 2 * (n % 2), range(4), "running") for n in range(4)], [[0, 1, 2, 3]]),  # it died amid a save
        ([(0, 4, [0, 1], "running"), (1, 0, [0, 1], "running")], [[0, 1], [2, 3]]),  # amid the first save
        ([(n, 8 if n else 4, range(4), "preempted" if n else "failed") for n in range(4)], [[0], [1, 2, 3]]),
        ([(0, 6, [0]), (1, 0, [0, 1, 2]), (2, 0, [0, 1, 2])], [[0], [1, 2], [3]]),
    ],
)
def test_runs_train_together_where_none_is_thrown_back(make, before, expected):
    store, populations = make(seeds(4)), []
    for run in before:
        begun(store, *run)
    run_here(store, lambda configs, *_: populations.append([config.seed for config in configs]))
    assert sorted(populations) == expected


@pytest.mark.parametrize(("deaths", "expected"), [(2, [[0, 1]]), (3, [[0], [1]])])
def test_on_its_last_attempt_a_run_is_alone(make, deaths, expected):
    store, populations = make(seeds(2)), []
    for entry in store.runs:
        dead = Owner("0001-aa", "here", machine_id(), NOBODY, 0, deaths)
        (store.directory(entry.run) / FILE).write_text(json.dumps(dead._asdict()))
    run_here(store, lambda configs, *_: populations.append([config.seed for config in configs]))
    assert populations == expected
