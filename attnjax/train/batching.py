"""Microbatches, length buckets and target gather: what of a batch need not be computed, and what is computed in turn.

**Length buckets.** Lengths are drawn, so half of a training batch is padding, which no target depends on. The examples
are sorted by length and split into microbatches; each is truncated to the smallest of a few buckets that holds it, and
the gradients of the microbatches are summed. No real token is lost, so a step changes by rounding alone. Where one length
is drawn for the whole batch (`task.length_per="batch"`), the batch is one microbatch.

**Target gather.** Where a task has few targets, logits are computed at the positions of the targets alone: the last layer
computes no other queries. A bucket has a target capacity: how many targets of an example it gathers.

**Microbatches of an evaluation** keep what a layer computes in the cache of a CPU.

Measured on two cores. Length buckets (128 examples of 3 .. 64 tokens, of copying): a step of 2 layers, D = 64, takes 0.75
of its time, one of 4 layers, D = 128, 0.72; compiling four buckets takes 12 s longer than one. Eight microbatches were
slower than four in the small model and no faster in the large one; six buckets gained nothing. Smaller batches (copying
2 .. 20 tokens, 2 layers, D = 64, members in turn; one core, the other busy with a sweep): 64 examples take 0.58 of their
time in four microbatches of four buckets, 0.64 with two buckets, 0.74 in two microbatches of two; 32 examples take 0.63,
0.72 and 0.72. Evaluation (2 layers,
D = 64, 64 examples of 460 tokens): 16 examples at once take 0.78 of the time of all, and a quarter of the memory.
Training ten members of a population in turn (2 layers, D = 64, tasks of `length_table` and `unique_copy`; one core, the
other busy with a sweep) takes 0.66 of the time of vmapped members at 1,536 tokens a batch, 0.73 to 0.83 at 1,024, 0.80 to
0.96 at 512, and 1.37 at 128; three members take 0.98 at 1,024 and 1.09 at 512. Six members of 2,048 tokens need 55 instead
of 300 MB.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from attnjax.config import ModelConfig, RunConfig
from attnjax.modules.attention import gather
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair, Sequences, target_of
from attnjax.typing import Array, ArrayLike, Bool, Int, PyTree

BUCKETS = 4
MICROBATCHES = 4
MIN_BATCH_TOKENS = 1024
"""Tokens of a batch below which a microbatch is too small to keep a CPU busy."""
MIN_TOKENS_IN_TURN = 512
"""Tokens of a batch from which on the activations of vmapped members of a population outgrow the caches of a CPU."""
MIN_RUN_TOKENS = 1_500_000
"""Tokens of a whole run below which it ends before the buckets have paid for their compilation."""
MICROBATCH_BYTES = 2**23
"""Bytes of the hidden units of one microbatch of an evaluation on a CPU."""
MIN_MICROBATCH_TOKENS = 512
"""Tokens of a microbatch of an evaluation below which its matrix products leave a CPU idle."""

Capacities = tuple[int | None, ...]
"""For each bucket, how many targets of an example it gathers; None: it gathers none and computes every logit."""


class Batching(NamedTuple):
    """How many microbatches a training batch is split into, and how many length buckets are compiled."""

    microbatches: int = 1
    buckets: int = 1


def choose_batching(run: RunConfig, task: Task, platform: str) -> Batching:
    """Return how the training batches of a run are split and truncated; `Batching()` where that does not pay.

    `platform`: that of the device which trains, as "cpu". On an accelerator it does not pay: the members of a population are
    vmapped there, and a `switch` under `vmap` computes every branch.
    """
    low, high, tokens = run.task.length_min, run.task.length_max, _batch_tokens(run, task)
    small = tokens < MIN_BATCH_TOKENS or tokens * run.train.steps < MIN_RUN_TOKENS
    if small or 2 * low > high or platform != "cpu":
        return Batching()
    return Batching(1 if run.task.length_per == "batch" else math.gcd(MICROBATCHES, run.train.batch), BUCKETS)


def members_in_turn(run: RunConfig, task: Task, platform: str, batching: Batching) -> bool:
    """Return whether the members of a population train one after another, and not vmapped.

    So they do on a CPU where their activations are large, and wherever there are buckets: a `switch` under `vmap` computes
    every branch.
    """
    return batching.buckets > 1 or (platform == "cpu" and _batch_tokens(run, task) >= MIN_TOKENS_IN_TURN)


def _batch_tokens(run: RunConfig, task: Task) -> int:
    """Return the number of tokens of a batch of the longest training examples."""
    high = run.task.length_max
    return run.train.batch * (high + (0 if task.aligned else task.output_size(high)))


def sum_over_microbatches(
    f: Callable[[Sequences | SequencePair, Int[Array, ""] | int, int | None], PyTree],
    made: Sequences | SequencePair,
    batching: Batching,
    zero: PyTree,
    *,
    max_targets: int | None = None,
) -> PyTree:
    """Return the sum over microbatches of f(microbatch, index of the microbatch, target capacity of its bucket).

    Args:
      f: a function whose results are like `zero`; it is traced once for each bucket.
      made: the whole batch.
      batching: the number of microbatches, a divisor of the batch, and of buckets.
      zero: the sum of no microbatches.
      max_targets: no example has more targets that count; None: any number, and the target capacities are None.
    """
    _assert_batch(made)
    chex.assert_is_divisible(target_of(made).tokens.shape[0], batching.microbatches)
    capacities = target_capacity(max_targets, target_of(made).tokens.shape[-1], batching.buckets)

    def in_bucket(bucket: int, part: Sequences | SequencePair, i: Int[Array, ""] | int):
        return f(truncate(part, bucket, batching.buckets), i, capacities[bucket])

    def of_microbatch(part: Sequences | SequencePair, i: Int[Array, ""] | int):
        branches = [functools.partial(in_bucket, bucket) for bucket in range(batching.buckets)]
        if len(branches) == 1:
            return branches[0](part, i)
        return jax.lax.switch(smallest_bucket(part, capacities), branches, part, i)

    if batching.microbatches == 1:
        return of_microbatch(made, 0)
    order = jnp.argsort(real_lengths(made))
    parts = split_microbatches(made, order.shape[0] // batching.microbatches, order)
    add = lambda total, part: (jax.tree.map(jnp.add, total, of_microbatch(*part)), None)
    return jax.lax.scan(add, zero, (parts, jnp.arange(batching.microbatches, dtype=jnp.int32)))[0]


# Length buckets


def bucket_size(size: int, bucket: int, buckets: int) -> int:
    """Return the number of tokens of a bucket: (bucket + 1.2) / buckets of `size`, rounded up, and all in the last.

    The 0.2 are for microbatches of similar length: the longest example of the first quarter, say, is about half of the
    time longer than a quarter of the longest of all, but rarely by more than a fifth.

    Example:
      >>> [bucket_size(64, bucket, 4) for bucket in range(4)]
      [20, 36, 52, 64]
    """
    return min(math.ceil(size * (5 * bucket + 6) / (5 * buckets)), size)


def truncate(made: Sequences | SequencePair, bucket: int, buckets: int) -> Sequences | SequencePair:
    """Return the same examples with the first tokens of each alone, as many as the bucket has."""
    short = lambda leaf: leaf if leaf.ndim < 2 else leaf[..., : bucket_size(leaf.shape[-1], bucket, buckets)]
    return jax.tree.map(short, made)


def smallest_bucket(made: Sequences | SequencePair, capacities: Capacities) -> Int[Array, ""]:
    """Return the index of the smallest bucket that holds all real tokens and has the capacity for all targets.

    The number of buckets is that of `capacities`. The last bucket holds everything. Targets of an example are counted
    from its first answer token to the last that counts, as `gather_targets` takes them.
    """
    _assert_batch(made)
    target = target_of(made)
    longest = [(real.shape[-1], _last(real).max()) for real in _real(made)]
    answer = (_last(target.mask) - target.answer).max()
    fits = []
    for bucket, capacity in enumerate(capacities):
        fit = [length <= bucket_size(size, bucket, len(capacities)) for size, length in longest]
        fit += [] if capacity is None else [answer <= capacity]
        fits.append(jnp.stack(fit).all())
    return jnp.argmax(jnp.stack(fits)).astype(jnp.int32)


def real_lengths(made: Sequences | SequencePair) -> Int[Array, " B"]:
    """Return the number of real tokens of each example; of a pair, of source and target together."""
    _assert_batch(made)
    return jnp.stack([_last(real) for real in _real(made)]).sum(0, dtype=jnp.int32)


def _real(made: Sequences | SequencePair) -> list[Bool[ArrayLike, "B _"]]:
    """Return which tokens are read or counted, for each side of a pair."""
    target = target_of(made)
    sources = [made.source_valid] if isinstance(made, SequencePair) else []
    return [target.valid | target.mask, *sources]


def _last(real: Bool[ArrayLike, "B T"]) -> Int[Array, " B"]:
    """Return one more than the index of the last true entry, 0 where there is none."""
    return jnp.where(real, jnp.arange(1, real.shape[-1] + 1, dtype=jnp.int32), 0).max(-1)


# Target gather


def max_targets(run: RunConfig, task: Task, length: int) -> int | None:
    """Return the largest number of targets that count in an example of at most this length; None where all may."""
    return None if task.aligned else task.output_size(length) + (run.task.form != "encoder")


def target_capacity(max_targets: int | None, tokens: int, buckets: int) -> Capacities:
    """Return, for each bucket, the number of target positions that are gathered: at most half of its tokens.

    A bucket gathers where that is enough for answers that grow with the tokens, up to `max_targets` in the last bucket;
    otherwise, and for `max_targets=None`, its capacity is None and every logit is computed.

    Example:
      >>> target_capacity(32, tokens=64, buckets=4)
      (10, 18, 26, 32)
      >>> target_capacity(42, tokens=62, buckets=4)
      (None, None, None, None)
    """
    if max_targets is None:
        return (None,) * buckets
    halves = [bucket_size(tokens, bucket, buckets) // 2 for bucket in range(buckets)]
    needed = [bucket_size(max_targets, bucket, buckets) for bucket in range(buckets)]
    return tuple(min(max_targets, half) if need <= half else None for need, half in zip(needed, halves, strict=True))


def gather_targets(made: Sequences | SequencePair, count: int | None) -> tuple[Sequences, Int[Array, "B M"] | None]:
    """Return the targets to score, and the indices [B, count] of their logits, from the first answer token on.

    The indices are None, for all positions, where they would be more than half of them, for a pair, and for count=None.
    """
    if isinstance(made, SequencePair) or count is None or 2 * count > made.tokens.shape[-1]:
        return target_of(made), None
    _assert_batch(made)
    query_indices = made.answer[:, None] + jnp.arange(count, dtype=jnp.int32)[None, :]
    inside = query_indices < made.tokens.shape[1]
    query_indices = jnp.minimum(query_indices, made.tokens.shape[1] - 1)
    targets, mask = (gather(x, query_indices, -1) for x in (made.targets, made.mask))
    return made._replace(targets=targets, mask=mask & inside), query_indices


# Microbatches


def microbatch_size(model: ModelConfig, made: Sequences | SequencePair, population: int, platform: str) -> int | None:
    """Return how many examples each member of a population evaluates at once, a divisor of the batch; None: all.

    On accelerators (a `platform` that is not "cpu") all: smaller products would leave them idle.
    """
    if platform != "cpu":
        return None
    batch = target_of(made).tokens.shape[0]
    tokens = max(leaf.shape[-1] for leaf in jax.tree.leaves(made) if leaf.ndim > 1)
    bytes_of_one = 4 * population * tokens * max(model.hidden, model.model)
    most = max(MICROBATCH_BYTES // bytes_of_one, MIN_MICROBATCH_TOKENS // tokens, 1)
    return next(size for size in range(min(most, batch), 0, -1) if batch % size == 0)


def map_microbatches(
    f: Callable[[Sequences | SequencePair], PyTree], made: Sequences | SequencePair, size: int | None
) -> PyTree:
    """Return f(made), computed on `size` examples at a time; results of f have a leading axis of examples.

    No result may depend on other examples of the batch. With size=None, f is called once on all of them.
    """
    _assert_batch(made)
    batch = target_of(made).tokens.shape[0]
    if size is None or size == batch:
        return f(made)
    found = jax.lax.map(f, split_microbatches(made, size))
    chex.assert_tree_shape_prefix(found, (batch // size, size))
    return jax.tree.map(lambda x: x.reshape(batch, *x.shape[2:]), found)


def split_microbatches(
    made: Sequences | SequencePair, size: int, order: Int[Array, " B"] | None = None
) -> Sequences | SequencePair:
    """Return the examples, in this order, as microbatches of `size`: every leaf gets a leading axis of microbatches."""
    _assert_batch(made)
    chex.assert_is_divisible(target_of(made).tokens.shape[0], size)

    def split(leaf: Array) -> Array:
        # Examples are axis 0 of [B, T] and [B], and axis 1 of positions [L, B, T].
        axis = max(leaf.ndim - 2, 0)
        leaf = leaf if order is None else jnp.take(leaf, order, axis=axis)
        return jnp.moveaxis(leaf.reshape(*leaf.shape[:axis], -1, size, *leaf.shape[axis + 1 :]), axis, 0)

    return jax.tree.map(split, made)


def _assert_batch(made: Sequences | SequencePair) -> None:
    """Assert the shapes of a batch: [B, T] for tokens and targets, [*L, B, T] for positions, [B] for answers."""
    target = target_of(made)
    batch, length = target.tokens.shape
    chex.assert_shape((target.tokens, target.targets, target.mask, target.valid), (batch, length))
    chex.assert_shape(target.positions, (..., batch, length))
    chex.assert_shape((target.answer, target.answer_length), (batch,))
    chex.assert_type((target.tokens, target.targets, target.mask, target.valid), (int, int, bool, bool))
    if isinstance(made, SequencePair):
        chex.assert_shape((made.source, made.source_valid), (batch, made.source.shape[1]))
        chex.assert_shape(made.source_positions, (..., batch, made.source.shape[1]))
