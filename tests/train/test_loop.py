"""Training ends with the same bits however often it was stopped; what goes wrong is recorded, and stays out of the rest."""

import dataclasses
import errno
import shutil
import threading

import numpy as np
import pytest

from attnjax.train import checkpoint, describe, loop, train
from attnjax.train.checkpoint import CHECKPOINTS
from attnjax.train.step import LONGEST, Trainer
from tests.train.conftest import Recorder

pytestmark = pytest.mark.usefixtures("one_compilation")
PATIENCE = 60.0


def with_train(run, **changes):
    return dataclasses.replace(run, train=dataclasses.replace(run.train, **changes))


def steps(folders):
    return [checkpoint.steps(folder / CHECKPOINTS) for folder in folders]


def made(root):
    folders = [root / str(i) for i in range(2)]
    for folder in folders:
        folder.mkdir()
    return folders


@pytest.fixture(scope="module")
def watched(population):
    """A population that is also evaluated on the way."""
    return [dataclasses.replace(run, evaluate=dataclasses.replace(run.evaluate, every=8)) for run in population]


@pytest.fixture(scope="module")
def whole(watched, tmp_path_factory):
    """The records of a population that was not interrupted, and its folders."""
    context, folders = Recorder(), made(tmp_path_factory.mktemp("whole"))
    train(watched, folders, context)
    return context, folders


@pytest.fixture
def copied(whole, folders):
    """A copy of these folders."""
    parts = folders("copied")
    for original, part in zip(whole[1], parts, strict=True):
        shutil.copytree(original, part, dirs_exist_ok=True)
    return parts


def assert_same(context, expected):
    assert context.logs == expected.logs
    assert context.found == expected.found
    assert context.notes == expected.notes


def test_records_of_a_whole_run(whole, tiny):
    context, folders = whole
    assert [record["step"] for record in context.logs["0"]] == list(range(4, 41, 4))
    validated = [one["step"] for one in context.found["0"] if one["split"] == "validation"]
    assert sorted(set(validated)) == [8, 16, 24, 32, 40]
    tested = {(one["step"], one["length"], one["split"]) for one in context.found["0"] if one["split"] != "validation"}
    assert tested == {(40, 4, "train"), (40, 6, "train"), (40, 9, "test")}
    assert {one["metric"] for one in context.found["0"]} >= {"exact_match", "token_accuracy", "loss"}
    assert context.single["0"][0] == 40
    assert context.notes["0"]["parameters"] == describe(tiny)["parameters"]
    assert context.notes["0"]["parameters_sha256"] != context.notes["1"]["parameters_sha256"]
    assert steps(folders) == [[32, 40]] * 2


def test_stopped_and_resumed_is_bitwise_the_same(whole, watched, folders):
    parts, context = folders("parts"), Recorder()
    for context.stop_after in (3, 4, 8, None):
        train(watched, parts, context)
    assert_same(context, whole[0])


@pytest.mark.parametrize("moment", ["died", "stopped"])
def test_an_interruption_of_an_evaluation_loses_no_result(whole, watched, folders, monkeypatch, moment):
    parts, context, real = folders(moment), Recorder(), loop._evaluate

    def interrupted(*arguments):
        if moment == "died":
            raise KeyboardInterrupt
        context.stop_after = 0  # as the evaluation begins, and before it has found anything
        return None

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_evaluate", interrupted)
        if moment == "died":
            with pytest.raises(KeyboardInterrupt):
                train(watched, parts, context)
        else:
            train(watched, parts, context)
    assert steps(parts) == [[8], [8]]
    context.stop_after = None
    train(watched, parts, context)
    assert loop._evaluate is real
    assert_same(context, whole[0])


def test_after_a_stop_in_the_last_evaluation_nothing_more_is_computed(whole, watched, copied, monkeypatch):
    """The counts of n-gram models of a long text take minutes."""
    context, counted = Recorder(), []
    examples = context.examples
    context.examples = lambda *told: (examples(*told), setattr(context, "stop_after", 0))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "ngram_levels", lambda *_: counted.append(1))
        train(watched, copied, context)
    assert counted == []
    assert "parameters_sha256" not in context.notes["0"]
    context.stop_after, context.examples = None, examples
    train(watched, copied, context)
    assert context.notes == whole[0].notes


@pytest.mark.parametrize("lost", ["missing", "damaged", "all of one"])
def test_the_newest_step_that_all_have_is_resumed_from(whole, watched, copied, lost):
    place = copied[1] / CHECKPOINTS
    if lost == "damaged":
        next((place / "40").rglob("d/*")).write_bytes(b"")
    else:
        shutil.rmtree(place / "40" if lost == "missing" else place)
    context = Recorder()
    if lost == "damaged":
        with pytest.warns(UserWarning, match="checkpoint of step 40 is damaged"):
            train(watched, copied, context)
    else:
        train(watched, copied, context)
    first = 4 if lost == "all of one" else 36
    assert [record["step"] for record in context.logs["0"]] == list(range(first, 41, 4))
    assert context.notes == whole[0].notes
    assert steps(copied) == [[32, 40]] * 2


