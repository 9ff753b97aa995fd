"""Rotation of channel pairs, shared by RoPE and xPos.

Pair k of a vector is turned by an angle a_k and stretched by a magnitude m_k:

    (x_a, x_b) -> m_k (x_a cos a_k - x_b sin a_k,  x_a sin a_k + x_b cos a_k)

so that (R(m) q) . (R(n) k) = q . R(n - m) k. Which two channels are a pair differs between published models. Of a
rotated part of 2c channels,

    "half"          pairs (k, k + c)          GPT-NeoX, LLaMA as in Hugging Face transformers
    "interleaved"   pairs (2k, 2k + 1)        Su et al. 2021, GPT-J, LLaMA as released by Meta

The two are equal after a permutation of channels of both q and k, and not otherwise.

Reference: Su et al. 2021, section 3.2 (arXiv:2104.09864).
"""

from typing import Literal

import chex
import jax.numpy as jnp

from attnjax.positions.waves import sine_cosine
from attnjax.typing import Array, Float, compute_dtype

Layout = Literal["half", "interleaved"]
LAYOUTS = ("half", "interleaved")


def rotate(
    x: Float[Array, "T H"],
    angle: Float[Array, "T c"],
    layout: Layout,
    magnitude: Float[Array, "T c"] | float = 1.0,
) -> Float[Array, "T H"]:
    """Turn and stretch the pairs in the first 2c channels of x; the other channels pass through.

    Computed in float32, or float64 where x is, and returned in the type of x.
    Raises ValueError if 2c channels do not fit into H, or the layout is not known.
    """
    check_layout(layout)
    chex.assert_shape(angle, (x.shape[0], None))
    width = 2 * angle.shape[1]
    if width > x.shape[1]:
        raise ValueError(f"{angle.shape[1]} pairs need {width} channels, got a head dimension of {x.shape[1]}")
    dtype = compute_dtype(x)
    magnitude = jnp.asarray(magnitude, dtype)
    sin, cos = (magnitude * wave for wave in sine_cosine(angle.astype(dtype)))
    pairs = x[:, :width].astype(dtype)
    # The tables are small and made once for all heads; of x itself nothing is cut or joined, forward or backward.
    turned = pairs * merge(cos, cos, layout) + swapped(pairs, layout) * merge(-sin, sin, layout)
    return (
        jnp.concatenate([turned.astype(x.dtype), x[:, width:]], axis=-1)
        if width < x.shape[1]
        else turned.astype(x.dtype)
    )


def swapped(x: Float[Array, "T w"], layout: Layout) -> Float[Array, "T w"]:
    """The two channels of every pair in each other's place."""
    shape, axis = ((2, -1), 1) if layout == "half" else ((-1, 2), 2)
    return jnp.flip(x.reshape(x.shape[0], *shape), axis).reshape(x.shape)


def merge(a: Float[Array, "T c"], b: Float[Array, "T c"], layout: Layout) -> Float[Array, "T w"]:
    """Channels of pairs from their first and their second ones."""
    if layout == "half":
        return jnp.concatenate([a, b], axis=-1)
    return jnp.stack([a, b], axis=-1).reshape(a.shape[0], 2 * a.shape[1])


def check_layout(layout: str) -> None:
    """Raise ValueError for a layout that is not one of `LAYOUTS`."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {LAYOUTS}, got {layout!r}")


def check_even(encoding: str, head: int) -> None:
    """Raise ValueError for a head dimension that does not fall into pairs."""
    if head < 2 or head % 2:
        raise ValueError(f"{encoding} rotates pairs of channels: the head dimension must be even, got {head}")
