"""Batches as a pure function of (data seed, step): nothing to load, nothing to save, resuming is exact.

Lengths are uniform in length_min .. length_max, one per example or one per batch, padded to one size (`parts.py` cuts what
is not needed). Where positions come from is told by `places.py`.
"""

import jax
import jax.numpy as jnp

from attnjax.config import RunConfig
from attnjax.tasks.base import Task
from attnjax.tasks.forms import (
    SequencePair,
    Sequences,
    decoder_form,
    encoder_decoder_form,
    encoder_form,
    next_token_form,
)
from attnjax.train import places
from attnjax.typing import Array, Int, Key


def check(run: RunConfig, task: Task) -> None:
    """Raise ValueError where the task cannot be put into the form, or placed, as the run wants it."""
    for name in ("begin", "tail"):
        if task.aligned and getattr(run.task, name):
            raise ValueError(f"task.{name} is for tasks with an answer; {run.task.name!r} predicts the next token")
    places.check(run, task)


def batch(run: RunConfig, task: Task, seed: Int[Array, ""], step: Int[Array, ""]) -> Sequences | SequencePair:
    """The training batch of one step."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    lengths, content, placing = jax.random.split(key, 3)
    low, high = run.task.length_min, run.task.length_max
    count = 1 if run.task.length_per == "batch" else run.train.batch
    drawn = jax.random.randint(lengths, (count,), low, high + 1, jnp.int32)
    drawn = jnp.broadcast_to(drawn, (run.train.batch,))
    made = sequences(run, task, content, drawn, high, training=True)
    return places.place(run, task, made, placing, test=False)


def sequences(
    run: RunConfig, task: Task, key: Key[Array, ""], lengths: Int[Array, " B"], size: int, *, training: bool = False
) -> Sequences | SequencePair:
    """Examples of these lengths in the form of the run, padded to `size`, at positions 0, 1, ...

    The tail behind a terminator never counts in a test; but where an answer is written token by token, what was trained to
    stand before `stop` stands there in tests too.
    """
    example, tail = task.sample(key, lengths, size), run.task.tail
    if task.aligned:
        return next_token_form(task, example)
    if run.task.form == "encoder":
        return encoder_form(task, example, tail=tail and training)
    if run.task.form == "decoder":
        return decoder_form(task, example, begin=run.task.begin, tail=tail)
    return encoder_decoder_form(task, example, tail=tail)
