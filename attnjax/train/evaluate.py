"""Accuracy and loss by length, for a whole population at once, in padded buckets: few compilations for many lengths.

The examples of a length are a pure function of (split, length): the same for every encoding, seed and sweep. Per example:

    token_accuracy              share of counted tokens that are right when the true ones before them are given
    exact_match                 all of them are right, the stop token included
    exact_match_oracle_length   all but the stop token are right

`exact_match` is that of greedy free-running decoding: as long as every token is right, decoding has seen exactly the true
tokens, and at the first wrong one both fail. So one forward pass measures it (a test compares with decoding; encodings that
depend on the length are the exception, since decoding sees shorter sequences than one pass).

Text has `loss_nonoverlapping`, the mean over windows of the length (nats per byte), `loss_sliding`, the mean over the last
32 of them, which all have a long context (as sliding the window by 32 would give), and the accuracy per byte.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attnjax.config import EvaluateConfig, RunConfig
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair
from attnjax.train.data import place, sequences
from attnjax.train.model import Model
from attnjax.typing import Array, Float, Int, PyTree

STRIDE = 32


class Evaluator:
    """The compiled evaluation of one shape of runs."""

    def __init__(self, run: RunConfig, task: Task, model: Model):
        self.run, self.task, self.model = run, task, model
        self._measure = jax.jit(self._population, static_argnames="size")

    def __call__(
        self, params: PyTree, splits: Sequence[str] = ("test", "validation")
    ) -> Iterator[list[list[dict[str, Any]]]]:
        """For each length, the records of every member: {"length", "metric", "value", "count", "split"}."""
        config = self.run.evaluate
        for lengths, kind in ((config.lengths, "test"), (config.validation_lengths, "validation")):
            for length in lengths if kind in splits else ():
                inside = kind == "test" and length <= self.run.task.length_max
                yield self._records(params, length, "train" if inside else kind)

    def _records(self, params: PyTree, length: int, split: str) -> list[list[dict[str, Any]]]:
        """Records of one length: a list over members of lists over metrics, flattened per member."""
        size, config = bucket(self.run, length), self.run.evaluate
        # Lengths inside and outside the training range belong to one test set; the validation set is another.
        key = jax.random.fold_in(jax.random.key(2 if split == "validation" else 1), length)
        sums: dict[str, np.ndarray] = {}
        for start in range(0, config.count, config.batch):
            counted = np.arange(start, start + config.batch) < config.count
            part = self._measure(params, jax.random.fold_in(key, start), np.int32(length), counted, size=size)
            for name, value in jax.device_get(part).items():
                sums[name] = sums.get(name, 0.0) + value.astype(np.float64)
        total = sums.pop("count")
        common = {"length": length, "split": split, "count": config.count}
        measured = {name: value / total for name, value in sums.items()}
        members = range(len(total))
        return [[{**common, "metric": n, "value": float(v[p])} for n, v in measured.items()] for p in members]

    def _population(self, params: PyTree, key: Array, length: Int[Array, ""], counted: Array, size: int):
        content, places = jax.random.split(key)
        lengths = jnp.full((self.run.evaluate.batch,), length, jnp.int32)
        made = sequences(self.run, self.task, content, lengths, size)
        made = place(self.run.positions, made, places, test=True)
        return jax.vmap(functools.partial(self._sums, made=made, counted=counted))(params)

    def _sums(self, params: PyTree, *, made: Any, counted: Array) -> dict[str, Float[Array, ""]]:
        """Sums over the batch of each example's measures, and the number of examples."""
        target = made.target if isinstance(made, SequencePair) else made
        logits = self.model.apply(params, made).astype(jnp.float32)
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, target.targets)
        right, mask = jnp.argmax(logits, -1) == target.targets, target.mask
        total = lambda x: x.sum(-1, dtype=jnp.float32)
        share = lambda x, mask: total(jnp.where(mask, x.astype(jnp.float32), 0)) / jnp.maximum(total(mask), 1)
        found = {"token_accuracy": share(right, mask)}
        last = jnp.cumsum(mask, -1, dtype=jnp.int32) > (mask.sum(-1, dtype=jnp.int32) - self._tail)[:, None]
        if self.task.aligned:
            found |= {"loss_nonoverlapping": share(entropy, mask), "loss_sliding": share(entropy, mask & last)}
        else:
            found |= {"loss": share(entropy, mask), "exact_match": (right | ~mask).all(-1)}
            found["exact_match_oracle_length"] = (right | ~(mask & ~last)).all(-1)
        weight = counted.astype(jnp.float32)
        sums = {name: (value.astype(jnp.float32) * weight).sum() for name, value in found.items()}
        return {"count": weight.sum(), **sums}

    @property
    def _tail(self) -> int:
        """How many tokens at the end are special: the stop token, or the end of a window of text."""
        return STRIDE if self.task.aligned else 0 if self.run.task.form == "encoder" else 1


def bucket(run: RunConfig, length: int) -> int:
    """The padded size for a length: the next of the config's, or of a geometric series from the longest trained."""
    config: EvaluateConfig = run.evaluate
    for size in config.bucket_sizes:
        if size >= length:
            return size
    size, longest = run.task.length_max, max((*config.lengths, *config.validation_lengths, run.task.length_max))
    while size < length:
        size = max(int(np.ceil(size * config.bucket_growth)), size + 1)
    return min(size, longest)
