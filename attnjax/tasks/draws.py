"""Random tokens, permutations and padding. No random number depends on the size of the array it is drawn into.

Permutations sort entries by 32 random bits each; two that tie, about once in 2^32 / size^2 draws, keep their order.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer

from attnjax.tasks.base import Example
from attnjax.typing import Array, Bool, Int, Key, UInt32

LAST = 2**32 - 1
END = 2
"""The output token `end` behind an answer in bits."""


def draw(key: Key[Array, ""], size: int, symbols: int) -> Int[Array, " size"]:
    """Return independent uniform tokens of 0 .. symbols - 1, a prefix of one stream whatever the size.

    The remainder of 32 random bits: the probabilities of two tokens differ by at most symbols / 2^32 of themselves.
    """
    chex.assert_rank(key, 0)
    return (jax.random.bits(key, (size,), jnp.uint32) % np.uint32(symbols)).astype(jnp.int32)


def pick(key: Key[Array, ""], low: int | Int[Array, ""], high: int | Int[Array, ""]) -> Int[Array, ""]:
    """Return a uniform integer of low .. high, both included, with the bias of `draw`."""
    return between(jax.random.bits(key, (), jnp.uint32), low, high)


def between(bits: UInt32[Array, ""], low: int | Int[Array, ""], high: int | Int[Array, ""]) -> Int[Array, ""]:
    """Return the integer of low .. high, both included, that 32 random bits select."""
    chex.assert_type(bits, jnp.uint32)
    count = jnp.asarray(high - low + 1).astype(jnp.uint32)
    return low + (bits % count).astype(jnp.int32)


def within(length: Int[Array, ""], size: int) -> Bool[Array, " size"]:
    """Return the mask [size] of the indices below `length`."""
    chex.assert_rank(length, 0)
    return jnp.arange(size, dtype=jnp.int32) < length


def take(tokens: Integer[Array, " n"], index: Int[Array, "*m"]) -> Integer[Array, "*m"]:
    """Return tokens[index] with indices clipped to their range: the caller masks those out of range."""
    chex.assert_rank(tokens, 1)
    return tokens[jnp.clip(index, 0, tokens.shape[0] - 1)]


def padded(
    inputs: Int[Array, " I"],
    input_length: Int[Array, ""],
    targets: Int[Array, " O"],
    target_length: Int[Array, ""] | int,
    counted: Int[Array, ""] | int | None = None,
) -> Example:
    """Return one example, padded with 0 behind its lengths; the first `counted` targets count, by default all."""
    chex.assert_rank((inputs, targets), 1)
    chex.assert_rank(input_length, 0)
    target_length = jnp.asarray(target_length, jnp.int32)
    counted = target_length if counted is None else jnp.asarray(counted, jnp.int32)
    return Example(
        jnp.where(within(input_length, inputs.shape[0]), inputs, 0),
        input_length,
        jnp.where(within(target_length, targets.shape[0]), targets, 0),
        target_length,
        within(counted, targets.shape[0]).astype(jnp.int32),
    )


def ended(
    tokens: Int[Array, " I"],
    length: Int[Array, ""],
    digits: Int[Array, " n"],
    count: Int[Array, ""],
    size: Int[Array, ""],
) -> Example:
    """Return the example whose answer is `count` digits, `end`, and zeros up to `size`, of which those up to `end` count."""
    chex.assert_rank((tokens, digits), 1)
    chex.assert_rank((length, count, size), 0)
    place = jnp.arange(digits.shape[0], dtype=jnp.int32)
    answer = jnp.where(place < count, digits, jnp.where(place == count, END, 0))
    return padded(tokens, length, answer, size, counted=count + 1)


def shuffled_ones(bits: UInt32[Array, " n"], ones: Int[Array, ""], length: Int[Array, ""]) -> Int[Array, " n"]:
    """Return `ones` 1s at uniformly drawn indices below `length`, and 0s elsewhere."""
    chex.assert_rank((bits, ones, length), (1, 0, 0))
    chex.assert_type(bits, jnp.uint32)
    noise = jnp.where(within(length, bits.shape[0]), bits, jnp.uint32(LAST))
    return (jnp.argsort(jnp.argsort(noise)).astype(jnp.int32) < ones).astype(jnp.int32)


def distinct(key: Key[Array, ""], symbols: int) -> Int[Array, " symbols"]:
    """Return all tokens 0 .. symbols - 1 in random order: the first n are a sample without replacement."""
    chex.assert_rank(key, 0)
    return jnp.argsort(jax.random.bits(key, (symbols,), jnp.uint32)).astype(jnp.int32)
