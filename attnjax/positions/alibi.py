"""ALiBi: attention with linear biases.

    score[i, j] = scale * q_i . k_j - m_h * (i - j)          symmetric=False, under a causal mask
    score[i, j] = scale * q_i . k_j - m_h * |i - j|          symmetric=True
    score[i, j] = scale * q_i . k_j - m_h * (i - j - past)   symmetric=True and past > 0, for keys in the past (i > j)

Without a causal mask, `past` is what tells past from future: Ruoss et al. 2023 (arXiv:2305.16843) use 1/2.

Acts through `bias`. Nothing is learned: the slope m_h of head h = 1..N is the constant 2^(-8h/N) where N is a power of
two; otherwise the slopes of the largest power of two P below N come first, followed by every other slope of 2P heads.

Causal ALiBi is also a product of extra columns, since a softmax ignores what is constant along a row:

    -m (i - j) = m * j - (m * i) = [m0 m0 m1 m1 m2 m2] . [a b a b a b] - (m * i)
    m = m0 + m1 + m2,   a = 256 * floor(j / 256),   b = j mod 256

Every m0, m1, m2, a and b is exact in bfloat16 for 0 <= j < 65,536, so kernels without a bias argument can run it in any
type.

Reference: Press, Smith, Lewis 2022, arXiv:2108.12409, section 3; the rule for other N is that of the authors' code.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, validate
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree, compute_dtype

BLOCK = 256
"""Positions are split at this power of two: the largest whose multiples and remainders both fit bfloat16's 8 bits."""


@dataclasses.dataclass(frozen=True)
class ALiBi(PositionEncoding):
    """Linear bias -m_h * n, or -m_h * |n| with `symmetric`, where n = q_pos - k_pos.

    Hyper-parameters: `slopes`, one positive number per head (None: the published ones); `symmetric`, needed wherever
    the mask is not causal; with it `past`, by how much keys in the past look nearer. `bind` hands the slopes to the
    hooks as `head`, float32 [N].

    The columns equal the bias up to a constant per query and the rounding of a float32 product, which is about
    2^-24 * m_h * (largest position): 0.002 for a slope of 1/2 at position 65,536.
    """

    slopes: tuple[float, ...] | None = None
    symmetric: bool = False
    past: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.symmetric, bool):
            raise ValueError(f"ALiBi: symmetric must be True or False, got {self.symmetric!r}")
        if self.past != 0:
            validate("ALiBi", past=self.past)
            if not self.symmetric:
                raise ValueError(f"ALiBi: past belongs to symmetric=True, got past={self.past} without it")
        if self.slopes is None:
            return
        if not isinstance(self.slopes, tuple | list) or not self.slopes:
            raise ValueError(f"ALiBi: slopes must be a tuple with one positive number per head, got {self.slopes!r}")
        validate("ALiBi", slopes=self.slopes)
        object.__setattr__(self, "slopes", tuple(self.slopes))

    def bind(self, params: EncodingParams, heads: int, length: Any = None) -> EncodingParams:
        """The slopes of `heads` heads as `head`. Raises ValueError where there are not as many own slopes."""
        del params, length
        if self.slopes is not None and len(self.slopes) != heads:
            raise ValueError(f"ALiBi: got {len(self.slopes)} slopes for {heads} heads, need one per head")
        return EncodingParams(head=np.asarray(self.slopes or published_slopes(heads), np.float32))

    def as_data(self, sizes: Sizes) -> tuple[PositionEncoding, EncodingParams]:
        """The slopes."""
        return dataclasses.replace(self, slopes=None), self.bind(EncodingParams(), sizes.heads)

    def bias(self, head: PyTree, shared: PyTree, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """-m * n, or -m * |n| where symmetric, less m * past for n > 0."""
        del shared
        dtype = compute_dtype(head)
        distance = (jnp.abs(n) if self.symmetric else jnp.asarray(n)).astype(dtype)
        if self.past:
            distance = jnp.where(n > 0, distance - jnp.asarray(self.past, dtype), distance)
        return -jnp.asarray(head, dtype) * distance

    def columns_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T h"], pos: Num[ArrayLike, " T"], scale: Float[Array, ""]
    ) -> Float[Array, "T 6"]:
        """The slope in three bfloat16 parts, each for both parts of a key's position."""
        del shared, pos, scale
        parts = jnp.repeat(_bfloat16_parts(jnp.asarray(head, jnp.float32)), 2)
        return jnp.broadcast_to(parts.astype(q.dtype), (q.shape[0], parts.size))

    def columns_k(self, shared: PyTree, k: Float[Array, "S h"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S 6"]:
        """The position of a key as a multiple of 256 and a remainder, once for each part of the slope."""
        del shared
        pos = jnp.asarray(pos)
        multiple = jnp.floor_divide(pos, BLOCK) * BLOCK
        return jnp.tile(jnp.stack([multiple, pos - multiple], axis=1).astype(k.dtype), (1, 3))

    def hooks(self) -> frozenset[str]:
        """The bias, and its columns where it is linear in n."""
        return super().hooks() - {"columns_q", "columns_k"} if self.symmetric else super().hooks()

    def check(self, sizes: Sizes, *, causal: bool) -> None:
        """Raises ValueError without a causal mask unless symmetric: the farther in the future, the higher the score."""
        del sizes
        if not (causal or self.symmetric):
            raise ValueError(
                "ALiBi(symmetric=False) rewards keys in the future the more the farther they are, so it needs a causal "
                "mask; pass Mask(causal=True), or use ALiBi(symmetric=True)"
            )


def published_slopes(heads: int) -> tuple[float, ...]:
    """2^(-8h/N) for h = 1..N where N is a power of two, otherwise as the module docstring says."""
    power = 2 ** (heads.bit_length() - 1)
    below = _geometric_slopes(power)
    return below + _geometric_slopes(2 * power)[0::2][: heads - power]


def _geometric_slopes(heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1))


def _bfloat16_parts(slope: Float[Array, ""]) -> Float[Array, " 3"]:
    """Three numbers of 8 significant bits that sum to a float32 exactly."""
    # Not a pair of casts: XLA may keep excess precision and drop them.
    first = jax.lax.reduce_precision(slope, exponent_bits=8, mantissa_bits=7)
    second = jax.lax.reduce_precision(slope - first, exponent_bits=8, mantissa_bits=7)
    return jnp.stack([first, second, slope - first - second])
