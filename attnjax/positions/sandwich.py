"""Sandwich: the inner product of two sinusoidal encodings as a bias, compressed per head.

    score[i, j] = scale * q_i . k_j + (1 / r_h) * sum_{c = 0}^{width/2 - 1} cos((i - j) * theta^(-2c / width))
    r_h = 8 * h / N      for head h = 1..N

Acts through `bias`, and exactly through columns, since cos((i - j) w) = cos(i w) cos(j w) + sin(i w) sin(j w).
Nothing is learned. `bind` hands the compression ratios r to the hooks as `head`, float32 [N].

Reference: Chi, Fan, Rudnicky, Ramadge 2023, arXiv:2212.10356, section 5 and appendix E (width 128).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax.positions.angles import Frequencies, angles, exact, geometric
from attnjax.positions.base import EncodingParams, PositionEncoding, validate
from attnjax.positions.checks import validate_integer
from attnjax.positions.waves import sine_cosine
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree


@dataclasses.dataclass(frozen=True)
class Sandwich(PositionEncoding):
    """Sum of `width` / 2 cosines of the distance with frequencies from 1 down to nearly 1/theta, per position."""

    width: int = 128
    theta: float = 10_000.0

    def __post_init__(self) -> None:
        validate_integer("Sandwich", minimum=2, most=2**16, width=self.width)
        validate("Sandwich", theta=self.theta)
        if self.width % 2:
            raise ValueError(f"Sandwich: width must be even, got {self.width}")

    def bind(self, params: EncodingParams, heads: int, length: Any = None) -> EncodingParams:
        """The compression ratios of `heads` heads as `head`."""
        del params, length
        return EncodingParams(head=(8.0 * np.arange(1, heads + 1) / heads).astype(np.float32))

    def bias(self, head: PyTree, shared: PyTree, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """sum_c cos(n * w_c) / r."""
        del shared
        _, cosines = sine_cosine(angles(jnp.ravel(n), self._frequencies()))
        return jnp.sum(cosines, axis=-1).reshape(n.shape) / jnp.asarray(head, cosines.dtype)

    def columns_q(
        self, head: PyTree, shared: PyTree, q: Float[Array, "T h"], pos: Num[ArrayLike, " T"], scale: Float[Array, ""]
    ) -> Float[Array, "T width"]:
        """[cos(i w) | sin(i w)] / r."""
        del shared, scale
        return self._waves(pos, q.dtype) / jnp.asarray(head, q.dtype)

    def columns_k(self, shared: PyTree, k: Float[Array, "S h"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S width"]:
        """[cos(j w) | sin(j w)]."""
        del shared
        return self._waves(pos, k.dtype)

    def _waves(self, pos: Num[ArrayLike, " T"], dtype: jnp.dtype) -> Float[Array, "T width"]:
        angle = angles(pos, self._frequencies(), dtype)
        sin, cos = sine_cosine(angle)
        return jnp.concatenate([cos, sin], axis=-1).astype(dtype)

    def _frequencies(self) -> Frequencies:
        return exact(geometric(self.width // 2, self.theta))
