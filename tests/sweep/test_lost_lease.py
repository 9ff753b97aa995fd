"""A process that was suspended for longer than others wait, and wakes: it writes nothing more into a run that another has."""

import contextlib
import threading

import fake_training
import pytest
from checks import check_complete

from attnjax.records import status
from attnjax.sweep import ExecutionConfig, execute, lease, seeds
from attnjax.sweep.run_context import LostLeaseError, RunContext
from attnjax.sweep.stop import Stop

WRITES = {
    "metrics": lambda context, run: context.metrics(run, {"step": 6}),
    "results": lambda context, run: context.results(run, {"step": 6, "length": 10, "metric": "loss", "value": 0.5}),
    "examples": lambda context, run: context.examples(run, 6, {}, {}),
    "manifest": lambda context, run: context.log_manifest(run, parameters=7),
    "status": lambda context, run: context.step(run, 6),
    "truncation": lambda context, run: context.truncate_after(run, 0),
}


def content(run):
    """All of a run but its leases, which a process marks until it has ended."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.name.startswith("lease-")}


@pytest.mark.parametrize("name", WRITES)
def test_a_method_that_writes_asks_first_whether_the_run_is_still_ours(make, name):
    store, stop, mine = make(seeds(1)), Stop(), [True]
    run = store.directory(store.runs[0].run)
    context = RunContext({run: 0}, stop, lambda event: None, held=lambda directory: mine[0])
    context.metrics(run, {"step": 1})
    mine[0], before = False, content(run)
    with pytest.raises(LostLeaseError, match=f"the lease of {run.name} was taken over"):
        WRITES[name](context, run)
    assert content(run) == before
    assert stop.reason == f"the lease of {run.name} was taken over"
    mine[0] = True
    WRITES[name](context, run)
    assert content(run) != before


def test_steps_ask_no_more_often_than_they_write(make):
    store, asked = make(seeds(1)), []
    run = store.directory(store.runs[0].run)
    context = RunContext({run: 0}, Stop(), lambda event: None, held=lambda directory: asked.append(1) or True)
    for step in range(1000):
        context.step(run, step)
    assert 1 <= len(asked) < 50


@pytest.fixture
def machines(monkeypatch):
    """Threads are machines."""
    monkeypatch.setattr(lease, "machine_id", lambda: threading.current_thread().name)


class Paused:
    """A `RunContext` that waits after a step, once."""

    def __init__(self, context, step, there, go_on):
        self._context, self._step, self._there, self._go_on = context, step, there, go_on

    def __getattr__(self, name):
        return getattr(self._context, name)

    def step(self, directory, step, **numbers):
        self._context.step(directory, step, **numbers)
        if step == self._step:
            self._there.set()
            assert self._go_on.wait(20)


class Machine:
    """A thread that trains a sweep and is paused after a step, until `go_on` is set; `there` is set when it has come there."""

    def __init__(self, store, name, patience, pause):
        self.there, self.go_on, self.stop, self.events = threading.Event(), threading.Event(), Stop(), []
        train = lambda configs, directories, context: fake_training.train(
            configs, directories, Paused(context, pause, self.there, self.go_on)
        )
        execution = ExecutionConfig(population=len(store.runs), patience=patience)
        work = lambda: execute.work(store, train, execution, self.events.append, self.stop)
        self.thread = threading.Thread(target=work, name=name)
        self.thread.start()
        assert self.there.wait(20)

    def end(self):
        self.go_on.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("heir_has_ended", [False, True])
@pytest.mark.parametrize("runs", [1, 2])
def test_who_wakes_after_its_run_was_taken_over_ends_in_silence(make, machines, runs, heir_has_ended):
    """It is paused at step 5 and wakes when its heir, which went on from step 4, is at step 7 or has ended."""
    store = make(seeds(runs), task={"options": {"work": 1}})
    first = Machine(store, "first", 1e9, pause=5)
    heir = Machine(store, "heir", 0.1, pause=7)
    if heir_has_ended:
        heir.end()
    told = len(first.events)
    before = [content(store.directory(entry.run)) for entry in store.runs]
    first.end()
    assert [content(store.directory(entry.run)) for entry in store.runs] == before
    assert {event.state for event in first.events[told:]} <= {"running"}
    assert "was taken over" in first.stop.reason
    heir.end()
    check_complete(store)


def test_a_run_of_its_population_that_it_still_holds_goes_on_later(make, machines):
    store = make(seeds(2), task={"options": {"work": 1}})
    first = Machine(store, "first", 1e9, pause=5)
    lost, kept = (store.directory(entry.run) for entry in store.runs)
    with contextlib.closing(Taken(lost)):
        first.end()
        assert (status.read(lost).state, status.read(kept).state) == ("running", "preempted")
    execute.work(store, fake_training.train, ExecutionConfig(patience=0.1), lambda event: None, Stop())
    check_complete(store)


class Taken:
    """The lease of a run in the hands of another machine."""

    def __init__(self, run):
        self.close = lease.claim(run, lease.Watch(patience=-1)).release
