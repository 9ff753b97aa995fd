"""Random orders on the device, whose content does not depend on the padding.

Places are sorted by 32 random bits each; two that tie, which happens once in 2^32 / size^2 draws or so, keep their
order.
"""

import jax
import jax.numpy as jnp

from attnjax.tasks.draws import within
from attnjax.typing import Array, Int, Key, UInt32

LAST = 2**32 - 1


def shuffled_ones(bits: UInt32[Array, " n"], ones: Int[Array, ""], length: Int[Array, ""]) -> Int[Array, " n"]:
    """`ones` <= length 1s, otherwise 0s: every choice of their places, of the first `length`, is equally likely."""
    noise = jnp.where(within(length, bits.shape[0]), bits, jnp.uint32(LAST))
    return (jnp.argsort(jnp.argsort(noise)).astype(jnp.int32) < ones).astype(jnp.int32)


def distinct(key: Key[Array, ""], symbols: int) -> Int[Array, " symbols"]:
    """All tokens 0 .. symbols - 1 in a random order: the first n are a draw without replacement."""
    return jnp.argsort(jax.random.bits(key, (symbols,), jnp.uint32)).astype(jnp.int32)
