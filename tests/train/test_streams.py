"""What is random in a run follows from its two seeds and the step, and no two kinds of draws share a key."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.train import data, evaluate, step
from attnjax.train.data import batch
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.model import build
from attnjax.train.step import Trainer, members

SEEDS, STEPS, LENGTHS, CHILDREN = 3, 3, 4, 8


@pytest.fixture
def dropping(tiny):
    """The tiny run with dropout, also in evaluations."""
    model = dataclasses.replace(tiny.model, residual_dropout=0.5)
    return dataclasses.replace(tiny, model=model, evaluate=dataclasses.replace(tiny.evaluate, dropout=True))


class Drawn(Exception):
    """Ends a step where its keys are known."""


def words(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def keys_of(run, monkeypatch):
    """The key of every draw of runs with these seeds, by what is drawn: as the functions that draw are given it."""
    found, task = {}, make_task(run)
    trainer = Trainer(run, task)
    evaluator = Evaluator(run, task, trainer.model)
    where = ()

    def take(name, key):
        assert found.setdefault((name, *where), words(key)) == words(key)

    def randint(key, *_, **__):
        take("lengths", key)
        return jnp.full((run.train.batch,), 3, jnp.int32)

    def gradient(params, sequences, key, *_):
        take("dropout", key)
        raise Drawn

    def draw(key, length, arrays, size):
        evaluator._examples(key, length, arrays, size)
        return key

    def scores(*_, key, **__):
        take("dropout", key)
        raise Drawn

    for module in (data, evaluate):
        monkeypatch.setattr(module, "sequences", lambda run, task, key, *_, **__: take("content", key))
    placed = lambda run, task, made, key, *, test: take("positions", key)
    monkeypatch.setattr(data.position_sampling, "sample_positions", placed)
    monkeypatch.setattr(evaluate, "sample_positions", placed)
    monkeypatch.setattr(step, "_counted", lambda whole: None)
    trainer.model = trainer.model._replace(init=lambda key: (take("parameters", key), {"w": jnp.zeros(1)})[1])
    trainer.gradient, evaluator._draw, evaluator._each = gradient, draw, scores
    monkeypatch.setattr(evaluate.batching, "map_microbatches", lambda f, made, size: f(made))
    for seed in range(SEEDS):
        member = jax.tree.map(lambda leaf: leaf[0], members([dataclasses.replace(run, seed=seed, data_seed=seed)]))
        where = (seed,)
        state = trainer._start(member)
        with monkeypatch.context() as patch:
            patch.setattr(jax.random, "randint", randint)
            for number in range(STEPS):
                where = (seed, number)
                with pytest.raises(Drawn):
                    trainer.step(state._replace(step=jnp.int32(number)), member)
    for split in ("test", "validation"):
        for length in range(1, 1 + LENGTHS):
            draws = evaluator._draws(length, split, ())
            for start in range(2):
                where = (split, length, start)
                key, _ = next(draws)
                with pytest.raises(Drawn):
                    evaluator._population({"w": jnp.zeros((1, 1))}, None, key, None, 12)
    return found


def test_no_two_streams_of_runs_meet(dropping, monkeypatch):
    """Nor do the keys that they are split into: split(key, n)[i] == fold_in(key, i)."""
    found = keys_of(dropping, monkeypatch)
    assert {name for name, *_ in found} == {"parameters", "dropout", "lengths", "content", "positions"}
    assert len(found) == SEEDS * (1 + 4 * STEPS) + 2 * LENGTHS * 2 * 3
    keys = jax.random.wrap_key_data(jnp.asarray(list(found.values()), jnp.uint32))
    numbers = jnp.arange(CHILDREN, dtype=jnp.uint32)
    children = jax.vmap(lambda key: jax.vmap(lambda i: jax.random.fold_in(key, i))(numbers))(keys)
    split = jax.vmap(lambda key: jax.random.split(key, CHILDREN))(keys)
    np.testing.assert_array_equal(*map(jax.random.key_data, (children, split)))
    roots = jax.vmap(jax.random.key)(jnp.arange(SEEDS, dtype=jnp.uint32))
    everything = [*found.values(), *map(words, children.reshape(-1)), *map(words, roots)]
    assert len(set(everything)) == len(everything)


def test_the_key_of_a_step_drops(dropping):
    trainer = Trainer(dropping, make_task(dropping))

    def loss(key):
        made = batch(dropping, trainer.task, jnp.uint32(0), jnp.int32(0))
        return trainer.gradient(trainer.model.init(jax.random.key(0)), made, key)[0][0]

    take = jax.jit(loss)
    losses = [float(take(jax.random.key(seed))) for seed in (5, 6, 5)]
    assert losses[0] == losses[2] != losses[1]


def test_every_batch_of_an_evaluation_is_drawn_anew(tiny):
    """Also of a length that is in both lists: what was chosen on validation examples is tested on others."""
    changes = {"lengths": (4, 5, 9), "validation_lengths": (5,)}
    run = dataclasses.replace(tiny, evaluate=dataclasses.replace(tiny.evaluate, **changes))
    evaluator, keys, counted = Evaluator(run, make_task(run), build(run, make_task(run))), [], []
    batches = evaluator.batches
    evaluator._draw = lambda key, length, arrays, size: keys.append(words(key))

    def told(length, split):
        for draw, _, these in batches(length, split):
            counted.append(int(these.sum()))
            yield draw, these, these

    evaluator.batches = told
    evaluator._measure = lambda params, numbers, key, these, size: {"loss": np.float32([np.where(these, 3, 9)])}
    records = [one for found in evaluator.measure({}) for member in found for one in member.records]
    assert len(set(keys)) == len(keys) == 2 * 4, "two batches of three test lengths and of one validation length"
    assert counted == [16, 8] * 4
    assert all(one["value"] == 3.0 for one in records)