def test_where_one_step_is_kept_members_always_have_one_in_common(population, folders, monkeypatch):
    """A death between the saves of two members, as an error of the second."""
    real, parts = checkpoint.save, folders("one")

    def killed(directory, step, *state, **options):
        if step == 16 and directory.parent == parts[1]:
            raise OSError("killed")
        real(directory, step, *state, **options)

    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(OSError, match="killed"):
        train([with_train(run, keep=1) for run in population], parts, Recorder())
    assert steps(parts) == [[8, 16], [8]]


def test_a_run_whose_loss_is_nan_fails_alone(tiny, folders):
    context, parts = Recorder(), folders("wild")
    train([tiny, with_train(tiny, learning_rate=1e30)], parts, context)
    step, reason = context.failed["1"]
    assert reason.startswith(f"nan at step {step}")
    assert 1 <= step <= 8
    assert "0" not in context.failed
    assert context.found["0"]
    assert not context.found["1"]
    assert steps(parts)[0] == [32, 40]
    assert max(steps(parts)[1], default=0) < step


def test_steps_go_on_while_a_slow_disk_saves_and_the_bits_are_the_same(whole, watched, folders, monkeypatch):
    """The disk finishes a save only when a later step has been done, except the last; never two saves at once."""
    context, parts, done, running = Recorder(), folders("slow"), threading.Condition(), []
    real, reached = checkpoint.save, [0]

    def step(directory, step, **numbers):
        with done:
            reached.append(step)
            done.notify_all()

    def slow(directory, step, *state, **options):
        running.append(step)
        with done:
            assert done.wait_for(lambda: max(reached) > step or step == 40, PATIENCE), "training waits for the disk"
        assert len(set(running)) == 1, "two saves at once"
        real(directory, step, *state, **options)
        running.remove(step)

    context.step = step
    monkeypatch.setattr(checkpoint, "save", slow)
    train(watched, parts, context)
    assert_same(context, whole[0])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.parametrize("bad", [8, 40])
def test_a_save_that_fails_ends_the_run_by_the_next_one(population, folders, monkeypatch, bad):
    real = checkpoint._write

    def write(path, arrays):
        if arrays.step == bad:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, arrays)

    monkeypatch.setattr(checkpoint, "_write", write)
    context, parts = Recorder(), folders("failing")
    with pytest.raises(OSError, match=f"checkpoint of step {bad} .*No space left"):
        train(population, parts, context)
    assert max(record["step"] for record in context.logs["0"]) <= bad + 8
    assert steps(parts)[0] == ([] if bad == 8 else [24, 32])
    assert "parameters_sha256" not in context.notes["0"]


# Steps per call


@pytest.fixture
def calls(monkeypatch):
    """How many steps each call of the compiled program took."""
    taken, real = [], Trainer.advance
    monkeypatch.setattr(Trainer, "advance", lambda *given: (taken.append(int(given[3])), real(*given))[1])
    return taken


def test_calls_end_where_something_is_due(tiny):
    run = dataclasses.replace(tiny, evaluate=dataclasses.replace(tiny.evaluate, every=7))
    run, ends = with_train(run, steps=26, log_every=4, checkpoint_every=10), [0]
    while ends[-1] < 26:
        ends.append(ends[-1] + loop._steps_of_call(run, ends[-1], 100))
    assert ends[1:] == [4, 7, 8, 10, 12, 14, 16, 20, 21, 24, 26]
    assert loop._steps_of_call(with_train(tiny, steps=10**6, log_every=0, checkpoint_every=0), 0, 10**6) == LONGEST


@pytest.mark.slow
def test_however_steps_are_divided_the_bits_are_the_same(population, folders, calls, monkeypatch):
    found, runs = [], [with_train(run, log_every=20, checkpoint_every=0) for run in population]
    for seconds, expected in ((0.0, [1] * 40), (1e9, [1, 19, 20])):
        calls.clear()
        monkeypatch.setattr(loop, "SECONDS", seconds)
        context = Recorder()
        train(runs, folders(f"parts of {seconds}"), context)
        assert calls == expected
        found.append((context.notes, context.found, context.logs))
    assert found[0] == found[1]


def test_a_gradient_that_overflows_is_found_at_its_step():
    found = loop._nan(loop.Metrics(np.ones(3), np.ones(3), np.array([1.0, np.inf, 0.0])), 12)
    assert found == (11, "nan at step 11: the norm of the gradient was inf")
    assert loop._nan(loop.Metrics(np.ones(3), np.ones(3), np.ones(3)), 12) is None
