"""Dropout of attention weights that does not depend on tiles: a pure function of key, example, head, query and key index."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from attnjax.positions.checks import is_number
from attnjax.typing import Array, Float, Key, UInt32

GENERATOR = "threefry2x32"
"""Under `jax.vmap` its numbers are those of each key alone. Those of rbg are not, so that they would depend on tiles."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """Drop attention weights with probability `rate`. The same key drops the same (query, key) pairs in every
    implementation, whatever its tiles and whichever generator the key is of. Raises ValueError unless 0 <= rate < 1 and `key`
    is a typed PRNG key.

    Example:
        >>> import jax
        >>> from attnjax import Dropout
        >>> Dropout(jax.random.key(0), rate=0.1).rate
        0.1
    """

    key: Key[Array, ""]
    rate: float = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        if not is_number(self.rate) or not 0 <= self.rate < 1:
            raise ValueError(f"Dropout: rate must be in [0, 1), got {self.rate!r}")
        # What stands for a key while JAX transforms a function has a type, or none where it only rebuilds a tree.
        dtype = getattr(self.key, "dtype", None)
        if isinstance(self.key, int | float | str) or (
            dtype is not None and not jnp.issubdtype(dtype, jax.dtypes.prng_key)
        ):
            came = repr(self.key) if dtype is None else f"dtype {dtype}"
            raise ValueError(f"Dropout: key must be a typed PRNG key, jax.random.key(seed), got {came}")


def head_keys(dropout: Dropout, shape: tuple[int, ...]) -> UInt32[Array, "B K G d"]:
    """One key per example and query head, as raw words."""
    return jax.random.key_data(jax.random.split(_as_threefry(dropout.key), shape))


def _as_threefry(key: Key[Array, ""]) -> Key[Array, ""]:
    """The key, or one that is made from all words of a key of another generator."""
    if str(jax.random.key_impl(key)) == GENERATOR:
        return key
    # Not from numbers that the other generator draws, which depend on the device and, under `jax.vmap`, on the other keys.
    words = jax.random.key_data(key).reshape(-1)
    start = jax.random.key(0, impl=GENERATOR)
    return functools.reduce(jax.random.fold_in, [words[i] for i in range(words.size)], start)


def kept(
    keys: UInt32[Array, "B K G 2"], rate: float, rows: Array, cols: Array, dtype: jnp.dtype
) -> Float[Array, "B K G t s"]:
    """0 or 1/(1 - rate) for each query row and key column: a pure function of (key, batch, head, row, column)."""

    def pair(data, i, j):
        key = jax.random.wrap_key_data(data, impl=GENERATOR)
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, i), j))

    over = jax.vmap(jax.vmap(pair, in_axes=(None, None, 0)), in_axes=(None, 0, None))
    for _ in range(3):
        over = jax.vmap(over, in_axes=(0, None, None))
    return (over(keys, rows, cols) >= rate).astype(dtype) / jnp.asarray(1 - rate, dtype)
