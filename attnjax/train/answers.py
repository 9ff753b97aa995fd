"""Where a task asks for few answers, logits are computed at their indices alone: the last layer makes no other rows."""

import jax.numpy as jnp

from attnjax.config import RunConfig
from attnjax.modules.rows import taken_of
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair, Sequences, target_of
from attnjax.train.padding import Rooms, end
from attnjax.typing import Array, Int


def most(run: RunConfig, task: Task, length: int) -> int | None:
    """The most targets that count in an example of this length or a shorter one; None where all may."""
    return None if task.aligned else task.output_size(length) + (run.task.form != "encoder")


def rooms(most: int | None, tokens: int, sizes: int) -> Rooms:
    """For how many targets of an example each size of a batch has room, where it makes room at all: half of its tokens.

    It does where answers that grow with the tokens, to `most` at the last size, are no more. None: room for any number.
    """
    if most is None:
        return (None,) * sizes
    halves = [end(tokens, i, sizes) // 2 for i in range(sizes)]
    return tuple(min(most, half) if end(most, i, sizes) <= half else None for i, half in enumerate(halves))


def asked(made: Sequences | SequencePair, count: int | None) -> tuple[Sequences, Int[Array, "B M"] | None]:
    """The targets, and the indices whose logits they need: `count` of each example from its answer on.

    None, for all indices, where these are at most twice as many, of a pair, and without a count.
    """
    if isinstance(made, SequencePair) or count is None or 2 * count > made.tokens.shape[-1]:
        return target_of(made), None
    return answer_only(made, count)


def answer_only(made: Sequences, count: int) -> tuple[Sequences, Int[Array, "B M"]]:
    """The targets of the first `count` indices from the answer on, and these indices; what does not count is lost."""
    rows = made.answer[:, None] + jnp.arange(count, dtype=jnp.int32)[None, :]
    inside, rows = rows < made.tokens.shape[1], jnp.minimum(rows, made.tokens.shape[1] - 1)
    targets, mask = (taken_of(x, rows) for x in (made.targets, made.mask))
    return made._replace(targets=targets, mask=mask & inside), rows
