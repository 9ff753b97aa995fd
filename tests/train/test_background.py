"""Checkpoints are saved while training goes on: one at a time, to the same bits, and what goes wrong is told."""

import errno
import json
import threading

import pytest

from attnjax.sweep import plan, prepare, run_here, seeds
from attnjax.train import checkpoint, loop, train
from attnjax.train.background import BackgroundSave

PATIENCE = 60.0


@pytest.fixture
def saves(monkeypatch):
    """Calls a function with the step before every save; returns how to set it."""
    real = checkpoint.save

    def install(before):
        def save(directory, step, state, **options):
            before(step)
            real(directory, step, state, **options)

        monkeypatch.setattr(checkpoint, "save", save)

    return install


def no_thread_is_left():
    return not [thread for thread in threading.enumerate() if thread.name == "checkpoint"]


@pytest.mark.slow
def test_steps_go_on_while_a_slow_disk_saves_and_the_bits_are_the_same(population, recorder, folders, saves):
    """The disk finishes a save only when a later step has been done, except the last; never two saves at once."""
    expected, quick = recorder(), folders("quick")
    train(population, quick, expected)
    context, places, done, running = recorder(), folders("slow"), threading.Condition(), []
    steps = [0]

    def step(directory, step, **numbers):
        with done:
            steps.append(step)
            done.notify_all()

    def slow(step):
        running.append(step)
        with done:
            assert done.wait_for(lambda: max(steps) > step or step == 40, PATIENCE), "training waits for the disk"
        assert len(set(running)) == 1, "two saves at once"
        running.remove(step)

    context.step = step
    saves(slow)
    train(population, places, context)
    assert (context.logs, context.found, context.notes) == (expected.logs, expected.found, expected.notes)
    like = loop.Trainer(population[0], loop.make_task(population[0])).shapes()
    for one, other in zip(quick, places):
        found = [checkpoint.restore(place / "checkpoints", like, 32).state for place in (one, other)]
        assert loop.fingerprint(found[0]) == loop.fingerprint(found[1])
    assert no_thread_is_left()


@pytest.mark.quick("8")
@pytest.mark.parametrize("bad", [8, 40])
def test_a_save_that_fails_ends_the_run_by_the_next_one(population, recorder, folders, monkeypatch, bad):
    real = checkpoint.write

    def write(path, arrays):
        if arrays.step == bad:
            raise OSError(errno.EIO, "Input/output error")
        real(path, arrays)

    monkeypatch.setattr(checkpoint, "write", write)
    context, places = recorder(), folders("failing")
    with pytest.raises(OSError, match=rf"^checkpoint of step {bad} could not be saved in checkpoints: \[Errno 5\]"):
        train(population, places, context)
    assert max(record["step"] for record in context.logs["0"]) <= bad + 8
    assert checkpoint.steps(places[0] / "checkpoints") == ([] if bad == 8 else [24, 32])
    assert "parameters_sha256" not in context.notes["0"]
    assert no_thread_is_left()


@pytest.mark.slow
def test_a_full_disk_is_the_reason_of_the_run(tiny, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    store = prepare(tmp_path / "out", "tiny", plan(tiny, seeds(1)))
    (bad,) = run_here(store, train).of("failed")
    reason = (
        "disk full: OSError: checkpoint of step 8 could not be saved in checkpoints: [Errno 28] No space left on device"
    )
    assert store.status(bad).reason == reason
    assert json.loads((store.folder(bad) / "manifest.json").read_text())["state"] == "failed"


@pytest.mark.slow
def test_an_interruption_leaves_the_folder_when_the_save_has_ended(population, recorder, folders, saves):
    """The lease is given back when training has returned: nobody may write then."""
    interrupted, context, places = threading.Event(), recorder(), folders("interrupted")

    def step(directory, step, **numbers):
        if step > 8:
            interrupted.set()
            raise KeyboardInterrupt

    context.step = step
    saves(lambda step: interrupted.wait(PATIENCE))
    with pytest.raises(KeyboardInterrupt):
        train(population, places, context)
    assert no_thread_is_left()
    assert checkpoint.steps(places[0] / "checkpoints") == [8]


def test_an_error_is_raised_once_by_whatever_asks_first():
    with BackgroundSave() as saving:
        for ask in (saving.wait, lambda: saving.start(list)):
            saving.start(lambda: [][0])
            with pytest.raises(IndexError):
                ask()
            saving.check()
        saving.start(lambda: [][0])
        while not saving._error:
            pass
        with pytest.raises(IndexError):
            saving.check()
        saving.wait()
