"""Dropout of activations by explicit keys; without a key, nothing is dropped."""

import jax
import jax.numpy as jnp

from attnjax.attention import Dropout
from attnjax.typing import Array, Float, Key


def split(key: Key[Array, ""] | None, count: int) -> list[Key[Array, ""] | None]:
    """`count` independent keys, or as many None. Raises ValueError unless the key is one typed key."""
    if key is None:
        return [None] * count
    return list(jax.random.split(check_key(key), count))


def check_key(key: Key[Array, ""]) -> Key[Array, ""]:
    """The key. Raises ValueError unless it is one typed key."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()):
        raise ValueError(f"key must be one typed key made by jax.random.key, got {key!r}")
    return key


def drop(x: Float[Array, "*axes"], key: Key[Array, ""] | None, rate: float) -> Float[Array, "*axes"]:
    """Each entry set to 0 with probability `rate`, and the others divided by 1 - rate."""
    if key is None or rate == 0:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))


def of_weights(key: Key[Array, ""] | None, rate: float) -> Dropout | None:
    """The record that `attend` takes, if there is anything to drop."""
    return None if key is None or rate == 0 else Dropout(key, rate)
