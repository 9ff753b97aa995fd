"""A training batch in parts: examples of similar length together, each part at the least of a few sizes that holds it.

Lengths are drawn, so half of a batch is padding, which no target depends on. The examples are sorted by length, cut into
groups, and the gradients of the groups are added up: what is real stays as it is, and a step changes by rounding alone.
Where one length is drawn for the whole batch (`task.length_per="batch"`), the batch is one group.

Measured on two cores (128 examples of 3 .. 64 tokens, of copying): a step of 2 layers, D = 64, takes 0.75 of its time, one of
4 layers, D = 128, 0.72; compiling four sizes takes 12 s longer than one. Eight groups were slower than four in the small
model and no faster in the large one; six sizes gained nothing.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attnjax.config import RunConfig
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair, Sequences, target_of
from attnjax.train import answers
from attnjax.train.grouping import grouped
from attnjax.train.padding import cut, least, lengths
from attnjax.typing import Array, Int, PyTree

SIZES = 4
GROUPS = 4
LEAST_TOKENS = 4096
"""A batch of fewer leaves too little for each group to keep a CPU busy."""
LEAST_WORK = 2**22
"""Tokens of a whole run below which it ends before the sizes have paid for their compilation."""


class Parts(NamedTuple):
    """How many groups a batch is cut into, and how many sizes are compiled."""

    groups: int = 1
    sizes: int = 1


def parts(run: RunConfig, task: Task) -> Parts:
    """The parts of the batches of a run.

    On an accelerator one: members of a population are mapped there, and a choice that is mapped computes all.
    """
    low, high = run.task.length_min, run.task.length_max
    tokens = run.train.batch * (high + (0 if task.aligned else task.output_size(high)))
    small = tokens < LEAST_TOKENS or tokens * run.train.steps < LEAST_WORK
    if small or 2 * low > high or jax.default_backend() != "cpu":
        return Parts()
    return Parts(1 if run.task.length_per == "batch" else math.gcd(GROUPS, run.train.batch), SIZES)


def in_parts(
    f: Callable[[Sequences | SequencePair, Int[Array, ""] | int, int | None], PyTree],
    made: Sequences | SequencePair,
    parts: Parts,
    zero: PyTree,
    *,
    most: int | None = None,
) -> PyTree:
    """The sum over groups of f(group, number of the group, most targets of an example of it), which are like `zero`.

    `most`: no example counts more targets; None: any number, as f is told then too.
    """
    rooms = answers.rooms(most, target_of(made).tokens.shape[-1], parts.sizes)

    def at(size: int, group: Sequences | SequencePair, i: Int[Array, ""] | int):
        return f(cut(group, size, parts.sizes), i, rooms[size])

    def each(group: Sequences | SequencePair, i: Int[Array, ""] | int):
        branches = [functools.partial(at, size) for size in range(parts.sizes)]
        return branches[0](group, i) if len(branches) == 1 else jax.lax.switch(least(group, rooms), branches, group, i)

    if parts.groups == 1:
        return each(made, 0)
    order = jnp.argsort(lengths(made))
    groups = grouped(made, order.shape[0] // parts.groups, order)
    add = lambda total, group: (jax.tree.map(jnp.add, total, each(*group)), None)
    return jax.lax.scan(add, zero, (groups, jnp.arange(parts.groups, dtype=jnp.int32)))[0]
