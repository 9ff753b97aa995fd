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

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.sincos import sine_cosine
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype

Layout = Literal["half", "interleaved"]
LAYOUTS = ("half", "interleaved")


class Rotation(PositionEncoding):
    """An encoding that turns the queries and the keys of a head alike, as `turn` says.

    Example:
        >>> from attnjax.positions import MRoPE, RoPE
        >>> isinstance(RoPE(), Rotation), isinstance(MRoPE(), Rotation)
        (True, True)
    """

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses an odd head dimension."""
        del causal, pos
        if sizes is not None:
            check_even(type(self).__name__, sizes.head_dim)

    def map_q(self, p: EncodingParams, q: Float[Array, "T H"], pos: Num[ArrayLike, "T *A"]) -> Float[Array, "T H"]:
        """R(pos) q."""
        return self.turn(p, q, pos)

    def map_k(self, p: EncodingParams, k: Float[Array, "S H"], pos: Num[ArrayLike, "S *A"]) -> Float[Array, "S H"]:
        """R(pos) k."""
        return self.turn(p, k, pos)

    def turn(self, p: EncodingParams, x: Float[Array, "T H"], pos: Num[ArrayLike, "T *A"]) -> Float[Array, "T H"]:
        """R(pos) x: the pairs of the channels of every token, turned by its angles."""
        raise NotImplementedError


def rotate(
    x: Float[Array, "T H"],
    angle: Float[Array, "T c"],
    layout: Layout,
    magnitude: Float[Array, "T c"] | Float[Array, ""] | float = 1.0,
) -> Float[Array, "T H"]:
    """Turn and stretch the pairs in the first 2c channels of x; the other channels pass through.

    The magnitude is one per pair of every token, or one for all. Computed in float32, or float64 where x is, and returned in
    the type of x. Raises ValueError if 2c channels do not fit into H, or the layout is not known.

    Example:
        >>> rotate(jnp.array([[1.0, 2.0, 5.0]]), jnp.zeros((1, 1)), "half").tolist()
        [[1.0, 2.0, 5.0]]
    """
    check_layout(layout)
    chex.assert_rank(x, 2)
    chex.assert_shape(angle, (x.shape[0], None))
    width = 2 * angle.shape[1]
    if width > x.shape[1]:
        raise ValueError(f"{angle.shape[1]} pairs need {width} channels, got a head dimension of {x.shape[1]}")
    dtype = compute_dtype(x)
    magnitude = jnp.asarray(magnitude, dtype)
    sin, cos = sine_cosine(angle.astype(dtype))
    pairs = x[:, :width].astype(dtype)
    # The tables are small and made once for all heads and for queries and keys, since the magnitudes, in which these may
    # differ, come after; of x itself nothing is cut or joined, forward or backward.
    turned = pairs * merge(cos, cos, layout) + swapped(pairs, layout) * merge(-sin, sin, layout)
    turned = turned * (merge(magnitude, magnitude, layout) if magnitude.ndim else magnitude)
    return (
        jnp.concatenate([turned.astype(x.dtype), x[:, width:]], axis=-1)
        if width < x.shape[1]
        else turned.astype(x.dtype)
    )


def swapped(x: Float[Array, "T w"], layout: Layout) -> Float[Array, "T w"]:
    """The two channels of every pair in each other's place.

    Example:
        >>> swapped(jnp.array([[1, 2, 3, 4]]), "half").tolist()
        [[3, 4, 1, 2]]
    """
    chex.assert_rank(x, 2)
    shape, axis = ((2, -1), 1) if layout == "half" else ((-1, 2), 2)
    return jnp.flip(x.reshape(x.shape[0], *shape), axis).reshape(x.shape)


def merge(a: Float[Array, "T c"], b: Float[Array, "T c"], layout: Layout) -> Float[Array, "T w"]:
    """Channels of pairs from their first and their second ones.

    Example:
        >>> merge(jnp.array([[1, 2]]), jnp.array([[3, 4]]), "interleaved").tolist()
        [[1, 3, 2, 4]]
    """
    chex.assert_rank(a, 2)
    chex.assert_equal_shape([a, b])
    if layout == "half":
        return jnp.concatenate([a, b], axis=-1)
    return jnp.stack([a, b], axis=-1).reshape(a.shape[0], 2 * a.shape[1])


def check_layout(layout: str) -> None:
    """Raise ValueError for a layout that is not one of `LAYOUTS`.

    Example:
        >>> check_layout("half")
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {LAYOUTS}, got {layout!r}")


def check_even(encoding: str, head_dim: int) -> None:
    """Raise ValueError for a head dimension that does not fall into pairs.

    Example:
        >>> check_even("RoPE", 7)
        Traceback (most recent call last):
        ValueError: RoPE rotates pairs of channels: the head dimension must be even, got 7
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"{encoding} rotates pairs of channels: the head dimension must be even, got {head_dim}")
