"""Log-n scaling: queries grow with the logarithm of their position past the trained length, so that attention stays sharp.

    score[i, j] = max(1, ln(n_i) / ln(L)) * scale * q_i . k_j,    n_i = pos_i + 1, the keys that a causal query sees

Acts on queries (`map_q`): q[T,H], pos[T] -> [T,H], so biases of other encodings in a composition are not multiplied. Nothing
is learned; L is the trained `length` (4,096), and up to it nothing changes. The entropy of attention over n keys then stays
about what it was over L. It goes with RoPE and with its remapped forms, as `compose(LogN(length=L), ReRoPE(window=w))`.
`SSMax` is the same with a learned factor at every length, `Llama4Temperature` grows in steps. A mask that is not causal is
refused.

Reference: Su 2021 (https://kexue.fm/archives/8823), for lengths unseen in training in Su 2023
(https://github.com/bojone/rerope); Chiang & Cholak 2022 (arXiv:2202.12172), section 5.3.
"""

import dataclasses
import math

import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding
from attnjax.positions.checks import validate_integer
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class LogN(PositionEncoding):
    """Queries times max(1, ln(pos + 1) / ln(length)); needs a causal mask.

    Raises ValueError for a length that is no whole number from 2 to 2^30.

    Example:
        >>> q = LogN(length=4).map_q(EncodingParams(), jnp.ones((3, 1)), jnp.array([0, 3, 15]))
        >>> q[:, 0].round(4).tolist()
        [1.0, 1.0, 2.0]
    """

    length: int = 4096

    needs_causal = "takes pos + 1 for the number of keys that a query sees"

    def __post_init__(self) -> None:
        validate_integer("LogN", minimum=2, most=2**30, length=self.length)

    def map_q(self, p: EncodingParams, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """max(1, ln n / ln L) q with n = max(pos, 0) + 1."""
        del p
        dtype = compute_dtype(q)
        n = jnp.log1p(jnp.maximum(jnp.asarray(pos).astype(dtype), 0))
        factor = jnp.maximum(n / jnp.asarray(math.log(self.length), dtype), 1)
        return (factor[:, None] * q.astype(dtype)).astype(q.dtype)
