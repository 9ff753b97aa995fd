"""Training batches as a pure function of (data seed, step): there is no data to load or save, and resuming is exact.

Lengths are uniform in length_min .. length_max, one per example or one per batch, and padded to one size, which
`batching.py` truncates where that pays. `position_sampling.py` draws the positions.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config import RunConfig
from attnjax.tasks.base import Task
from attnjax.tasks.forms import (
    SequencePair,
    Sequences,
    decoder_form,
    encoder_decoder_form,
    encoder_form,
    next_token_form,
    target_of,
)
from attnjax.train import position_sampling
from attnjax.train.streams import stream
from attnjax.typing import Array, Int, Key, UInt32


def check(run: RunConfig, task: Task) -> None:
    """Raise ValueError where the form or the position policy of the run does not fit the task."""
    for name in ("begin", "tail"):
        if task.aligned and getattr(run.task, name):
            raise ValueError(f"task.{name} is for tasks with an answer; {run.task.name!r} predicts the next token")
    position_sampling.check(run, task)


def batch(run: RunConfig, task: Task, seed: UInt32[Array, ""], step: Int[Array, ""]) -> Sequences | SequencePair:
    """Return the training batch of one step.

    Args:
      run: its `task`, `train.batch` and `positions`.
      task: the task of the run.
      seed: the data seed, a scalar.
      step: the number of the step, a scalar.
    """
    chex.assert_rank((seed, step), 0)
    lengths, content, placing = (
        jax.random.fold_in(stream(seed, name), step) for name in ("lengths", "content", "positions")
    )
    low, high = run.task.length_min, run.task.length_max
    count = 1 if run.task.length_per == "batch" else run.train.batch
    drawn = jax.random.randint(lengths, (count,), low, high + 1, jnp.int32)
    drawn = jnp.broadcast_to(drawn, (run.train.batch,))
    made = sequences(run, task, content, drawn, high, training=True)
    return position_sampling.sample_positions(run, task, made, placing, test=False)


def documents_of(made: Sequences | SequencePair) -> np.ndarray:
    """Return the number of the document at the last token of each crop, drawn from `Task.documents` in place of its tokens."""
    crop = target_of(made)
    return np.where(crop.mask, crop.targets, 0).max(-1)


def sequences(
    run: RunConfig, task: Task, key: Key[Array, ""], lengths: Int[Array, " B"], size: int, *, training: bool = False
) -> Sequences | SequencePair:
    """Return examples of these lengths in the form of the run, padded to `size`, at positions 0, 1, ...

    Args:
      run: its `task`: the form, and whether `tail`, the zeros behind a terminator, are part of the answer.
      task: the task of the run.
      key: one typed key.
      lengths: the length of each example, at most `size`.
      size: the length to pad to, static.
      training: whether the batch is of training. In an evaluation of an encoder the tail never counts; a decoder writes
        its answer token by token, so the tail that it was trained to write before `stop` stands there in tests too.
    """
    chex.assert_rank(lengths, 1)
    chex.assert_type(lengths, int)
    example, tail = task.sample(key, lengths, size), run.task.tail
    if task.aligned:
        return next_token_form(task, example)
    if run.task.form == "encoder":
        return encoder_form(task, example, tail=tail and training)
    if run.task.form == "decoder":
        return decoder_form(task, example, begin=run.task.begin, tail=tail)
    return encoder_decoder_form(task, example, tail=tail)
