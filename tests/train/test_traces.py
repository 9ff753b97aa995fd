"""Programs compile once: a training run, an evaluation by length and decoding are traced once for each shape."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from attnjax.train import loop, train
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members


@pytest.fixture(autouse=True)
def no_traces_yet():
    chex.clear_trace_counter()


def limit(monkeypatch, owner, **traces):
    """Let methods be traced at most so many times; one trace more is an AssertionError."""
    for name, n in traces.items():
        monkeypatch.setattr(owner, name, chex.assert_max_traces(getattr(owner, name), n=n))


def test_a_training_run_and_its_evaluations_compile_once(tiny, population, folders, recorder, monkeypatch):
    limit(monkeypatch, Trainer, _start=1, _advance=1)
    limit(monkeypatch, Evaluator, _examples=1, _population=1)
    monkeypatch.setattr(loop, "SECONDS", 1e9)  # else a slow machine divides them more often
    often = dataclasses.replace(tiny.evaluate, every=8)
    context = recorder()
    train([dataclasses.replace(run, evaluate=often) for run in population], folders("once"), context)
    assert 10 <= context.strides <= 14, "two calls of one step, to compile and to measure, and then one for each record"
    assert {record["step"] for record in context.found["0"]} == {8, 16, 24, 32, 40}


@pytest.mark.slow
def test_another_population_of_the_same_shape_compiles_nothing(tiny, population, monkeypatch):
    limit(monkeypatch, Trainer, _start=1, _advance=1)
    trainer = Trainer(tiny, make_task(tiny))
    others = [dataclasses.replace(run, seed=run.seed + 2, data_seed=5) for run in population]
    for runs in (population, others):
        state, _ = trainer.advance(trainer.start(members(runs)), members(runs), 2)
        # What a checkpoint gives back are arrays of NumPy.
        trainer.advance(jax.tree.map(np.asarray, state), members(runs), 2)
        trainer.advance(trainer.start(members(runs)), members(runs), 3)
    with pytest.raises(AssertionError, match="traced > 1 times"):
        trainer.advance(trainer.start(members(others[:1])), members(others[:1]), 3)


@pytest.mark.slow
def test_an_evaluation_compiles_once_for_each_padded_size(tiny, monkeypatch):
    limit(monkeypatch, Evaluator, _examples=2, _population=2)
    lengths = dataclasses.replace(tiny.evaluate, lengths=(2, 3, 4, 5, 6, 7, 9), bucket_sizes=(6, 12))
    run = dataclasses.replace(tiny, evaluate=lengths)
    trainer = Trainer(run, make_task(run))
    params = trainer.start(members([run])).params
    assert len(list(Evaluator(run, trainer.task, trainer.model)(params))) == 8
    with pytest.raises(AssertionError, match="traced > 2 times"):
        list(Evaluator(run, trainer.task, trainer.model)(params))
