"""Accuracy and loss by length, for a whole population at once, in padded buckets, so that many lengths share a program.

The examples of a length are a pure function of the split, the length and `evaluate.batch`, in which they are drawn: the same
for every encoding and seed. Per example:

    token_accuracy              share of counted tokens that are right when the true ones before them are given
    exact_match                 all of them are right, the stop token included
    exact_match_oracle_length   all but the stop token are right

`exact_match` is that of greedy free-running decoding: as long as every token is right, decoding has seen exactly the true
tokens, and at the first wrong one both fail. So one forward pass measures it (a test compares with decoding; encodings that
depend on the length are the exception, since decoding sees shorter sequences than one pass).

Text has `loss_nonoverlapping`, the mean over windows of the length L (nats per byte), `loss_sliding`, the mean over the
last S bytes of each, and the accuracy per byte. Sliding a window by the stride S (Press et al. 2022, arXiv:2108.12409,
appendix B) counts in each the S bytes that the one before has not seen, so every byte is predicted from L - S + 1 .. L bytes;
here the windows are a sample of those, and end at the same bytes for every L. A window shorter than S counts whole. Test and
validation lengths are cut from the split of that name, which training never reads.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attnjax import tasks
from attnjax.config import RunConfig
from attnjax.tasks.base import Task
from attnjax.tasks.forms import target_of
from attnjax.tasks.ngrams import NGrams
from attnjax.train import batching
from attnjax.train.data import documents_of, sequences
from attnjax.train.mesh import (
    axis_of_tokens,
    compiler_options,
    entries_of_all,
    is_zigzag,
    on_host,
    over_devices,
    platform_of,
    rows_of_device,
    tokens_of_all,
    tokens_of_device,
)
from attnjax.train.model import Model
from attnjax.train.position_sampling import sample_positions
from attnjax.train.step import target_logits
from attnjax.train.streams import branch, stream
from attnjax.typing import Array, ArrayLike, Bool, Int, PyTree

Key = tuple[str, int, str]
"""Split, length, metric."""

Levels = dict[str, dict[str, dict[str, float]]]
"""Losses of n-gram models by length (as text, for JSON), metric and name of the model."""
DOCUMENT = "document"
"""In place of a metric: the document that each example was cut from, as `records.examples` has it."""


Scores = dict[str, Array]
"""The metrics of a batch: float32 [B] of the examples, or [P, B] of a population."""


class Measured(NamedTuple):
    """What a member scores at one length.

    Its records, {"length", "metric", "value", "count", "split"}, and scores of examples as `records.examples` has them.
    """

    records: list[dict[str, Any]]
    scores: dict[Key, np.ndarray]


class Evaluator:
    """The compiled evaluation of one shape of runs: for each padded size, one program that draws and one that measures."""

    def __init__(self, run: RunConfig, task: Task, model: Model, mesh: jax.sharding.Mesh | None = None):
        self.run, self.task, self.model, self.mesh = run, task, model, mesh
        self.zigzag = is_zigzag(run.task.form, model.config.encodings, mesh)
        self._platform = platform_of(mesh)
        once, often = compiler_options(self._platform, 0), compiler_options(self._platform, 1)
        self._held_out = {split: task.for_split(split) for split in evaluation_lengths(run)}
        self._draw = jax.jit(self._examples, static_argnames="size", compiler_options=once)
        self._measure = jax.jit(self._on_mesh, static_argnames="size", compiler_options=often)

    @functools.cached_property
    def _arrays(self) -> dict[str, tuple[Array, ...]]:
        """The corpus of each split, on the device from the first evaluation on."""
        return {split: jax.device_put(task.arrays) for split, task in self._held_out.items()}

    def measure(
        self,
        params: PyTree,
        splits: Sequence[str] = ("test", "validation"),
        numbers: PyTree = None,
    ) -> Iterator[list[Measured]]:
        """Yield, for each length, what every member scores.

        Args:
          params: parameters [P, ...] of the population.
          splits: which of "test" and "validation" to evaluate.
          numbers: the numeric options of the members' encodings, see `train.model.numbers_of`.
        """
        for kind, lengths in evaluation_lengths(self.run).items():
            for length in lengths if kind in splits else ():
                inside = kind == "test" and length <= self.run.task.length_max
                yield self._of_length(params, numbers, length, "train" if inside else kind)

    def _of_length(self, params: PyTree, numbers: PyTree, length: int, split: str) -> list[Measured]:
        """Return what each member scores at one length."""
        size, count = self.size(length, split), self.run.evaluate.count
        parts = [
            on_host(self._measure(params, numbers, draw, examples, size=size), self.mesh)
            for draw, examples, _ in self.batches(length, split)
        ]
        each = {
            name: np.concatenate([part[name] for part in parts], axis=1)[:, :count].astype(np.float64)
            for name in parts[0]
        }
        common, documents = {"length": length, "split": split, "count": count}, self.documents(length, split)
        known = {} if documents is None else {(split, length, DOCUMENT): documents}

        def of_member(p: int) -> Measured:
            records = [{**common, "metric": name, "value": float(x[p].mean())} for name, x in each.items()]
            kept = {(split, length, name): x[p] for name, x in each.items() if name != "token_accuracy"}
            return Measured(records, kept | known)

        return [of_member(p) for p in range(len(next(iter(each.values()))))]

    def size(self, length: int, split: str) -> int:
        """Return the size that examples of a length are padded to: the bucket, or what the text of the split has, if less."""
        size, longest = padded_size(self.run, length), self._held_out[_held_out(split)].maximum_length
        return size if longest is None else max(length, min(size, longest))

    def batches(self, length: int, split: str) -> Iterator[tuple[Array, Any, Bool[np.ndarray, " B"]]]:
        """Yield the examples of a length, a batch at a time: a key, the examples, and which of them count."""
        arrays = self._arrays[_held_out(split)]
        for number, (draw, examples) in enumerate(self._draws(length, split, arrays)):
            first = number * self.run.evaluate.batch
            counted = np.arange(first, first + self.run.evaluate.batch) < self.run.evaluate.count
            yield draw, examples, counted

    def _draws(self, length: int, split: str, arrays: tuple[ArrayLike, ...]) -> Iterator[tuple[Array, Any]]:
        """Yield a key and the examples of a length, a batch at a time, cut from these arrays where the task has a corpus."""
        config, size = self.run.evaluate, self.size(length, split)
        key = stream(0, _held_out(split))
        # Windows of text end at the same bytes at every length, so that lengths differ by their context alone.
        key = key if self.task.aligned else jax.random.fold_in(key, length)
        for start in range(0, config.count, config.batch):
            draw = jax.random.fold_in(key, start)
            yield draw, self._draw(draw, np.int32(length), arrays, size=size)

    def documents(self, length: int, split: str) -> np.ndarray | None:
        """Return the number of the document that each example of a length was cut from, at its last token; None without any.

        The same crops are drawn, from the numbers of documents in place of the tokens.
        """
        held_out = self._held_out[_held_out(split)]
        if held_out.documents is None:
            return None
        draws = self._draws(length, split, (held_out.documents,))
        last = [documents_of(made) for _, made in draws]
        return np.concatenate(last)[: self.run.evaluate.count].astype(np.float64)

    def trace(self, params: PyTree, length: int, split: str) -> PyTree:
        """Return the scores of one batch of a split, padded as this length is, for one run; `attnjax.train.check` traces it."""
        key, size = jax.random.key(0), self.size(length, split)
        made = self._examples(key, jnp.asarray(length, jnp.int32), self._held_out[_held_out(split)].arrays, size)
        alone = jax.tree.map(lambda leaf: leaf[None], params)
        return self._population(alone, None, key, made, size)

    def _examples(self, key: Array, length: Int[Array, ""], arrays: tuple[ArrayLike, ...], size: int):
        content, placing = branch(key, "content"), branch(key, "positions")
        task = self.task.given(*arrays)
        lengths = jnp.full((self.run.evaluate.batch,), length, jnp.int32)
        made = sequences(self.run, task, content, lengths, size)
        return sample_positions(self.run, task, made, placing, test=True)

    def _on_mesh(self, params: PyTree, numbers: PyTree, key: Array, made: Any, size: int):
        population = functools.partial(self._population, size=size)
        return over_devices(population, self.mesh, (True, True, False, False), 0)(params, numbers, key, made)

    def _population(self, params: PyTree, numbers: PyTree, key: Array, made: Any, size: int):
        dropout = branch(key, "dropout") if self.run.evaluate.dropout and self.run.model.drops else None
        microbatch = None
        # Dropout masks depend on the index of an example in the batch, which must then stay whole.
        if dropout is None:
            made = rows_of_device(made, self.mesh)
            members = jax.tree.leaves(params)[0].shape[0]
            microbatch = batching.microbatch_size(self.run.model, made, members, self._platform)
        most = batching.max_targets(self.run, self.task, size)
        each = functools.partial(self._each, key=dropout, max_targets=most)
        one = lambda *member: batching.map_microbatches(functools.partial(each, *member), made, microbatch)
        scores = jax.vmap(one)(params, numbers)
        if dropout is not None:
            return scores
        return jax.tree.map(jax.vmap(functools.partial(entries_of_all, mesh=self.mesh)), scores)

    def _each(
        self, params: PyTree, numbers: PyTree, made: Any, *, key: Array | None, max_targets: int | None
    ) -> Scores:
        """Return the metrics [B] of each example.

        `max_targets`: no example has more targets that count, so that the logits of so many positions are enough.
        """
        places = {"mesh": self.mesh, "zigzag": self.zigzag}
        own, model = tokens_of_device(made, **places), functools.partial(self.model.apply, params)
        target, logits = target_logits(model, own, key, numbers, max_targets, **places)
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, target.targets)
        predicted = jax.lax.argmax(logits, logits.ndim - 1, jnp.int32)
        if axis_of_tokens(self.mesh) is not None:
            target = target_of(made)
            entropy, predicted = (tokens_of_all(x, target.targets.shape[-1], **places) for x in (entropy, predicted))
        # Of logits that are NaN the largest is that of token 0, which would then be right by chance.
        right, mask = (predicted == target.targets) & jnp.isfinite(entropy), target.mask
        total = lambda x: x.sum(-1, dtype=jnp.float32)
        share = lambda x, mask: total(jnp.where(mask, x.astype(jnp.float32), 0)) / jnp.maximum(total(mask), 1)
        found = {"token_accuracy": share(right, mask)}
        last = jnp.cumsum(mask, -1, dtype=jnp.int32) > (mask.sum(-1, dtype=jnp.int32) - self._tail)[:, None]
        if self.task.aligned:
            found |= {"loss_nonoverlapping": share(entropy, mask), "loss_sliding": share(entropy, mask & last)}
        else:
            found |= {"loss": share(entropy, mask), "exact_match": (right | ~mask).all(-1)}
            found["exact_match_oracle_length"] = (right | ~(mask & ~last)).all(-1)
        return {name: value.astype(jnp.float32) for name, value in found.items()}

    @property
    def _tail(self) -> int:
        """Return how many tokens at the end are special: the stop token, or the stride of a sliding window of text."""
        if self.task.aligned:
            return self.run.evaluate.sliding_stride
        return 0 if self.run.task.form == "encoder" else 1


def _held_out(split: str) -> str:
    """Return the set of a split: lengths inside and outside the training range belong to one test set."""
    return "validation" if split == "validation" else "test"


def evaluation_lengths(run: RunConfig) -> dict[str, tuple[int, ...]]:
    """Return the lengths to evaluate in each held-out split. Splits without lengths are left out."""
    lengths = {"test": run.evaluate.lengths, "validation": run.evaluate.validation_lengths}
    return {split: chosen for split, chosen in lengths.items() if chosen}


def padded_size(run: RunConfig, length: int) -> int:
    """Return the size that examples of a length are padded to: the smallest bucket that holds them."""
    return next(size for size in (*run.evaluate.bucket_sizes, *default_buckets(run)) if size >= length)


def default_buckets(run: RunConfig) -> tuple[int, ...]:
    """Return padded sizes that grow by `evaluate.bucket_growth` or more, ascending.

    Every size is an evaluated length, so that at least one length is not padded: from the longest down, the next size is the
    longest length that is `bucket_growth` times smaller. Lengths inside the training range share the longest of them, or a
    longer one that is less than `bucket_growth` times as long.
    """
    config = run.evaluate
    lengths = sorted({*config.lengths, *config.validation_lengths})
    trained = max((length for length in lengths if length <= run.task.length_max), default=0)
    sizes = lengths[-1:]
    for n in reversed(lengths):
        if n >= trained and n * config.bucket_growth <= sizes[-1]:
            sizes.append(n)
    return tuple(reversed(sizes))


def ngram_levels(run: RunConfig, task: Task, evaluator: Evaluator) -> Levels | None:
    """Return the losses of n-gram models at every test length, means over the windows as a run's own are.

    None for a task that is neither text nor Markov chains, and for a text of fewer than three bytes.
    """
    if isinstance(task, tasks.Markov):
        model: NGrams | tasks.Markov = task
    elif isinstance(task, tasks.Text) and len(np.asarray(task.data)) >= 3:
        model = NGrams.of(np.asarray(task.data))
    else:
        return None
    mean = lambda nats, kept: float(np.mean(np.where(kept, nats, 0).sum(axis=1) / np.maximum(kept.sum(axis=1), 1)))
    found: Levels = {}
    for length in run.evaluate.lengths:
        draws = [(made, counted) for _, made, counted in evaluator.batches(length, "test")]
        tokens, targets, mask = (
            np.concatenate([np.asarray(getattr(made, name))[counted] for made, counted in draws])
            for name in ("tokens", "targets", "mask")
        )
        last = np.cumsum(mask, axis=1) > mask.sum(axis=1, keepdims=True) - run.evaluate.sliding_stride
        nats = model.nats(tokens, targets)
        found[str(length)] = {
            metric: {name: mean(x, kept) for name, x in nats.items()}
            for metric, kept in (("loss_nonoverlapping", mask), ("loss_sliding", mask & last))
        }
    return found
