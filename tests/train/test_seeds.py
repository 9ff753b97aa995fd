"""What is random in training follows from the two seeds and the step, and from each of them; tests draw every batch anew."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.train import step
from attnjax.train.data import batch
from attnjax.train.evaluate import Evaluator, Scores
from attnjax.train.loop import make_task
from attnjax.train.model import build
from attnjax.train.step import Trainer, members


def test_a_batch_follows_from_data_seed_and_step(tiny):
    draw = jax.jit(lambda seed, step: batch(tiny, make_task(tiny), seed, step).tokens)
    tokens = lambda seed, step: np.asarray(draw(jnp.uint32(seed), jnp.int32(step))).tolist()
    assert tokens(5, 3) == tokens(5, 3)
    assert tokens(5, 3) != tokens(6, 3)
    assert tokens(5, 3) != tokens(5, 4)


def test_what_is_dropped_follows_from_seed_and_step(tiny, monkeypatch):
    """The same batch and parameters at every step: losses differ by what is dropped alone."""
    monkeypatch.setattr(step, "batch", lambda run, task, seed, _: batch(run, task, seed, jnp.int32(0)))
    run = dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, residual_dropout=0.5))
    trainer, population = Trainer(run, make_task(run)), members([run])
    state, member = jax.tree.map(lambda leaf: leaf[0], (trainer.start(population), population))
    take = jax.jit(lambda seed, step: trainer.step(state._replace(step=step), member._replace(seed=seed))[1].loss)
    loss = lambda seed, step: float(take(jnp.uint32(seed), jnp.int32(step)))
    assert loss(5, 3) == loss(5, 3)
    assert loss(5, 3) != loss(6, 3)
    assert loss(5, 3) != loss(5, 4)


def test_every_batch_of_an_evaluation_is_drawn_anew(tiny):
    """Also of a length that is in both lists: what was chosen on validation examples is tested on others."""
    run = dataclasses.replace(tiny, evaluate=dataclasses.replace(tiny.evaluate, lengths=(4, 5, 9)))
    evaluator, keys, counted = Evaluator(run, make_task(run), build(run, make_task(run))), [], []
    evaluator._draw = lambda key, length, arrays, size: keys.append(tuple(jax.random.key_data(key).tolist()))

    def measure(params, numbers, key, examples, these, size):
        counted.append(int(these.sum()))
        nothing = np.zeros((1, 1), np.float32)
        return Scores({"loss": np.float32([np.where(these, 3, 9)])}, {"count": nothing, "loss": nothing})

    evaluator._measure = measure
    records = [one for found in evaluator({}) for member in found for one in member]
    assert len(set(keys)) == len(keys) == 2 * 4, (
        "two batches of each of three lengths of the test set and one of validation"
    )
    assert counted == [16, 8] * 4
    assert all(one["value"] == 3.0 for one in records)
