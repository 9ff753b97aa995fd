"""Executing sweeps: each run once, whatever fails, stops or dies on the way."""

import errno
import json
import os
import signal
import time

import fake_training
import pytest
from checks import check_complete

from attnjax.records.runs import read_manifest
from attnjax.sweep import (
    ExecutionConfig,
    plan,
    population as population_module,
    prepare,
    product,
    retry,
    run_here,
    scan,
    seeds,
    vary,
)
from attnjax.sweep.lease import holder
from attnjax.sweep.run_context import RunContext, update_manifest
from attnjax.sweep.stop import Stop

TRAINER = "fake_training:train"
ALONE = ExecutionConfig(population=1)


def test_a_sweep_runs_in_this_process_and_the_second_time_does_nothing(make):
    store, events = make(product(vary("model.encoding", ["rope", "alibi"]), seeds(3))), []
    summary = run_here(store, fake_training.train, progress=events.append)
    assert str(summary) == "6 runs: 6 done"
    check_complete(store)
    assert sorted({event.run for event in events if event.state == "done"}) == sorted(summary.states)
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    again = run_here(store, fake_training.never)
    assert str(again) == "6 runs: 6 done; 6 of them before"
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before


def test_equal_shapes_train_together(make):
    calls = []

    def train(configs, directories, context):
        calls.append([(config.model.encoding.name, config.seed) for config in configs])
        fake_training.train(configs, directories, context)

    store = make(product(vary("model.encoding", ["rope", "alibi"]), seeds(3)))
    run_here(store, train, ExecutionConfig(population=2))
    assert calls == [[("rope", 0), ("rope", 1)], [("rope", 2)], [("alibi", 0), ("alibi", 1)], [("alibi", 2)]]


def test_a_run_that_raises_leaves_its_traceback_and_the_rest_goes_on(make):
    store = make(one_failing_of_three())
    summary = run_here(store, fake_training.train, ALONE)
    (bad,) = summary.of("failed")
    assert store.status(bad) == ("failed", 4, "RuntimeError: broken at step 4")
    assert "RuntimeError: broken at step 4" in (store.directory(bad) / "traceback.txt").read_text()
    check_complete(store, except_for=[bad])
    assert run_here(store, fake_training.never).of("failed") == [bad]
    assert retry(store) == [bad]
    assert store.status(bad).state == "pending"
    assert run_here(store, fake_training.train).of("failed") == [bad]


def one_failing_of_three():
    return [{"seed": 0}, {"seed": 1, "task.options": {"fail_at": 4}}, {"seed": 2}]


@pytest.mark.quick("0-error0-1", "1-error0-None", "23-error1-None")
@pytest.mark.parametrize("population", [1, None])
@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), UnicodeEncodeError("ascii", "x", 0, 1, "no")])
@pytest.mark.parametrize("moment", [0, 1, 7, 12, 23])
def test_a_display_that_fails_at_any_event_changes_nothing_about_training(make, population, error, moment):
    seen = []

    def progress(event):
        seen.append(event)
        if len(seen) > moment:
            raise error

    store = make(seeds(2))
    summary = run_here(store, fake_training.train, ExecutionConfig(population=population), progress=progress)
    assert (str(summary), len(seen)) == ("2 runs: 2 done", moment + 1)
    check_complete(store)


def test_a_mistake_in_a_display_is_raised_when_all_runs_have_ended(make):
    store = make(seeds(2))
    with pytest.raises(KeyError, match="mistake"):
        run_here(store, fake_training.train, progress=lambda event: {}["mistake"])
    check_complete(store)


def test_a_run_that_failed_is_given_back_while_the_others_of_its_population_are_trained(make):
    store, seen = make(seeds(3)), []
    first = store.directory(store.runs[0].run)

    def train(configs, directories, context):
        if len(configs) > 1:
            context.fail(directories[0], 3, "nan at step 3")
            raise MemoryError("too many at once")
        time.sleep(0.1)
        seen.append((holder(first).ended, context.stopping()))
        fake_training.train(configs, directories, context)

    summary = run_here(store, train, ExecutionConfig(patience=0.06))
    assert seen == [("failed", "")] * 2
    assert [summary.states[entry.run] for entry in store.runs] == ["failed", "done", "done"]
    check_complete(store, except_for=[first.name])


