"""Positions of a batch by the position policy of a run, the same for every encoding.

    arange        0, 1, ...
    offset        start + 0, 1, ...                 start uniform in 0 .. maximum - n
    randomized    a sorted sample without replacement of 0 .. maximum - 1           Ruoss et al. 2023 (arXiv:2305.16843)
    abacus        the index of each digit in its number, from start + 1; 0 elsewhere    McLeish et al. 2024 (arXiv:2405.17399)
    coupled       the significance of each digit, from start + 1; start elsewhere       Cho et al. 2024 (arXiv:2405.20671)

n is the number of real tokens of the example: its padding neither thins out a sample nor narrows the range of a start.
Padding tokens have positions below the maximum too. Positions are drawn for each example or once for the batch
(`sample_per`), and once or for each layer (`sample_per_layer`): they are then [L, B, T]. The source and
the target of an encoder-decoder have draws of their own, but one start of digits.
"""

import chex
import jax
import jax.numpy as jnp

from attnjax.config import PositionConfig, RunConfig
from attnjax.positions import indices
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair, Sequences
from attnjax.typing import Array, Bool, Int, Key

OF_DIGITS = ("abacus", "coupled")
ORDERS = ("reversed", "reversed_answer")
"""Of tasks whose answer has its lowest digit first; the two operands are written highest digit first in the second one."""


def check(run: RunConfig, task: Task) -> None:
    """Raise ValueError where the position policy of the run needs digits that the task, or the answer that is read, has not."""
    policy = run.positions.policy
    if policy not in OF_DIGITS:
        return
    if not digits(task):
        raise ValueError(
            f"positions.policy={policy!r} needs a task with numbers, such as 'addition'; {run.task.name!r} has no digits"
        )
    if run.task.form == "encoder":
        raise ValueError(
            f"positions.policy={policy!r} gives all empty slots of an encoder one position, so that nothing tells them apart: "
            "task.form must be 'decoder' or 'encoder_decoder', got 'encoder'"
        )
    if policy == "coupled" and getattr(task, "order", "") not in ORDERS:
        raise ValueError(
            f"positions.policy='coupled' needs an answer whose lowest digit comes first: task.options.order must be one of "
            f"{', '.join(ORDERS)}, got {getattr(task, 'order', None)!r}"
        )


def digits(task: Task) -> tuple[int, ...]:
    """Return the token ids of the digits of a task, () for a task without numbers."""
    return tuple(getattr(task, "digits", ()))


def sample_positions(
    run: RunConfig, task: Task, sequences: Sequences | SequencePair, key: Key[Array, ""], *, test: bool
) -> Sequences | SequencePair:
    """Return the sequences with positions drawn by the policy of the run.

    Args:
      run: its `positions` and, for positions of each layer, its number of layers.
      task: where the digits are read from (abacus).
      sequences: a batch at positions 0, 1, ...
      key: one typed key.
      test: whether the batch is of an evaluation. Its positions are 0, 1, ... unless `positions.at_test` is "same";
        those of abacus then count from 1 in every number.

    Raises:
      ValueError: where a sequence is longer than `positions.maximum`, or abacus has no digits, see `check`.
    """
    policy = run.positions
    fixed = test and policy.at_test == "arange"
    if policy.policy == "arange" or (fixed and policy.policy not in OF_DIGITS):
        return sequences
    check(run, task)
    keys = jax.random.split(key)
    if isinstance(sequences, SequencePair):
        target = sequences.target
        # Digits of equal significance share a position: numbers of the source and of the answer have one start.
        for_target = keys[0] if policy.policy in OF_DIGITS else keys[1]
        source_pos = _positions(run, task, sequences.source, sequences.source_valid, keys[0], fixed=fixed)
        target_pos = _positions(run, task, target.tokens, target.valid, for_target, fixed=fixed, answer=True)
        return sequences._replace(source_positions=source_pos, target=target._replace(positions=target_pos))
    return sequences._replace(positions=_positions(run, task, sequences.tokens, sequences.valid, keys[0], fixed=fixed))


def _positions(
    run: RunConfig,
    task: Task,
    tokens: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
    key: Key[Array, ""],
    *,
    fixed: bool,
    answer: bool = False,
) -> Int[Array, "*L B T"]:
    """Return the positions of these tokens, once or for each layer; `answer`: they have no operands."""
    chex.assert_equal_shape((tokens, valid))
    chex.assert_rank(tokens, 2)
    chex.assert_type((tokens, valid), (int, bool))

    def of_layer(key: Key[Array, ""]) -> Int[Array, "B T"]:
        """Return the positions of one layer, or those that all layers share."""
        if run.positions.policy in OF_DIGITS:
            start = _start(run.positions, tokens, key, fixed=fixed)
            if run.positions.policy == "abacus":
                return indices.abacus(tokens, digits(task), start)
            operands = 0 if answer or getattr(task, "order", "") == "reversed" else 2
            return indices.coupled(tokens, digits(task), start, operands)
        sample = {"offset": offset, "randomized": randomized}[run.positions.policy]
        return sample(run.positions, valid.sum(-1, dtype=jnp.int32), tokens.shape[1], key)

    if run.positions.sample_per_layer and not fixed:
        return jax.vmap(of_layer)(jax.random.split(key, run.model.layers))
    return of_layer(key)


def offset(policy: PositionConfig, n: Int[Array, " B"], size: int, key: Key[Array, ""]) -> Int[Array, "B T"]:
    """Return start + 0, 1, ..., size - 1 with start uniform in 0 .. maximum - n; padding is at most at maximum - 1.

    `indices.offset` draws the same distribution for rows without padding. Its bits differ: those of this function are
    part of what recorded runs trained on.
    """
    chex.assert_rank(n, 1)
    maximum = _maximum(policy, size)
    bits = jax.random.bits(key, (_draws(policy, n.shape[0]),), jnp.uint32)
    start = (bits % (maximum - n + 1).astype(jnp.uint32)).astype(jnp.int32)
    return jnp.minimum(start[:, None] + jnp.arange(size, dtype=jnp.int32)[None, :], maximum - 1)


def randomized(policy: PositionConfig, n: Int[Array, " B"], size: int, key: Key[Array, ""]) -> Int[Array, "B T"]:
    """Return n different positions of 0 .. maximum - 1 in order, then maximum - 1 for the padding."""
    chex.assert_rank(n, 1)
    return indices.randomized(key, size, _maximum(policy, size), batch=_draws(policy, n.shape[0]), counts=n)


def _start(
    policy: PositionConfig, tokens: Int[Array, "B T"], key: Key[Array, ""], *, fixed: bool
) -> int | Int[Array, " B"]:
    """Return where digits begin, uniform in 0 .. maximum - 1 (0 without one)."""
    if fixed or policy.maximum is None:
        return 0
    start = jax.random.randint(key, (_draws(policy, tokens.shape[0]),), 0, policy.maximum, jnp.int32)
    return jnp.broadcast_to(start, tokens.shape[:1])


def _draws(policy: PositionConfig, batch: int) -> int:
    """Return the number of independent draws: one for the batch, or one per example."""
    return 1 if policy.sample_per == "batch" else batch


def _maximum(policy: PositionConfig, size: int) -> int:
    maximum = policy.maximum
    if maximum is None or maximum < size:
        raise ValueError(f"positions.maximum={maximum} is shorter than the {size} tokens of a sequence")
    return maximum
