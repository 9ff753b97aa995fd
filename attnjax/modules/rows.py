"""Some rows of what a layer reads: where only few features are asked for, its last layer computes no others."""

import dataclasses

import jax.numpy as jnp

from attnjax.attention import Mask
from attnjax.typing import Array, ArrayLike, Int


def taken(x: Array, rows: Int[Array, "B M"]) -> Array:
    """x[b, rows[b]] of x [B, T, D]: [B, M, D]."""
    return jnp.take_along_axis(x, rows[:, :, None], axis=1)


def taken_of(x: ArrayLike, rows: Int[Array, "B M"]) -> Int[Array, "B M"]:
    """The same of one number per row, [T] or [B, T]."""
    x = jnp.asarray(x)
    return x[rows] if x.ndim == 1 else jnp.take_along_axis(x, rows, axis=1)


def mask_of(mask: Mask, rows: Int[Array, "B M"]) -> Mask:
    """The mask of these queries, and of all keys."""
    index = rows if mask.q_index is None else taken_of(mask.q_index, rows)
    segments = None if mask.q_segments is None else taken_of(mask.q_segments, rows)
    allowed = mask.allowed
    if allowed is not None:
        allowed = jnp.asarray(allowed)
        allowed = allowed[rows] if allowed.ndim == 2 else taken(allowed, rows)
    return dataclasses.replace(mask, q_index=index, q_segments=segments, allowed=allowed)
