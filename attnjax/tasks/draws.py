"""Random tokens, and arrays of tokens of which only a part is real. No draw depends on the size of its array."""

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.tasks.base import Example
from attnjax.typing import Array, Bool, Int, Key, UInt32


def draw(key: Key[Array, ""], size: int, symbols: int) -> Int[Array, " size"]:
    """Independent uniform tokens of 0 .. symbols - 1; a prefix of one stream, whatever the size.

    The remainder of 32 random bits: of two tokens, one may be likelier than the other by symbols in 2^32 parts.
    """
    return (jax.random.bits(key, (size,), jnp.uint32) % np.uint32(symbols)).astype(jnp.int32)


def pick(key: Key[Array, ""], low: int | Int[Array, ""], high: int | Int[Array, ""]) -> Int[Array, ""]:
    """A uniform whole number of low .. high, both included, as even as `draw`."""
    return between(jax.random.bits(key, (), jnp.uint32), low, high)


def between(bits: UInt32[Array, ""], low: int | Int[Array, ""], high: int | Int[Array, ""]) -> Int[Array, ""]:
    """The whole number of low .. high, both included, that 32 random bits stand for."""
    count = jnp.asarray(high - low + 1).astype(jnp.uint32)
    return low + (bits % count).astype(jnp.int32)


def within(length: Int[Array, ""], size: int) -> Bool[Array, " size"]:
    """Which of `size` places lie before `length`."""
    return jnp.arange(size, dtype=jnp.int32) < length


def take(tokens: Int[Array, " n"], index: Int[Array, " m"]) -> Int[Array, " m"]:
    """tokens[index], where the caller hides what an index out of range gives."""
    return tokens[jnp.clip(index, 0, tokens.shape[0] - 1)]


def padded(
    inputs: Int[Array, " I"],
    input_length: Int[Array, ""],
    targets: Int[Array, " O"],
    target_length: Int[Array, ""] | int,
    counted: Int[Array, ""] | int | None = None,
) -> Example:
    """One example, with 0 behind the lengths; the first `counted` targets count, by default all."""
    target_length = jnp.asarray(target_length, jnp.int32)
    counted = target_length if counted is None else jnp.asarray(counted, jnp.int32)
    return Example(
        jnp.where(within(input_length, inputs.shape[0]), inputs, 0),
        input_length,
        jnp.where(within(target_length, targets.shape[0]), targets, 0),
        target_length,
        within(counted, targets.shape[0]).astype(jnp.int32),
    )
