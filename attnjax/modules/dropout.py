"""Dropout with explicit keys: without a key nothing is dropped.

    y_i = x_i m_i / (1 - rate),   m_i ~ Bernoulli(1 - rate)

Reference: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".
"""

import chex
import jax
import jax.numpy as jnp

from attnjax.attention import Dropout
from attnjax.positions.checks import validate_key
from attnjax.typing import Array, Float, Key


def split(key: Key[Array, ""] | None, count: int) -> list[Key[Array, ""] | None]:
    """Returns `count` independent keys, or `count` times None without a key.

    Raises:
      ValueError: anything but one typed key.
    """
    if key is None:
        return [None] * count
    return list(jax.random.split(validate_key("dropout", key), count))


def drop(x: Float[Array, "*axes"], key: Key[Array, ""] | None, rate: float) -> Float[Array, "*axes"]:
    """Returns x with each entry set to 0 with probability `rate`, and divided by 1 - rate otherwise.

    Example:
      >>> sorted(set(drop(jnp.ones(100), jax.random.key(0), 0.5).tolist()))
      [0.0, 2.0]
      >>> drop(jnp.ones(3), None, 0.5).tolist()
      [1.0, 1.0, 1.0]
    """
    chex.assert_type(x, float)
    if key is None or rate == 0:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))


def attention_dropout(key: Key[Array, ""] | None, rate: float) -> Dropout | None:
    """Returns the `Dropout` that `attend` takes; None without a key or at rate 0."""
    return None if key is None or rate == 0 else Dropout(key, rate)
