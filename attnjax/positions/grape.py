"""GRAPE-M: rotations with learned frequencies.

    score(i, j) = scale * q_i . R(j - i) k_j,    pair c turned by pos * f_c,    f_c = exp(w_c / rate)

The paper's position is exp(n w L) for a skew matrix L of rank 2; this is its product over the planes of RoPE, which commute, in
the form that the authors train. It is RoPE where w is as drawn. Acts on queries and keys (`angle`). The authors turn pairs the
other way round, which exchanges the channels of every pair in queries and keys. The form whose positions are computed from the
tokens (contextual GRAPE-M) is not here: `RePo` and `SelectiveRoPE` are its relatives.

Learned: log_frequencies (w) [H/2] for all heads, or [K, H/2] where not `shared`, at first rate * ln(theta^(-2c/H)). The rate of
16 divides the steps of the optimizer. Angles are float32 products, off by about |pos f| 2^-23; those of RoPE are exact.

Reference: Zhang et al. 2026 (arXiv:2512.07805), section 3; the code is that of the authors (model-architectures/GRAPE,
`MSGRAPECommuting`).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Positive
from attnjax.positions.angles import geometric
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.rotary import Layout, pairs_of
from attnjax.typing import Array, ArrayLike, Float, Num


@dataclasses.dataclass(frozen=True)
class GRAPE(PositionEncoding):
    """RoPE with learned frequencies, for all heads or (`shared=False`) per key head; `theta` is the base of the first ones.

    Example:
        >>> p = GRAPE(theta=100.0).init(jax.random.key(0), Sizes(model=8, heads=2, kv_heads=2, head_dim=4))
        >>> GRAPE().angle(p, jnp.array([0, 10])).round(4).tolist()
        [[0.0, 0.0], [10.0, 1.0]]
    """

    theta: Positive = 10_000.0
    shared: bool = True
    rate: Positive = 16.0
    layout: Layout = "half"

    @property
    def per_kv_head(self) -> tuple[str, ...]:
        return () if self.shared else ("log_frequencies",)

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns log_frequencies of RoPE. Raises ValueError for an odd head dimension."""
        first = self.rate * np.log(geometric(pairs_of("GRAPE", sizes.head_dim), self.theta))
        shape = first.shape if self.shared else (sizes.kv_heads, *first.shape)
        return {"log_frequencies": jnp.broadcast_to(jnp.asarray(first, jnp.float32), shape)}

    def angle(self, p: Params, pos: Num[ArrayLike, " T"]) -> Float[Array, "T pairs"]:
        """Returns pos * exp(w / rate)."""
        frequencies = jnp.exp(p["log_frequencies"] / self.rate)
        return jnp.asarray(pos).astype(frequencies.dtype)[:, None] * frequencies[None]