def test_fail_fast_leaves_the_rest_for_later(make):
    store = make([{"seed": 1, "task.options": {"fail_at": 4}}, {"seed": 0}, {"seed": 2}])
    stop = Stop()
    summary = run_here(store, fake_training.train, ExecutionConfig(fail_fast=True, population=1), stop=stop)
    assert [summary.states[entry.run] for entry in store.runs] == ["failed", "pending", "pending"]
    assert stop.reason == f"run {store.runs[0].run} failed"
    assert len(run_here(store, fake_training.train).of("done")) == 2


def test_a_population_that_raises_is_tried_one_by_one(make):
    store = make(seeds(3), task={"options": {"fail_together": True}})
    assert len(run_here(store, fake_training.train).of("done")) == 3
    check_complete(store)
    manifest = scan(store.root).runs[0].manifest()
    assert manifest["population"] == [store.runs[0].run]


def test_one_run_of_a_population_may_fail(make):
    def train(configs, directories, context):
        for config, directory in zip(configs, directories, strict=True):
            if config.seed == 1:
                context.fail(directory, 3, "nan at step 3")
            else:
                fake_training.train([config], [directory], context)

    store = make(seeds(3))
    summary = run_here(store, train)
    assert [summary.states[entry.run] for entry in store.runs] == ["done", "failed", "done"]
    assert store.status(store.runs[1].run) == ("failed", 3, "nan at step 3")
    check_complete(store, except_for=[store.runs[1].run])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(123), "exit: SystemExit: 123"),
        (MemoryError(), "oom: MemoryError"),
        (RuntimeError("RESOURCE_EXHAUSTED: 8 GB"), "oom: RuntimeError: RESOURCE_EXHAUSTED: 8 GB"),
        (OSError(errno.ENOSPC, "No space left"), "disk full: OSError"),
        (RecursionError("deep\nand deeper"), "RecursionError: deep and deeper"),
    ],
)
def test_the_reason_says_of_which_kind_a_failure_is(make, error, reason):
    def train(configs, directories, context):
        raise error

    store = make(seeds(1))
    (bad,) = run_here(store, train).of("failed")
    assert store.status(bad).reason.startswith(reason)


