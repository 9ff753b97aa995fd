"""Random permutations on the device, whose content does not depend on the padding.

Entries are sorted by 32 random bits each; two that tie, which happens about once in 2^32 / size^2 draws, keep their order.
"""

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.draws import within
from attnjax.typing import Array, Int, Key, UInt32

LAST = 2**32 - 1


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
