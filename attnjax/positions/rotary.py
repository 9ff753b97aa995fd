"""Rotation of channel pairs, shared by all encodings that turn queries and keys.

Pair k of a vector is turned by an angle a_k and stretched by a magnitude m_k:

    (x_a, x_b) -> m_k (x_a cos a_k - x_b sin a_k,  x_a sin a_k + x_b cos a_k)

so that (R(m) q) . (R(n) k) = q . R(n - m) k. Published models differ in the two channels of a pair. In a rotated part of
2c channels,

    "half"          pairs (k, k + c)          GPT-NeoX, LLaMA as in Hugging Face transformers
    "interleaved"   pairs (2k, 2k + 1)        Su et al. 2021, GPT-J, LLaMA as released by Meta

The two are equal after a permutation of channels of both q and k, and not otherwise.

Reference: Su et al. 2021, section 3.2 (arXiv:2104.09864).
"""

from typing import Literal

import chex
import jax.numpy as jnp

from attnjax.positions.angles import sine_cosine
from attnjax.typing import Array, Float

Layout = Literal["half", "interleaved"]


def rotate(
    x: Float[Array, "T H"],
    angle: Float[Array, "T c"],
    layout: Layout,
    magnitude: Float[Array, "T c"] | Float[Array, ""] | None = None,
) -> Float[Array, "T H"]:
    """Returns x with the pairs in its first 2c channels turned and stretched; the other channels pass through.

    The magnitude is one per pair of every token, or one for all. Computed in the type of x, which is float32 or float64.
    Raises ValueError if 2c channels do not fit into H.

    Example:
        >>> rotate(jnp.array([[1.0, 2.0, 5.0]]), jnp.zeros((1, 1)), "half").tolist()
        [[1.0, 2.0, 5.0]]
    """
    chex.assert_rank(x, 2)
    chex.assert_shape(angle, (x.shape[0], None))
    width = 2 * angle.shape[1]
    if width > x.shape[1]:
        raise ValueError(f"{angle.shape[1]} pairs need {width} channels, got a head dimension of {x.shape[1]}")
    sin, cos = sine_cosine(angle.astype(x.dtype))
    pairs = x[:, :width]
    # The tables of sines and cosines are small and made once for all heads, and for queries and keys: magnitudes, in which
    # these may differ, come after. No slice of x is joined again, forward or backward.
    turned = pairs * merge(cos, cos, layout) + swapped(pairs, layout) * merge(-sin, sin, layout)
    if magnitude is not None:
        magnitude = jnp.asarray(magnitude, x.dtype)
        turned = turned * (merge(magnitude, magnitude, layout) if magnitude.ndim else magnitude)
    return jnp.concatenate([turned, x[:, width:]], axis=-1) if width < x.shape[1] else turned


def swapped(x: Float[Array, "T w"], layout: Layout) -> Float[Array, "T w"]:
    """Returns x with the two channels of every pair exchanged.

    Example:
        >>> swapped(jnp.array([[1, 2, 3, 4]]), "half").tolist()
        [[3, 4, 1, 2]]
    """
    chex.assert_rank(x, 2)
    shape, axis = ((2, -1), 1) if layout == "half" else ((-1, 2), 2)
    return jnp.flip(x.reshape(x.shape[0], *shape), axis).reshape(x.shape)


def merge(a: Float[Array, "T c"], b: Float[Array, "T c"], layout: Layout) -> Float[Array, "T w"]:
    """Returns the channels of pairs from their first and their second ones.

    Example:
        >>> merge(jnp.array([[1, 2]]), jnp.array([[3, 4]]), "interleaved").tolist()
        [[1, 3, 2, 4]]
    """
    chex.assert_rank(a, 2)
    chex.assert_equal_shape([a, b])
    if layout == "half":
        return jnp.concatenate([a, b], axis=-1)
    return jnp.stack([a, b], axis=-1).reshape(a.shape[0], 2 * a.shape[1])


def pairs_of(owner: str, head_dim: int) -> int:
    """Returns the pairs of a head. Raises ValueError for a head dimension that does not fall into pairs.

    Example:
        >>> pairs_of("RoPE", 7)
        Traceback (most recent call last):
        ValueError: RoPE turns pairs of channels: the head dimension must be even, got 7
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"{owner} turns pairs of channels: the head dimension must be even, got {head_dim}")
    return head_dim // 2
