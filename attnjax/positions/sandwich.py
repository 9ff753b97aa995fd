"""Sandwich: the inner product of two sinusoidal encodings as a bias, compressed per head.

    score[i, j] = scale * q_i . k_j + (1 / r_h) * sum_{c = 0}^{width/2 - 1} cos((i - j) * theta^(-2c / width))
    r_h = 8 * h / N      for head h = 1..N

Acts through `bias`: n[...] -> [...]. Nothing is learned. Constants: head = {"ratio": [N]}, the compression ratios r.

Reference: Chi, Fan, Rudnicky, Ramadge 2023, arXiv:2212.10356, section 5 and appendix E (width 128).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.checks import validate, validate_integer
from attnjax.positions.sincos import sine_cosine
from attnjax.typing import Array, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class Sandwich(PositionEncoding):
    """Sum of `width` / 2 cosines of the distance with frequencies from 1 down to nearly 1/theta, per position.

    Example:
        >>> float(Sandwich(width=4).bias(EncodingParams(head={"ratio": np.float32(2.0)}), jnp.array([0]))[0])
        1.0
    """

    width: int = 128
    theta: float = 10_000.0

    def __post_init__(self) -> None:
        validate_integer("Sandwich", minimum=2, most=2**16, width=self.width)
        validate("Sandwich", theta=self.theta)
        if self.width % 2:
            raise ValueError(f"Sandwich: width must be even, got {self.width}")

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """head={"ratio": [N]} in float64, which `bias` takes in float32 unless JAX has 64 bits enabled."""
        del length
        return EncodingParams(head={"ratio": 8.0 * np.arange(1, sizes.heads + 1) / sizes.heads})

    def bias(self, p: EncodingParams, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """sum_c cos(n * w_c) / r."""
        ratio = jnp.asarray(p.head["ratio"])
        dtype = compute_dtype(ratio)
        _, cosines = sine_cosine(angles(jnp.ravel(n), exact(geometric(self.width // 2, self.theta)), dtype))
        return jnp.sum(cosines, axis=-1).reshape(n.shape) / ratio.astype(dtype)
