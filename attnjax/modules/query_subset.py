"""Restricts the last layer of a model to a subset of query positions, where only those features are asked for.

The layer still projects keys and values of all T positions; queries, feed-forward and logits are computed at the M
positions `query_indices` [B, M] alone. Each function here gathers these indices from one kind of input of the layer.
"""

import dataclasses
from typing import Any

import chex
import jax.numpy as jnp

from attnjax.attention import Mask
from attnjax.positions import Compose, PositionEncoding, Trait
from attnjax.typing import Array, ArrayLike, Float, Int, PyTree


def gather_vectors(x: Array, query_indices: Int[Array, "B M"]) -> Array:
    """Returns x[b, query_indices[b]]: [B, M, D] of features x [B, T, D], or [B, M, S] of a mask [B, T, S].

    Example:
      >>> x = jnp.arange(6.0).reshape(1, 3, 2)
      >>> gather_vectors(x, jnp.array([[2, 0]])).tolist()
      [[[4.0, 5.0], [0.0, 1.0]]]
    """
    chex.assert_rank([x, query_indices], [3, 2])
    chex.assert_equal_shape_prefix([x, query_indices], 1)
    return jnp.take_along_axis(x, query_indices[:, :, None], axis=1)


def gathered(x: Float[Array, "B T D"], query_indices: Int[Array, "B M"] | None) -> Float[Array, "B M D"]:
    """Returns the features at `query_indices`, or all of them where it is None.

    Example:
      >>> x = jnp.arange(6.0).reshape(1, 3, 2)
      >>> gathered(x, None).shape, gathered(x, jnp.array([[2]])).tolist()
      ((1, 3, 2), [[[4.0, 5.0]]])
    """
    return x if query_indices is None else gather_vectors(x, query_indices)


def gather_scalars(x: ArrayLike, query_indices: Int[Array, "B M"]) -> Int[Array, "B M"]:
    """Returns x[b, query_indices[b]] of numbers x [B, T], one per token, or x[query_indices[b]] of x [T].

    Example:
      >>> gather_scalars(jnp.array([10, 11, 12]), jnp.array([[2, 0]])).tolist()
      [[12, 10]]
    """
    x = jnp.asarray(x)
    chex.assert_rank([x, query_indices], [{1, 2}, 2])
    if x.ndim == 1:
        return x[query_indices]
    chex.assert_equal_shape_prefix([x, query_indices], 1)
    return jnp.take_along_axis(x, query_indices, axis=1)


def gather_positions(pos: PyTree, query_indices: Int[Array, "B M"], encoding: PositionEncoding, length: int) -> PyTree:
    """Returns the positions of the queries at `query_indices`: [B, M], with their axes of heads and coordinates.

    Positions are those of `length` tokens, as `attend` takes them. In a composition with coordinates the result is a tuple
    with the positions of each part, because parts differ in the coordinates that they read.

    Example:
      >>> from attnjax.positions import RoPE
      >>> gather_positions(jnp.array([5, 7, 9]), jnp.array([[2, 0]]), RoPE(), length=3).tolist()
      [[9, 5]]
    """
    if isinstance(encoding, Compose) and (isinstance(pos, tuple) or Trait.AXES in encoding.traits):
        each = pos if isinstance(pos, tuple) else (pos,) * len(encoding.parts)
        parts = zip(encoding.parts, each, strict=True)
        return tuple(gather_positions(one, query_indices, part, length) for part, one in parts)
    pos = jnp.asarray(pos)
    coordinates = _has_coordinates(pos, query_indices.shape[0], length, encoding)
    axis = pos.ndim - 1 - coordinates
    if axis == 0:
        found = pos[query_indices]
    else:
        shape = [1] * pos.ndim
        shape[0], shape[axis] = query_indices.shape
        found = jnp.take_along_axis(pos, query_indices.reshape(shape), axis=axis)
    return _spread(found, encoding) if Trait.AXES in encoding.traits and not coordinates else found


def _has_coordinates(pos: Array, batch: int, length: int, encoding: Any) -> bool:
    """Returns whether the last axis is one of coordinates: those of a token of text may be left out, as in `attend`."""
    if Trait.AXES not in encoding.traits or Trait.CONTEXT in encoding.traits:
        return Trait.AXES in encoding.traits
    return pos.shape not in ((length,), (batch, length)) or pos.shape == (length, encoding.axes)


def _spread(pos: Array, encoding: Any) -> Array:
    """Returns positions without coordinates, or with equal ones where they are a square, which `attend` could not tell."""
    A = encoding.axes
    return jnp.broadcast_to(pos[..., None], (A, A, A)) if pos.shape == (A, A) else pos


def gather_mask(mask: Mask, query_indices: Int[Array, "B M"]) -> Mask:
    """Returns the mask of the queries at `query_indices` and of all keys."""
    index = query_indices if mask.q_index is None else gather_scalars(mask.q_index, query_indices)
    segments = None if mask.q_segments is None else gather_scalars(mask.q_segments, query_indices)
    allowed = mask.allowed
    if allowed is not None:
        allowed = jnp.asarray(allowed)
        allowed = allowed[query_indices] if allowed.ndim == 2 else gather_vectors(allowed, query_indices)
    return dataclasses.replace(mask, q_index=index, q_segments=segments, allowed=allowed)
