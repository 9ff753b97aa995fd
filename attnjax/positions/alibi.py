"""ALiBi: attention with linear biases.

    score[i, j] = scale * q_i . k_j - m_h * (i - j)          symmetric=False, under a causal mask
    score[i, j] = scale * q_i . k_j - m_h * |i - j|          symmetric=True
    score[i, j] = scale * q_i . k_j - m_h * (i - j - past)   symmetric=True and past > 0, for keys in the past (i > j)

Without a causal mask, `past` is what tells past from future: Ruoss et al. 2023 (arXiv:2305.16843) use 1/2.

Acts through `bias`: n[...] -> [...]. Nothing is learned. Constants: head = {"slope": [N]}. The slope m_h of head h = 1..N is
2^(-8h/N) where N is a power of two; otherwise the slopes of the largest power of two P below N come first, followed by
every other slope of 2P heads.

Reference: Press, Smith, Lewis 2022, arXiv:2108.12409, section 3; the rule for other N is that of the authors' code.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.checks import validate, validate_each
from attnjax.positions.population import numeric
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class ALiBi(PositionEncoding):
    """Linear bias -m_h * n, or -m_h * |n| with `symmetric`, where n = q_pos - k_pos.

    Hyper-parameters: `slopes`, one positive number per head (None: the published ones); `symmetric`, needed wherever
    the mask is not causal; with it `past`, which is subtracted from the distance of keys in the past.

    Example:
        >>> import jax.numpy as jnp
        >>> ALiBi().bias(EncodingParams(head={"slope": jnp.float32(0.5)}), jnp.array([0, 1, 4])).tolist()
        [-0.0, -0.5, -2.0]
    """

    slopes: tuple[float, ...] | None = numeric(None)
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
        validate_each("ALiBi", slopes=self.slopes)
        object.__setattr__(self, "slopes", tuple(self.slopes))

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """head={"slope": [N]} in float64, which `bias` takes in float32 unless JAX has 64 bits enabled.

        Raises ValueError where `slopes` does not have one number per head.
        """
        del length
        if self.slopes is not None and len(self.slopes) != sizes.heads:
            raise ValueError(f"ALiBi: got {len(self.slopes)} slopes for {sizes.heads} heads, need one per head")
        return EncodingParams(head={"slope": np.asarray(self.slopes or published_slopes(sizes.heads), np.float64)})

    def bias(self, p: EncodingParams, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """-m * n, or -m * |n| where symmetric, less m * past for n > 0."""
        slope = jnp.asarray(p.head["slope"])
        dtype = compute_dtype(slope)
        distance = (jnp.abs(n) if self.symmetric else jnp.asarray(n)).astype(dtype)
        if self.past:
            distance = jnp.where(n > 0, distance - jnp.asarray(self.past, dtype), distance)
        return -slope.astype(dtype) * distance

    def slope(self, p: EncodingParams) -> Float[Array, ""] | None:
        """The number -m with `bias(p, n) == -m * n` for all n; None where the bias is not linear in n."""
        slope = jnp.asarray(p.head["slope"])
        return None if self.symmetric else -jnp.asarray(slope, compute_dtype(slope))

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses a mask that is not causal unless `symmetric`: the farther in the future, the higher the score."""
        del sizes, pos
        if causal is False and not self.symmetric:
            raise ValueError(
                "ALiBi(symmetric=False) rewards keys in the future the more the farther they are, so it needs a causal "
                "mask; pass Mask(causal=True), or use ALiBi(symmetric=True)"
            )


def published_slopes(heads: int) -> tuple[float, ...]:
    """2^(-8h/N) for h = 1..N where N is a power of two, otherwise as the module docstring says.

    Example:
        >>> published_slopes(4)
        (0.25, 0.0625, 0.015625, 0.00390625)
    """
    power = 2 ** (heads.bit_length() - 1)
    below = _geometric_slopes(power)
    return below + _geometric_slopes(2 * power)[0::2][: heads - power]


def _geometric_slopes(heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1))