def test_a_full_disk_while_logging_fails_that_run_and_keeps_its_records(make, monkeypatch):
    store, real = make(seeds(2)), os.write

    def write(descriptor, data):
        if b'"step":5,"loss"' in bytes(data):
            return real(descriptor, data[: len(data) // 2])
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        summary = run_here(store, fake_training.train, ALONE)
    assert len(summary.of("failed")) == 2
    for found in scan(store.root).runs:
        assert [one["step"] for one in found.metrics().tables] == [1, 2, 3, 4]
        assert found.metrics().damaged == []
        assert found.status.reason.startswith("disk full")
    retry(store)
    assert len(run_here(store, fake_training.train).of("done")) == 2
    check_complete(store)


def test_a_disk_that_is_full_when_a_run_is_claimed_leaves_it_as_it_was_and_says_so(make, monkeypatch):
    store, real = make(seeds(1)), os.write

    def write(descriptor, data):
        return real(descriptor, data[:3]) if b'"token"' in bytes(data) else real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        summary = run_here(store, fake_training.never)
    assert summary.unwritten == {store.runs[0].run: "its lease could not be written: no space left for a lease"}
    assert str(summary) == "1 runs: 1 unwritten"
    assert store.status(store.runs[0].run).state == "pending"
    assert len(run_here(store, fake_training.train).of("done")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_at_the_next_step_and_the_same_call_goes_on(make, number):
    store, seen = make(seeds(3)), []

    def progress(event):
        seen.append(event)
        if len(seen) == 20:
            os.kill(os.getpid(), number)

    stop = Stop()
    before = signal.getsignal(number)
    summary = run_here(store, fake_training.train, ALONE, progress=progress, stop=stop)
    assert signal.getsignal(number) is before
    assert stop.reason == number.name
    assert [summary.states[entry.run] for entry in store.runs] == ["done", "preempted", "pending"]
    stopped = store.status(store.runs[1].run)
    assert (stopped.reason, 0 < stopped.step < 10) == (number.name, True)
    assert len(run_here(store, fake_training.train).of("done")) == 3
    check_complete(store)
    manifest = scan(store.root).runs[1].manifest()
    assert manifest["resumed_from"] == stopped.step


def test_the_second_ctrl_c_ends_at_once_and_loses_nothing(make):
    store = make(seeds(2))

    def train(configs, directories, context):
        context.truncate_after(directories[0], 0)
        os.kill(os.getpid(), signal.SIGINT)
        while not context.stopping():
            pass
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass

    with pytest.raises(KeyboardInterrupt):
        run_here(store, train, ALONE)
    assert store.status(store.runs[0].run).state == "preempted"
    assert len(run_here(store, fake_training.train).of("done")) == 2
    check_complete(store)


def test_results_are_recorded_once_however_often_they_are_found(make):
    def train(configs, directories, context):
        record = {"step": 10, "length": 10, "metric": "exact_match", "split": "test"}
        context.results(directories[0], {**record, "value": 0.5}, {**record, "value": 0.5})
        context.results(directories[0], {**record, "value": 0.5}, {**record, "length": 20, "value": 0.25})

    store = make(seeds(1))
    run_here(store, train)
    assert [one["length"] for one in scan(store.root).runs[0].results().tables] == [10, 20]


def test_manifests_have_what_a_result_depends_on_and_no_secrets(make, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("XLA_FLAGS", "--some_flag")
    store = make(seeds(1))
    run_here(store, fake_training.train)
    manifest = scan(store.root).runs[0].manifest()
    assert sum(value is not None for value in manifest.values()) >= 30
    assert "hunter2" not in json.dumps(manifest)
    assert manifest["environment"]["XLA_FLAGS"] == "--some_flag"
    assert (manifest["parameter_count"], manifest["init_seed"], manifest["state"]) == (7, 0, "done")
    assert (manifest["backend"], manifest["determinism"]) == ("cpu", "bitwise")


def test_a_change_of_threads_on_resume_is_recorded(make, monkeypatch):
    store, seen, stop = make(seeds(1)), [], Stop()

    def progress(event):
        seen.append(event)
        if len(seen) == 5:
            stop.set("enough")

    monkeypatch.setenv("NPROC", "1")
    run_here(store, fake_training.train, progress=progress, stop=stop)
    monkeypatch.setenv("NPROC", "2")
    run_here(store, fake_training.train)
    manifest = scan(store.root).runs[0].manifest()
    assert (manifest["changed_on_resume"], manifest["determinism"]) == (["threads"], "statistical")


def part(store, population, monkeypatch, *, killed):
    """Trains five steps and is stopped, or is killed before it can say so; the last part trains to the end."""
    stop, seen = Stop(), []

    def progress(event):
        seen.append(event)
        if killed is not None and len(seen) == 5:
            stop.set("enough")

    with monkeypatch.context() as patch:
        if killed:
            patch.setattr(population_module, "_end", lambda *_: "")
        run_here(store, fake_training.train, ExecutionConfig(population=population), progress=progress, stop=stop)


@pytest.mark.parametrize("killed", [False, True])
def test_going_on_with_another_text_is_recorded_though_that_part_is_killed(make, monkeypatch, killed):
    store, text, truncate = make(seeds(1)), ["a"], RunContext.truncate_after

    def begun(self, directory, step):
        truncate(self, directory, step)
        self.log_manifest(directory, data_sha256={"train": text[0]})

    monkeypatch.setattr(RunContext, "truncate_after", begun)
    part(store, 1, monkeypatch, killed=False)
    assert store.status(store.runs[0].run).step > 0
    text[0] = "b"
    part(store, 1, monkeypatch, killed=killed)
    part(store, 1, monkeypatch, killed=None)
    manifest = scan(store.root).runs[0].manifest()
    assert (manifest["changed_on_resume"], manifest["determinism"]) == (["data_sha256"], "statistical")


@pytest.mark.parametrize("killed", [[False], [True], [True, True], [False, True], [True, False, True]])
def test_a_population_resumed_in_another_grouping_is_recorded_though_parts_are_killed(make, monkeypatch, killed):
    """The first part trains both runs together, the others each alone."""
    store = make(seeds(2))
    for number, end in enumerate(killed):
        part(store, 1 if number else 2, monkeypatch, killed=end)
    before = store.status(store.runs[0].run).step
    part(store, 1, monkeypatch, killed=None)
    first, second = (run.manifest() for run in scan(store.root).runs)
    assert 0 < before < first["resumed_from"] + 1
    assert (first["changed_on_resume"], first["determinism"]) == (["population"], "statistical")
    assert (second["changed_on_resume"], second["resumed_from"]) == ([], 0), "nothing of its first part is left"
    for manifest, entry in zip((first, second), store.runs):
        assert (manifest["population"], manifest["population_size"]) == ([entry.run], 1)
    check_complete(store)


def test_the_order_of_tokens_on_devices_is_that_of_the_last_part(make, monkeypatch):
    """The trainer says it where it spreads tokens over a mesh; this one does not."""
    store = make(seeds(1))
    part(store, 1, monkeypatch, killed=False)
    directory = store.directory(store.runs[0].run)
    assert "token_order" not in read_manifest(directory)
    update_manifest(directory, {"mesh": "sequence=2", "token_order": "zigzag"})
    part(store, 1, monkeypatch, killed=None)
    manifest = read_manifest(directory)
    assert (manifest["state"], manifest["mesh"], manifest["token_order"]) == ("done", "", "")


@pytest.mark.parametrize("forged", ["x", None, True, float("inf"), [3.0]])
def test_a_run_goes_on_though_its_manifest_has_no_number_of_seconds(make, monkeypatch, forged):
    """Seconds of parts whose number is not known are left out of the sum."""
    store = make(seeds(1))
    part(store, 1, monkeypatch, killed=False)
    directory = store.directory(store.runs[0].run)
    assert read_manifest(directory)["wall_seconds"] >= 0
    update_manifest(directory, {"wall_seconds": forged})
    part(store, 1, monkeypatch, killed=None)
    manifest = read_manifest(directory)
    assert (manifest["state"], manifest["resumed_from"] > 0) == ("done", True)
    assert 0 <= manifest["wall_seconds"] < 60
    check_complete(store)


def test_a_population_that_is_split_over_workers_is_recorded_by_each_run(make):
    store = make(seeds(5))
    run_here(store, fake_training.train, ExecutionConfig(population=2))
    names = [entry.run for entry in store.runs]
    groups = [names[:2]] * 2 + [names[2:4]] * 2 + [names[4:]]
    found = [run.manifest() for run in scan(store.root).runs]
    assert [manifest["population"] for manifest in found] == groups
    assert [manifest["population_size"] for manifest in found] == [2, 2, 2, 2, 1]
    assert all(manifest["changed_on_resume"] == [] for manifest in found)


def test_a_folder_removed_while_it_is_trained_is_damage_and_no_crash(make):
    store = make(seeds(2))

    def train(configs, directories, context):
        for path in sorted(directories[0].rglob("*"), reverse=True):
            path.unlink()
        directories[0].rmdir()
        context.step(directories[0], 1)

    summary = run_here(store, train, ALONE)
    assert set(summary.states.values()) == {"damaged"}


def test_a_population_of_thirty(tmp_path):
    planned = plan({"name": "many"}, seeds(30))
    store = prepare(tmp_path / "runs", "many", planned)

    def train(configs, directories, context):
        assert len(configs) == 30

    assert len(run_here(store, train).of("done")) == 30
    assert len(run_here(store, fake_training.never).skipped) == 30
