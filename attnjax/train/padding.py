"""Padding of a batch: how long its examples really are, and the same examples without what none of them needs."""

import math

import jax
import jax.numpy as jnp

from attnjax.tasks.forms import SequencePair, Sequences, target_of
from attnjax.typing import Array, Bool, Int


def lengths(made: Sequences | SequencePair) -> Int[Array, " B"]:
    """The real tokens of each example; of a pair, of both sides."""
    return jnp.stack([_ends(real) for real in _real(made)]).sum(0, dtype=jnp.int32)


def least(made: Sequences | SequencePair, count: int) -> Int[Array, ""]:
    """The smallest of `count` sizes, 0 .. count - 1, that holds every real token: `cut` to it loses none."""
    return jnp.stack([_least(real, count) for real in _real(made)]).max()


def cut(made: Sequences | SequencePair, i: int, count: int) -> Sequences | SequencePair:
    """The same examples at size i of `count`: the first (i + 1) / count of every row, rounded up."""
    short = lambda leaf: leaf if leaf.ndim < 2 else leaf[..., : _end(leaf.shape[-1], i, count)]
    return jax.tree.map(short, made)


def _real(made: Sequences | SequencePair) -> list[Bool[Array, "B _"]]:
    """Tokens that are read or counted, of each side."""
    target = target_of(made)
    sources = [made.source_valid] if isinstance(made, SequencePair) else []
    return [target.valid | target.mask, *sources]


def _ends(real: Bool[Array, "B T"]) -> Int[Array, " B"]:
    return jnp.where(real, jnp.arange(1, real.shape[-1] + 1, dtype=jnp.int32), 0).max(-1)


def _least(real: Bool[Array, "B T"], count: int) -> Int[Array, ""]:
    ends = [_end(real.shape[-1], i, count) for i in range(count)]
    return (_ends(real).max() > jnp.asarray(ends[:-1], jnp.int32)).sum(dtype=jnp.int32)


def _end(size: int, i: int, count: int) -> int:
    return math.ceil(size * (i + 1) / count)
