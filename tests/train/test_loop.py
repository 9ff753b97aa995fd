"""Training ends with the same bits however often it was stopped; what goes wrong is recorded, and stays out of the rest."""

import dataclasses
import inspect
import shutil
import threading

import jax
import numpy as np
import pytest

from attnjax.train import checkpoint, describe, loop, train
from attnjax.train.evaluate import Evaluator
from attnjax.train.step import Trainer, members


@pytest.fixture(scope="module", autouse=True)
def _one_compilation():
    """All calls of `train` here share their programs."""
    trainer, evaluator = {}, {}

    def shape(run):
        same = dataclasses.replace(run.train, learning_rate=1.0, weight_decay=0.0)
        return repr(dataclasses.replace(run, seed=0, data_seed=0, train=same))

    def shared_trainer(run, task, mesh):
        return trainer.setdefault(shape(run), Trainer(run, task, mesh))

    def shared_evaluator(run, task, model, mesh):
        return evaluator.setdefault(shape(run), Evaluator(run, task, model, mesh))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Trainer", shared_trainer)
        patch.setattr(loop, "Evaluator", shared_evaluator)
        yield


def uninterrupted(population, root):
    """The records of a population that was not interrupted, and its folders."""
    from tests.train.conftest import Recorder

    folders = [root / str(i) for i in range(2)]
    for folder in folders:
        folder.mkdir()
    context = Recorder()
    train(population, folders, context)
    return context, folders


@pytest.fixture(scope="module")
def whole(population, tmp_path_factory):
    return uninterrupted(population, tmp_path_factory.mktemp("whole"))


def test_records_of_a_whole_run(whole, tiny):
    context, folders = whole
    assert [record["step"] for record in context.logs["0"]] == list(range(4, 41, 4))
    measured = {(one["length"], one["split"]) for one in context.found["0"]}
    assert measured == {(4, "train"), (6, "train"), (9, "test"), (5, "validation")}
    assert {one["metric"] for one in context.found["0"]} >= {"exact_match", "token_accuracy", "loss"}
    assert context.notes["0"]["parameters"] == describe(tiny)["parameters"]
    assert context.notes["0"]["parameters_sha256"] != context.notes["1"]["parameters_sha256"]
    assert checkpoint.steps(folders[0] / "checkpoints") == [32, 40]


def test_stopped_and_resumed_is_bitwise_the_same(whole, population, recorder, folders):
    parts = folders("parts")
    context = recorder(stop_after=3)
    for strides in (3, 4, 8, None):
        context.stop_after = None if strides is None else strides
        train(population, parts, context)
    expected, _ = whole
    assert context.logs == expected.logs
    assert context.found == expected.found
    assert context.notes == expected.notes


@pytest.fixture(scope="module")
def watched(population):
    """A population that is also evaluated on the way."""
    return [dataclasses.replace(run, evaluate=dataclasses.replace(run.evaluate, every=8)) for run in population]


@pytest.fixture(scope="module")
def watched_whole(watched, tmp_path_factory):
    return uninterrupted(watched, tmp_path_factory.mktemp("watched"))[0]


def test_evaluations_on_the_way_are_of_the_validation_set(watched_whole):
    steps = [one["step"] for one in watched_whole.found["0"] if one["split"] == "validation"]
    assert sorted(set(steps)) == [8, 16, 24, 32, 40]
    assert {one["step"] for one in watched_whole.found["0"] if one["split"] != "validation"} == {40}


def test_a_death_between_checkpoint_and_evaluation_loses_no_result(
    watched, watched_whole, recorder, folders, monkeypatch
):
    parts, context, real = folders("died"), recorder(), loop._evaluate

    def dying(*arguments):
        if inspect.signature(real).bind(*arguments).arguments["step"] == 16:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(loop, "_evaluate", dying)
    with pytest.raises(KeyboardInterrupt):
        train(watched, parts, context)
    assert checkpoint.steps(parts[0] / "checkpoints")[-1] == 16
    monkeypatch.setattr(loop, "_evaluate", real)
    train(watched, parts, context)
    assert context.found == watched_whole.found
    assert context.logs == watched_whole.logs
    assert context.notes == watched_whole.notes


def test_a_stop_amid_an_evaluation_loses_no_result(watched, watched_whole, recorder, folders, monkeypatch):
    parts, context, real = folders("stopped"), recorder(), loop._evaluate

    def stopped(*arguments):
        context.stop_after = 0  # asked to stop as the evaluation begins, and before it has found anything

    monkeypatch.setattr(loop, "_evaluate", stopped)
    train(watched, parts, context)
    assert checkpoint.steps(parts[0] / "checkpoints")[-1] == 8
    monkeypatch.setattr(loop, "_evaluate", real)
    context.stop_after = None
    train(watched, parts, context)
    assert context.found == watched_whole.found
    assert context.notes == watched_whole.notes


