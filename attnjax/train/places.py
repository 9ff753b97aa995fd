"""Positions of a batch by its policy: a factor of its own, the same for every encoding.

    arange        0, 1, ...
    offset        start + 0, 1, ...                 start uniform in 0 .. maximum - n
    randomized    a sorted sample without replacement of 0 .. maximum - 1           Ruoss et al. 2023 (arXiv:2305.16843)
    abacus        the place of each digit in its number, from start + 1; 0 elsewhere    McLeish et al. 2024 (arXiv:2405.17399)

n is the number of real tokens of the example: its padding neither thins out a sample nor narrows the range of a start.
Padding stays at positions that exist. What is drawn is drawn for each example, or shared by the batch; once, or for each
layer: positions are then [L, B, T].
"""

import jax
import jax.numpy as jnp

from attnjax.config import PositionConfig, RunConfig
from attnjax.positions import indices
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair, Sequences
from attnjax.typing import Array, Bool, Int, Key


def check(run: RunConfig, task: Task) -> None:
    """Raise ValueError where the task has not what the policy needs."""
    if run.positions.policy == "abacus" and not digits(task):
        raise ValueError(
            f"positions.policy='abacus' needs a task with numbers, such as 'addition'; {run.task.name!r} has no digits"
        )


def digits(task: Task) -> tuple[int, ...]:
    """The token ids of a task's digits, () for a task without numbers."""
    return tuple(getattr(task, "digits", ()))


def place(run: RunConfig, task: Task, sequences: Sequences | SequencePair, key: Key[Array, ""], *, test: bool):
    """The sequences with positions by the policy of the run.

    At the test they are 0, 1, ... unless the policy says "same"; numbers of abacus then begin at 1.
    Raises ValueError where a sequence is longer than `positions.maximum`, or abacus finds no digits.
    """
    policy = run.positions
    fixed = test and policy.at_test == "arange"
    if policy.policy == "arange" or (fixed and policy.policy != "abacus"):
        return sequences
    check(run, task)
    keys = jax.random.split(key)
    if isinstance(sequences, SequencePair):
        target = sequences.target
        source = _moved(run, task, sequences.source, sequences.source_valid, keys[0], fixed=fixed)
        placed = _moved(run, task, target.tokens, target.valid, keys[1], fixed=fixed)
        return sequences._replace(source_positions=source, target=target._replace(positions=placed))
    moved = _moved(run, task, sequences.tokens, sequences.valid, keys[0], fixed=fixed)
    return sequences._replace(positions=moved)


def _moved(
    run: RunConfig,
    task: Task,
    tokens: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
    key: Key[Array, ""],
    *,
    fixed: bool,
) -> Int[Array, "*L B T"]:
    """Positions of these tokens, once or for each layer."""

    def layer(key: Key[Array, ""]) -> Int[Array, "B T"]:
        if run.positions.policy == "abacus":
            return _abacus(run.positions, tokens, digits(task), key, fixed=fixed)
        draw = {"offset": offset, "randomized": randomized}[run.positions.policy]
        return draw(run.positions, valid.sum(-1, dtype=jnp.int32), tokens.shape[1], key)

    if run.positions.sample_per_layer and not fixed:
        return jax.vmap(layer)(jax.random.split(key, run.model.layers))
    return layer(key)


def offset(policy: PositionConfig, n: Int[Array, " B"], size: int, key: Key[Array, ""]) -> Int[Array, "B T"]:
    """start + 0, 1, ..., size - 1 with start uniform in 0 .. maximum - n; behind n at most maximum - 1."""
    maximum = _maximum(policy, size)
    share = jax.random.bits(key, (_draws(policy, n.shape[0]),), jnp.uint32)
    start = (share % (maximum - n + 1).astype(jnp.uint32)).astype(jnp.int32)
    return jnp.minimum(start[:, None] + jnp.arange(size, dtype=jnp.int32)[None, :], maximum - 1)


def randomized(policy: PositionConfig, n: Int[Array, " B"], size: int, key: Key[Array, ""]) -> Int[Array, "B T"]:
    """n different positions of 0 .. maximum - 1 in order, then maximum - 1. Memory: `maximum` numbers per draw."""
    maximum = _maximum(policy, size)
    everything = jnp.arange(maximum, dtype=jnp.int32)
    keys = jax.random.split(key, _draws(policy, n.shape[0]))
    drawn = jax.vmap(lambda key: jax.random.permutation(key, everything)[:size])(keys)
    real = jnp.arange(size, dtype=jnp.int32)[None, :] < n[:, None]
    drawn = jnp.broadcast_to(drawn, real.shape)
    return jnp.minimum(jnp.sort(jnp.where(real, drawn, maximum), axis=-1), maximum - 1)


def _abacus(
    policy: PositionConfig, tokens: Int[Array, "B T"], ids: tuple[int, ...], key: Key[Array, ""], *, fixed: bool
) -> Int[Array, "B T"]:
    """Places of digits in their numbers, from start + 1, start uniform in 0 .. maximum - 1 (0 without a maximum)."""
    if fixed or policy.maximum is None:
        return indices.abacus(tokens, ids)
    start = jax.random.randint(key, (_draws(policy, tokens.shape[0]),), 0, policy.maximum, jnp.int32)
    return indices.abacus(tokens, ids, jnp.broadcast_to(start, tokens.shape[:1]))


def _draws(policy: PositionConfig, batch: int) -> int:
    """How many draws a batch needs."""
    return 1 if policy.sample_per == "batch" else batch


def _maximum(policy: PositionConfig, size: int) -> int:
    maximum = policy.maximum
    if maximum is None or maximum < size:
        raise ValueError(f"positions.maximum={maximum} is shorter than the {size} tokens of a sequence")
    return maximum
