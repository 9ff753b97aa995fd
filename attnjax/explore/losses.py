"""Loss by position, within the training length and beyond it.

    mean over held-out sequences of -log p(target at t),    against t + 1: for a decoder, the number of tokens read

The sequences have the longest test length of the run with at most `LONGEST` tokens. They are drawn like the tests of
`train.evaluate`, so two runs of one task are compared on the same sequences.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attnjax.config import RunConfig
from attnjax.explore.contents import Loss
from attnjax.explore.texts import fitting, size
from attnjax.tasks.base import Task
from attnjax.train.data import documents_of, sequences
from attnjax.train.model import Model
from attnjax.train.position_sampling import sample_positions
from attnjax.train.streams import stream
from attnjax.typing import Array, ArrayLike, PyTree

LONGEST = 512
COUNT, BATCH = 128, 32


def loss_by_position(run: RunConfig, task: Task, model: Model, params: PyTree) -> Loss:
    """Mean and standard error at every position at which two held-out sequences or more have a target that counts."""
    held_out = task.for_split("test")
    length = fitting(run, task, LONGEST)[-1]
    measure, arrays = jax.jit(_measure(run, held_out, model, length)), jax.device_put(held_out.arrays)
    key = stream(0, "test") if task.aligned else jax.random.fold_in(stream(0, "test"), length)
    parts = [measure(params, jax.random.fold_in(key, start), arrays) for start in range(0, COUNT, BATCH)]
    entropy, counts = (np.concatenate(part) for part in zip(*map(jax.device_get, parts), strict=True))
    what = f"windows of {length} bytes" if task.aligned else f"examples of length {length}"
    document, over = np.arange(COUNT), ", with its standard error"
    if held_out.documents is not None:
        crops = lambda start: _drawn(run, held_out, jax.random.fold_in(key, start), (held_out.documents,), length)[0]
        document = np.concatenate([documents_of(crops(start)) for start in range(0, COUNT, BATCH)])
        files = len(set(document.tolist()))
        over = f", with its standard error over {files} files" if files > 1 else " of one file"
    text = f"{run.task.name}: mean over {COUNT} held-out {what}{over}."
    return averaged(text, size(run, task, run.task.length_max), entropy.astype(np.float64), counts, document)


def averaged(text: str, trained: int, entropy: np.ndarray, counts: np.ndarray, document: np.ndarray) -> Loss:
    """Mean over the rows [B, T] whose entry counts, and its standard error over documents, which rows of one share.

    Positions with fewer than two such rows are left out; the error is NaN where they are of one document.
    """
    rows = counts.sum(0)
    known = rows > 1
    rows, counts, entropy = rows[known], counts[:, known], np.where(counts, entropy, 0)[:, known]
    mean = entropy.sum(0) / rows
    of_document = document == np.unique(document)[:, None]
    away = of_document.astype(float) @ np.where(counts, entropy - mean, 0)
    number = (of_document.astype(float) @ counts > 0).sum(0)
    known_error = np.where(number > 1, number, np.nan)
    error = np.sqrt(known_error / (known_error - 1) * (away**2).sum(0)) / rows
    context = np.flatnonzero(known) + 1
    shown = lambda values: tuple(round(float(value), 4) for value in values)
    return Loss(text, trained, tuple(map(int, context)), shown(mean), shown(error))


def _measure(run: RunConfig, task: Task, model: Model, length: int) -> Callable[..., tuple[Array, Array]]:
    """Cross-entropy [BATCH, T] of fresh sequences and where it counts, as a function of params, key and a text's bytes."""

    def measure(params: PyTree, key: Array, arrays: tuple[Array, ...]) -> tuple[Array, Array]:
        plain, placing = _drawn(run, task, key, arrays, length)
        made: Any = sample_positions(run, task.given(*arrays), plain, placing, test=True)
        logits = model.apply(params, made).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, made.targets), made.mask

    return measure


def _drawn(run: RunConfig, task: Task, key: Array, arrays: tuple[ArrayLike, ...], length: int) -> tuple[Any, Array]:
    """A batch of sequences cut from these arrays, and a key for their positions."""
    content, placing = jax.random.split(key)
    return sequences(run, task.given(*arrays), content, jnp.full((BATCH,), length, jnp.int32), length), placing