def test_after_a_stop_in_the_last_evaluation_nothing_more_is_computed(
    whole, population, recorder, folders, monkeypatch
):
    """The counts of n-gram models of a long text take minutes."""
    expected, originals = whole
    parts, context, counted = folders("late"), recorder(), []
    for original, part in zip(originals, parts, strict=True):
        shutil.copytree(original, part, dirs_exist_ok=True)
    real = loop._log_examples

    def late(*arguments):
        real(*arguments)
        context.stop_after = 0

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_log_examples", late)
        patch.setattr(loop, "ngram_levels", lambda *_: counted.append(1))
        train(population, parts, context)
    assert counted == []
    assert "parameters_sha256" not in context.notes["0"]
    context.stop_after = None
    train(population, parts, context)
    assert context.notes == expected.notes


def test_the_newest_step_that_all_have_is_resumed_from(whole, population, recorder, folders):
    expected, originals = whole
    parts = folders("lagging")
    for original, part in zip(originals, parts, strict=True):
        shutil.copytree(original, part, dirs_exist_ok=True)
    shutil.rmtree(parts[1] / "checkpoints" / "40")
    context = recorder()
    train(population, parts, context)
    assert [record["step"] for record in context.logs["0"]] == [36, 40]
    assert context.notes == expected.notes


class Loses:
    """Makes a `Recorder` lose the folder of the first run at a moment; it then asks to stop."""

    def __init__(self, context, folder, lost):
        self.folder, self.lost, self.reason = folder, lost, ""
        context.holds, context.stopping = self.holds, lambda: self.reason

    def holds(self, directory):
        if directory == self.folder and self.lost():
            self.reason = "taken over"
        return directory != self.folder or not self.reason


@pytest.mark.parametrize("when", ["as a save begins", "in the thread that saves"])
def test_no_checkpoint_goes_into_a_folder_that_another_process_has_by_now(population, recorder, folders, when):
    parts, context = folders("lost"), recorder()
    saves = lambda: threading.current_thread() is not threading.main_thread()
    Loses(context, parts[0], saves if "thread" in when else lambda: context.strides > 0)
    train(population, parts, context)
    assert checkpoint.steps(parts[0] / "checkpoints") == []
    assert checkpoint.steps(parts[1] / "checkpoints")[0] == 8
    assert not any(context.found.values())


def test_no_checkpoint_is_dropped_from_a_folder_that_another_process_has_by_now(whole, population, recorder, folders):
    parts, context = folders("lost"), recorder()
    for original, part in zip(whole[1], parts, strict=True):
        shutil.copytree(original, part, dirs_exist_ok=True)
    shutil.rmtree(parts[1] / "checkpoints" / "40")
    context.holds, context.stopping = lambda directory: directory != parts[0], lambda: "taken over"
    train(population, parts, context)
    assert checkpoint.steps(parts[0] / "checkpoints") == [32, 40]


def test_a_run_whose_loss_is_nan_fails_alone(tiny, recorder, folders):
    wild = dataclasses.replace(tiny.train, learning_rate=1e30)
    context, parts = recorder(), folders("wild")
    train([tiny, dataclasses.replace(tiny, train=wild)], parts, context)
    step, reason = context.failed["1"]
    assert reason.startswith(f"nan at step {step}")
    assert 1 <= step <= 8
    assert "0" not in context.failed
    assert context.found["0"]
    assert not context.found["1"]
    assert checkpoint.steps(parts[0] / "checkpoints") == [32, 40]
    assert not [step for step in checkpoint.steps(parts[1] / "checkpoints") if step >= context.failed["1"][0]]


@pytest.mark.slow
def test_a_member_alone_is_the_member_of_a_population(population, tiny):
    """Not bit by bit, since XLA may order sums differently for another batch, but as numbers."""
    from attnjax.train.loop import make_task

    trainer = Trainer(tiny, make_task(tiny))
    together, metrics = trainer.advance(trainer.start(members(population)), members(population), 4)
    for i, run in enumerate(population):
        alone, lone = trainer.advance(trainer.start(members([run])), members([run]), 4)
        np.testing.assert_allclose(lone.loss[0], metrics.loss[i], rtol=1e-5)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[0], b[i], rtol=1e-3, atol=1e-5), alone, together)


def test_one_compilation_serves_all_lengths_and_strides(population, tiny):
    from attnjax.train.loop import make_task

    trainer = Trainer(tiny, make_task(tiny))
    traces = []
    step = trainer.step
    trainer.step = lambda state, member: (traces.append(1), step(state, member))[1]
    state = trainer.start(members(population))
    for _ in range(3):
        state, _ = trainer.advance(state, members(population), 4)
    assert len(traces) <= 2, "a scan may trace its body twice, not once per call"
