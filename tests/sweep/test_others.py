"""Two commands on one folder: the second says what the first is doing, and waits for it where it is asked to."""

import contextlib
import os
import threading

import fake_training
import hanging
import pytest
from checks import check_complete, until

from attnjax.cli import execution, main
from attnjax.sweep import ExecutionConfig, load, run_here, run_workers, seeds
from attnjax.sweep.execute import states
from attnjax.sweep.lease import Watch, claim, holder, is_running
from attnjax.sweep.stop import Stop
from attnjax.sweep.summary import Ledger, summarise

pytestmark = pytest.mark.slow


@pytest.fixture
def first(tmp_path):
    """A command that holds the first of two runs, at step 1; yields the process, its folder, and what it holds."""
    process = hanging.start(tmp_path, "held", "--seeds", "2", "--population", "1")
    try:
        until(lambda: hanging.begun(tmp_path))
        store = load(tmp_path / "out")
        yield process, store, store.runs[0].run
    finally:
        process.kill()
        with contextlib.closing(process.stdout), contextlib.closing(process.stderr):
            process.wait()


def command(store, *options):
    """The same sweep by a training function that does not wait."""
    arguments = ["sweep", str(store.root.parent / "small.json"), "--out", str(store.root), "--seeds", "2"]
    return main([*arguments, "--trainer", "fake_training:train", *options])


def test_the_second_says_who_works_on_what_and_has_an_exit_status_of_its_own(first, capsys, monkeypatch):
    process, store, held = first
    monkeypatch.setattr("attnjax.report.build", lambda root: pytest.fail("no report of what is not complete"))
    assert command(store, "--population", "1", "--report") == 3
    told = capsys.readouterr().out
    assert told.count(f"held     {held}: process {process.pid} on {os.uname().nodename} works on it, at step 1") == 2
    assert "2 runs: 1 running, 1 done" in told
    assert "with --wait" in told
    assert told.splitlines()[-1] == (
        f"report: not written, because other processes still work on runs; later: attnjax report {store.root}"
    )


def test_the_second_with_workers_says_so_too(first, capsys):
    _, store, held = first
    assert command(store, "--population", "1", "--workers", "2", "--threads", "1") == 3
    assert f"held     {held}: process" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [None, 1])
def test_with_wait_it_stays_until_the_first_has_ended(first, workers):
    _, store, held = first
    other = store.runs[1].run

    def release():
        until(lambda: store.status(other).state == "done")
        (store.directory(held) / "go").touch()

    thread = threading.Thread(target=release)
    thread.start()
    summary = execute(store, workers)
    thread.join()
    assert str(summary) == "2 runs: 2 done"
    assert not summary.others
    check_complete(store)


@pytest.mark.parametrize("workers", [None, 1])
def test_with_wait_it_takes_over_what_a_process_that_dies_held(first, workers):
    process, store, held = first
    other = store.runs[1].run

    def kill():
        until(lambda: store.status(other).state == "done")
        process.kill()
        process.wait()

    thread = threading.Thread(target=kill)
    thread.start()
    summary = execute(store, workers)
    thread.join()
    assert str(summary) == "2 runs: 2 done"
    assert not is_running(process.pid, holder(store.directory(held)).started)
    check_complete(store)


def execute(store, workers):
    execution = ExecutionConfig(population=1, wait=True)
    if workers is None:
        return run_here(store, fake_training.train, execution)
    return run_workers(store, "fake_training:train", workers, execution, threads=1)


def test_a_run_that_another_process_has(first, capsys):
    _, store, _ = first
    config = str(store.root.parent / "small.json")
    assert main(["run", config, "--out", str(store.root), "--trainer", "fake_training:train"]) == 3
    assert "1 runs: 1 running" in capsys.readouterr().out


def test_a_run_that_has_not_begun_is_trained_beside_one_of_its_group_that_another_process_has_begun(first, capsys):
    """It could not train with that one, which is at step 1."""
    _, store, held = first
    assert command(store) == 3
    told = capsys.readouterr().out
    assert f"held     {held}" in told
    assert "2 runs: 1 running, 1 done" in told


def test_runs_of_a_population_whose_first_another_process_has_claimed_are_left_to_it(make):
    store = make(seeds(2))
    claimed = claim(store.directory(store.runs[0].run), Watch())
    summary = run_here(store, fake_training.never)
    claimed.release()
    assert str(summary) == "2 runs: 2 pending"
    assert list(summary.others) == [store.runs[0].run]
    assert holder(store.directory(store.runs[1].run)) is None


def test_a_run_that_is_left_and_that_nobody_holds_is_no_success(make):
    """As when a process ends between the last look at its lease and the end of this command."""
    store = make()
    summary = summarise(store, {}, states(store), Ledger(None))
    assert summary.left() == [store.runs[0].run]
    assert not summary.others
    assert execution._status(summary, Stop(), strict=False, again=False) == 1
