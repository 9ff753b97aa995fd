"""Sandwich: the inner product of two sinusoidal encodings as a bias, compressed per head.

    score[i, j] = scale * q_i . k_j + (1 / r_h) * sum_{c = 0}^{width/2 - 1} cos((i - j) * theta^(-2c / width))
    r_h = 8 * h / N      for head h = 1..N

Acts through `bias`: n[...] -> [...]. Nothing is learned. Constants: ratio [N], the compression ratios r, and frequencies.

Reference: Chi, Fan, Rudnicky, Ramadge 2023, arXiv:2212.10356, section 5 and appendix E (width 128).
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Positive, Range
from attnjax.positions.angles import angles, exact, geometric, sine_cosine
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.typing import Array, Float


@dataclasses.dataclass(frozen=True)
class Sandwich(PositionEncoding):
    """Sum of `width` / 2 cosines of the distance with frequencies from 1 down to nearly 1/theta, per position.

    Example:
        >>> p = Sandwich(width=4).constants(Sizes(8, 1, 1, 8)) | {"ratio": jnp.float32(2.0)}
        >>> Sandwich(width=4).bias(p, jnp.array([0.0])).tolist()
        [1.0]
    """

    width: Annotated[int, Range(2, 2**16)] = 128
    theta: Positive = 10_000.0

    per_head = ("ratio",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise ValueError(f"Sandwich: width must be even, got {self.width}")

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns ratio [N], and frequencies."""
        ratio = 8.0 * np.arange(1, sizes.heads + 1) / sizes.heads
        return {"ratio": ratio, "frequencies": exact(geometric(self.width // 2, self.theta))}

    def bias(self, p: Params, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns sum_c cos(n * w_c) / r."""
        _, cosines = sine_cosine(angles(jnp.ravel(n), p["frequencies"]))
        return cosines.sum(-1).reshape(n.shape) / p["ratio"]
