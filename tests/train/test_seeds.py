"""What is random in training follows from the two seeds and the step, and from each of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.train import step
from attnjax.train.data import batch
from attnjax.train.loop import make_task
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
