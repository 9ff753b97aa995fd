"""Padding of a batch: how long its examples really are, and the same examples without what none of them needs."""

import math

import jax
import jax.numpy as jnp

from attnjax.tasks.forms import SequencePair, Sequences, target_of
from attnjax.typing import Array, Bool, Int

Rooms = tuple[int | None, ...]
"""Of each size, for how many targets of an example it has room; None: for any number."""


def lengths(made: Sequences | SequencePair) -> Int[Array, " B"]:
    """The real tokens of each example; of a pair, of both sides."""
    return jnp.stack([_ends(real) for real in _real(made)]).sum(0, dtype=jnp.int32)


def least(made: Sequences | SequencePair, rooms: Rooms) -> Int[Array, ""]:
    """The first size, of as many as there are rooms, that holds every real token, and has room for every answer.

    `cut` to it loses none. The last has room for all. Room for an answer is from its first index on, see `train.answers`.
    """
    target = target_of(made)
    longest = [(real.shape[-1], _ends(real).max()) for real in _real(made)]
    answer = (_ends(target.mask) - target.answer).max()
    fits = []
    for i, room in enumerate(rooms):
        fit = [length <= end(size, i, len(rooms)) for size, length in longest]
        fit += [] if room is None else [answer <= room]
        fits.append(jnp.stack(fit).all())
    return jnp.argmax(jnp.stack(fits)).astype(jnp.int32)


def cut(made: Sequences | SequencePair, i: int, count: int) -> Sequences | SequencePair:
    """The same examples at size i of `count`: the first tokens of every row, as many as `end` says."""
    short = lambda leaf: leaf if leaf.ndim < 2 else leaf[..., : end(leaf.shape[-1], i, count)]
    return jax.tree.map(short, made)


def _real(made: Sequences | SequencePair) -> list[Bool[Array, "B _"]]:
    """Tokens that are read or counted, of each side."""
    target = target_of(made)
    sources = [made.source_valid] if isinstance(made, SequencePair) else []
    return [target.valid | target.mask, *sources]


def _ends(real: Bool[Array, "B T"]) -> Int[Array, " B"]:
    return jnp.where(real, jnp.arange(1, real.shape[-1] + 1, dtype=jnp.int32), 0).max(-1)


def end(size: int, i: int, count: int) -> int:
    """What size i of `count` holds of the whole: (i + 1.2) / count, rounded up, and all at last.

    The 0.2 are for groups of similar length: the longest of the first quarter, say, is about half of the time longer than
    a quarter of the longest of all, but rarely by more than a fifth.
    """
    return min(math.ceil(size * (5 * i + 6) / (5 * count)), size)
