"""Batches as a pure function of (data seed, step): nothing to load, nothing to save, resuming is exact.

Lengths are uniform in length_min .. length_max, one per example, padded to one size: one compilation for all of them.
Where positions come from is a factor of its own (`PositionConfig`), the same for every encoding.
"""

import jax
import jax.numpy as jnp

from attnjax.config import PositionConfig, RunConfig
from attnjax.positions import indices
from attnjax.tasks.base import Task
from attnjax.tasks.forms import (
    SequencePair,
    Sequences,
    decoder_form,
    encoder_decoder_form,
    encoder_form,
    next_token_form,
)
from attnjax.typing import Array, Int, Key

FORMS = {"encoder": encoder_form, "decoder": decoder_form, "encoder_decoder": encoder_decoder_form}


def batch(run: RunConfig, task: Task, seed: Int[Array, ""], step: Int[Array, ""]) -> Sequences | SequencePair:
    """The training batch of one step."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    lengths, content, places = jax.random.split(key, 3)
    low, high = run.task.length_min, run.task.length_max
    drawn = jax.random.randint(lengths, (run.train.batch,), low, high + 1, jnp.int32)
    return place(run.positions, sequences(run, task, content, drawn, high), places, test=False)


def sequences(run: RunConfig, task: Task, key: Key[Array, ""], lengths: Int[Array, " B"], size: int):
    """Examples of these lengths in the form of the run, padded to `size`, at positions 0, 1, ..."""
    example = task.sample(key, lengths, size)
    return next_token_form(task, example) if task.aligned else FORMS[run.task.form](task, example)


def place(policy: PositionConfig, sequences: Sequences | SequencePair, key: Key[Array, ""], *, test: bool):
    """Positions by the policy, drawn per example. At the test they are 0, 1, ... unless the policy says "same"."""
    if policy.policy == "arange" or (test and policy.at_test == "arange"):
        return sequences
    if isinstance(sequences, SequencePair):
        source, target = jax.random.split(key)
        moved = _move(policy, sequences.source_positions, source)
        placed = _move(policy, sequences.target.positions, target)
        return sequences._replace(source_positions=moved, target=sequences.target._replace(positions=placed))
    return sequences._replace(positions=_move(policy, sequences.positions, key))


def _move(policy: PositionConfig, places: Int[Array, "B T"], key: Key[Array, ""]) -> Int[Array, "B T"]:
    B, T = places.shape
    maximum = policy.maximum
    if maximum is None or maximum < T:
        raise ValueError(f"positions.maximum={maximum} is shorter than the {T} tokens of a sequence")
    draw = {"offset": indices.offset, "randomized": indices.randomized}[policy.policy]
    return jnp.take_along_axis(draw(key, T, maximum, batch=B), places, axis=1)
