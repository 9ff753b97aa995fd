"""Random streams: every kind of draw has a tag of its own, so that no two kinds ever share a key, whatever their seeds.

    stream(seed, "dropout")      the key of a run's dropout, from which a step's key is folded
    branch(key, "content")       one of the draws of a batch

A key of `jax.random` and the keys that are split from it, `split(key, n)[i] == fold_in(key, i)`, form a tree. Seeds are its
roots, tags the level below. No stream draws from the key of a seed itself.
"""

import jax

from attnjax.typing import ArrayLike, Key, UInt32

TAGS = ("parameters", "dropout", "lengths", "content", "positions", "test", "validation")
"""The tag of a stream is its place here: append new ones."""


def stream(seed: UInt32[ArrayLike, ""] | int, name: str) -> Key[jax.Array, ""]:
    """Return the key of the stream of this name and seed.

    Example:
      >>> jax.random.key_data(stream(7, "content")).tolist() == jax.random.key_data(stream(7, "positions")).tolist()
      False
    """
    return branch(jax.random.key(seed), name)


def branch(key: Key[jax.Array, ""], name: str) -> Key[jax.Array, ""]:
    """Return the key of a stream of this name below a key."""
    return jax.random.fold_in(key, TAGS.index(name))
