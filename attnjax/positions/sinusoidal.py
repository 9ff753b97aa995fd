"""Sinusoidal absolute positions.

    x_p <- x_p + PE_p,    PE_p = sin and cos of p * theta^(-2k/D),    k = 0 .. D/2 - 1

Acts on the embeddings (`embed`): x[T,D], pos[T] -> [T,D]. Nothing is learned. Hyper-parameters: `theta`, the base of
the frequencies (10,000), and `order`, where the sines and cosines go:

    "interleaved"    sin_0 cos_0 sin_1 cos_1 ...                 as in the paper
    "concatenated"   sin_0 sin_1 ... cos_0 cos_1 ...             as in tensor2tensor and Transformer-XL

The orders are permutations of one another. The factor sqrt(D) on the embeddings belongs to the token embedding.

Reference: Vaswani et al. 2017, section 3.5 (arXiv:1706.03762).
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from jax.typing import DTypeLike

from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.base import PositionEncoding, Sizes, validate
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree, compute_dtype

Order = Literal["interleaved", "concatenated"]
ORDERS = ("interleaved", "concatenated")


def sinusoidal_table(
    pos: Num[ArrayLike, " T"],
    width: int,
    theta: float = 10_000.0,
    order: Order = "interleaved",
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "T {width}"]:
    """Rows sin(p theta^(-2k/width)), cos(p theta^(-2k/width)) for positions of either sign, in float32 or float64.

    Absolute error below 1e-6 in float32 for every integer |p| < 2^31.
    Raises ValueError if `width` is odd or `order` is not known.
    """
    _check_width(width)
    _check_order(order)
    angle = angles(pos, exact(geometric(width // 2, theta)), dtype)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    if order == "concatenated":
        return jnp.concatenate([sin, cos], axis=-1)
    return jnp.stack([sin, cos], axis=-1).reshape(angle.shape[0], width)


@dataclasses.dataclass(frozen=True)
class Sinusoidal(PositionEncoding):
    """Sines and cosines of geometric frequencies, added to the embeddings (Vaswani et al. 2017, section 3.5).

    Raises ValueError for an odd model dimension, an unknown `order`, or a `theta` that is not positive and finite.
    """

    order: Order = "interleaved"
    theta: float = 10_000.0

    def __post_init__(self) -> None:
        validate("Sinusoidal", theta=self.theta)
        _check_order(self.order)

    def check(self, sizes: Sizes, *, causal: bool) -> None:
        """Refuse an odd model dimension."""
        del causal
        _check_width(sizes.model)

    def embed(self, shared: PyTree, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """x + PE(pos), in the type of x; the table is float32, or float64 where x is."""
        del shared
        dtype = compute_dtype(x)
        return (x.astype(dtype) + sinusoidal_table(pos, x.shape[-1], self.theta, self.order, dtype)).astype(x.dtype)


def _check_width(width: int) -> None:
    if width < 2 or width % 2:
        raise ValueError(f"sinusoidal positions pair a sine with a cosine: the width must be even, got {width}")


def _check_order(order: str) -> None:
    if order not in ORDERS:
        raise ValueError(f"Sinusoidal: order must be one of {ORDERS}, got {order!r}")
