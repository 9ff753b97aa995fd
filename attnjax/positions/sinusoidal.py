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
from typing import Any, Literal

import chex
import jax.numpy as jnp
from jax.typing import DTypeLike

from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.checks import validate
from attnjax.positions.population import numeric
from attnjax.positions.sincos import sine_cosine
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype

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

    Example:
        >>> sinusoidal_table(jnp.array([0]), 4).tolist()
        [[0.0, 1.0, 0.0, 1.0]]
    """
    chex.assert_rank(pos, 1)
    _check_width(width)
    _check_order(order)
    return _sines_and_cosines(angles(pos, exact(geometric(width // 2, theta)), dtype), order)


def _sines_and_cosines(angle: Float[Array, "T c"], order: Order) -> Float[Array, "T w"]:
    """Sines and cosines of angles, in their places."""
    sin, cos = sine_cosine(angle)
    if order == "concatenated":
        return jnp.concatenate([sin, cos], axis=-1)
    return jnp.stack([sin, cos], axis=-1).reshape(angle.shape[0], 2 * angle.shape[1])


@dataclasses.dataclass(frozen=True)
class Sinusoidal(PositionEncoding):
    """Sines and cosines of geometric frequencies, added to the embeddings (Vaswani et al. 2017, section 3.5).

    Raises ValueError for an odd model dimension, an unknown `order`, or a `theta` that is not positive and finite.

    Example:
        >>> p = Sinusoidal().constants(Sizes(4, 1, 1, 4))
        >>> Sinusoidal().embed(p, jnp.zeros((1, 4)), jnp.array([0])).tolist()
        [[0.0, 1.0, 0.0, 1.0]]
    """

    order: Order = "interleaved"
    theta: float = numeric(10_000.0)

    def __post_init__(self) -> None:
        validate("Sinusoidal", theta=self.theta)
        _check_order(self.order)

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses an odd model dimension."""
        del causal, pos
        if sizes is not None:
            _check_width(sizes.model)

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """shared={"frequencies": those of D / 2 pairs}."""
        del length
        return EncodingParams(shared={"frequencies": exact(geometric(sizes.model // 2, self.theta))})

    def embed(self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """x + PE(pos), in the type of x; the table is float32, or float64 where x is."""
        dtype = compute_dtype(x)
        _check_width(x.shape[-1])
        table = _sines_and_cosines(angles(pos, p.shared["frequencies"], dtype), self.order)
        chex.assert_equal_shape([x, table])
        return (x.astype(dtype) + table).astype(x.dtype)


def _check_width(width: int) -> None:
    if width < 2 or width % 2:
        raise ValueError(f"sinusoidal positions pair a sine with a cosine: the width must be even, got {width}")


def _check_order(order: str) -> None:
    if order not in ORDERS:
        raise ValueError(f"Sinusoidal: order must be one of {ORDERS}, got {order!r}")
