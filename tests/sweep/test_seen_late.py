"""What another machine has just written may be seen late: a run that has ended is not trained again, no line is doubled."""

import contextlib
import json
import os
from collections import Counter

import fake_training
import pytest
from checks import check_complete
from simulated import PATIENCE, Machines

from attnjax.folder import Folder
from attnjax.records import jsonl, status
from attnjax.sweep import ExecutionConfig, execute, manifest, run_here, seeds
from attnjax.sweep.execute import retry, states
from attnjax.sweep.lease import holder
from attnjax.sweep.run_context import RunContext
from attnjax.sweep.stop import Stop

QUICK = {"options": {"work": 1}}


class Troubled:
    """A `RunContext` after whose calls the machine is warned, interrupted or lost now and then."""

    def __init__(self, context, machines, name):
        self._context, self._machines, self._name = context, machines, name

    def __getattr__(self, called):
        method = getattr(self._context, called)

        def call(*arguments, **named):
            found = method(*arguments, **named)
            trouble = self._machines.draw.random()
            if trouble < 0.02:
                self._context.stop("warned")
            elif trouble < 0.05:
                raise KeyboardInterrupt
            elif trouble < 0.055 and len(self._machines.lost) < 2:
                self._machines.lost.add(self._name)
                self._machines.turn()
            return found

        return call


@pytest.mark.parametrize("seed", range(8))
def test_machines_that_see_old_files_train_each_run_once(make, monkeypatch, seed):
    """Three machines train three runs and are warned, interrupted and lost; the lines on the disk are those of one training."""
    monkeypatch.setattr(manifest, "of_machine", dict)
    store = make(seeds(3), task=QUICK)
    machines, ends = Machines(seed, store.root, monkeypatch), Counter()
    open_ = lambda: any(
        json.loads((store.root / one.run / "status.json").read_bytes())["state"] not in status.FINAL
        for one in store.runs
    )

    def work(name):
        train = lambda configs, directories, context: fake_training.train(
            configs, directories, Troubled(context, machines, name)
        )
        execution = ExecutionConfig(population=1 + seed % 2, patience=PATIENCE, stall=1e6, attempts=50)
        while open_():
            assert machines.now < 30_000
            with contextlib.suppress(KeyboardInterrupt):
                execute.work(store, train, execution, lambda event: ends.update([event[:2]]), Stop(), "no file")

    machines.run(work, [f"machine {i}" for i in range(3)])
    monkeypatch.undo()
    assert machines.old > 50
    check_complete(store)
    assert states(store) == {entry.run: "done" for entry in store.runs}
    assert {name: count for name, count in ends.items() if name[1] in (*status.FINAL, "unwritten")} == {
        (entry.run, "done"): 1 for entry in store.runs
    }


def train_and_show_old_status(store):
    """Train a sweep of one run, then put back the status of the middle of its training. Returns the folder of the run."""
    directory, kept = store.directory(store.runs[0].run), []

    def keeping(configs, directories, context):
        kept.append((directory / "status.json").read_bytes())
        fake_training.train(configs, directories, context)

    run_here(store, keeping)
    assert status.read(directory).state in status.FINAL
    (directory / "status.json").write_bytes(kept[0])
    return directory


@pytest.mark.parametrize(("options", "ended"), [({}, "done"), ({"nan_at": 5}, "failed")])
def test_a_run_whose_lease_says_that_it_ended_is_not_trained_again_whatever_its_status_says(make, options, ended):
    store = make(seeds(1), task={"options": options})
    directory = train_and_show_old_status(store)
    before = sorted(path.name for path in directory.iterdir())
    assert (holder(directory).ended, holder(directory).released) == (ended, True)
    run_here(store, fake_training.never, ExecutionConfig(wait=True))
    assert sorted(path.name for path in directory.iterdir()) == before
    assert status.read(directory).state == "running"


def test_the_others_of_its_population_are_trained(make):
    store = make(seeds(1), task=QUICK)
    train_and_show_old_status(store)
    more = make(seeds(3), task=QUICK, extend=True)
    run_here(more, fake_training.train, ExecutionConfig(population=3))
    assert [*states(more).values()] == ["running", "done", "done"]


def test_a_failed_run_is_tried_again_and_says_then_how_it_ended(make):
    store = make(seeds(1), task=QUICK)

    def fails(configs, directories, context):
        context.fail(directories[0], 3, "nan at step 3")

    run_here(store, fails)
    run = store.directory(store.runs[0].run)
    assert holder(run).ended == "failed"
    assert retry(store) == [run.name]
    assert (holder(run).ended, holder(run).released) == ("", True)
    run_here(store, fake_training.train)
    assert holder(run).ended == "done"
    check_complete(store)


def test_a_done_run_is_not_tried_again_by_who_sees_that_it_had_failed(make):
    """It failed, was tried again and trained to the end; then its status is seen as it was at first."""
    store = make(seeds(1), task=QUICK)
    directory = store.directory(store.runs[0].run)
    run_here(store, lambda configs, directories, context: context.fail(directories[0], 3, "nan at step 3"))
    old = (directory / "status.json").read_bytes()
    retry(store)
    run_here(store, fake_training.train)
    (directory / "status.json").write_bytes(old)
    assert retry(store) == []
    assert holder(directory).ended == "done"
    assert json.loads((directory / "status.json").read_bytes())["state"] == "failed"


def test_a_run_that_is_given_up_says_in_its_lease_that_it_failed(make):
    store = make(seeds(1))
    directory = store.directory(store.runs[0].run)
    (directory / "lease-000001").write_text(
        '{"schema": 1, "machine": "elsewhere", "pid": 1, "attempt": 1}\nbeat 000000000007\n'
    )
    run_here(store, fake_training.never, ExecutionConfig(attempts=1, patience=0.05))
    assert (status.read(directory).state, holder(directory).ended) == ("failed", "failed")


def test_who_adds_to_a_log_sees_what_another_machine_has_just_written(make, monkeypatch):
    """A machine that shows what is opened to be read as it was before anything was written."""
    store = make(seeds(1))
    directory, real = store.directory(store.runs[0].run), Folder.open
    first, second = (RunContext({directory: 0}, Stop(), lambda event: None) for _ in range(2))
    record = {"step": 10, "length": 10, "metric": "exact_match", "split": "test", "value": 0.5}
    first.results(directory, record)
    for step in (1, 2, 3):
        first.metrics(directory, {"step": step})

    def old(folder, name, flags=os.O_RDONLY):
        if name in jsonl.FILES and flags & os.O_ACCMODE == os.O_RDONLY:
            return os.open(os.devnull, os.O_RDONLY)
        return real(folder, name, flags)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "open", old)
        assert jsonl.read(directory / jsonl.METRICS).tables == []
        second.results(directory, record)
        assert len((directory / jsonl.RESULTS).read_text().splitlines()) == 1
        second.truncate_after(directory, 1)
    assert [one["step"] for one in jsonl.read(directory / jsonl.METRICS).tables] == [1]
    assert jsonl.read(directory / jsonl.RESULTS).tables == []
