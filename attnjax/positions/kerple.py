"""KERPLE: learned biases that are conditionally positive definite kernels of the distance.

    kind="log"      score[i, j] = scale * q_i . k_j - r1 * ln(1 + r2 * |i - j|)        r1 > 0, r2 > 0
    kind="power"    score[i, j] = scale * q_i . k_j - r1 * |i - j|^r2                  r1 > 0, 0 < r2 < 2

Acts through `bias`. The parameters are stored raw and mapped to their range, so that any optimizer may move them:
r1 = softplus(raw), r2 = softplus(raw) for the logarithmic kind and 2 * sigmoid(raw) for the power kind.

Learned: r1 [N] and r2 [N], made so that r1 ~ U(0, 2) and r2 ~ U(0, 1) (log), or r1 ~ U(0, 1) and r2 ~ U(0, 2) (power): in
both, the factor of the distance lies in (0, 1).
Reference: Chi, Fan, Ramadge, Rudnicky 2022, arXiv:2205.09921, section 4; initial ranges from the authors' code.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.typing import Array, Float

MARGIN = 0.01
"""Kept from the ends of a range when sampling, whose raw values are infinite; the authors clamp at this number too."""


@dataclasses.dataclass(frozen=True)
class Kerple(PositionEncoding):
    """Logarithmic (`kind="log"`) or power (`kind="power"`) decay with the distance, learned per head.

    Example:
        >>> p = {"r1": jnp.float32(0.0), "r2": jnp.float32(0.0)}  # raw: both are ln 2
        >>> Kerple().bias(p, jnp.array([0.0, 1.0])).round(4).tolist()
        [-0.0, -0.3649999797344208]
    """

    kind: Literal["log", "power"] = "log"

    per_head = ("r1", "r2")

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns raw parameters of uniformly drawn r1 and r2, each [N]."""
        first, second = jax.random.split(key)
        if self.kind == "log":
            return {"r1": _raw(_uniform(first, sizes.heads, 2.0)), "r2": _raw(_uniform(second, sizes.heads, 1.0))}
        share = _uniform(second, sizes.heads, 2.0) / 2.0
        return {"r1": _raw(_uniform(first, sizes.heads, 1.0)), "r2": jnp.log(share) - jnp.log1p(-share)}

    def bias(self, p: Params, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns -r1 * ln(1 + r2 * |n|), or -r1 * |n|^r2; zero at n = 0."""
        r1, distance = jax.nn.softplus(p["r1"]), jnp.abs(n)
        if self.kind == "log":
            return -r1 * jnp.log1p(jax.nn.softplus(p["r2"]) * distance)
        # The logarithm of zero is kept out of both branches, or its infinite slope would reach the gradient as 0 * inf.
        away = jnp.where(distance == 0, 1.0, distance)
        return -r1 * jnp.where(distance == 0, 0.0, jnp.exp(2.0 * jax.nn.sigmoid(p["r2"]) * jnp.log(away)))


def _uniform(key: jax.Array, heads: int, upper: float) -> Float[Array, " N"]:
    return jnp.clip(jax.random.uniform(key, (heads,), jnp.float32, 0.0, upper), MARGIN, upper - MARGIN)


def _raw(positive: Float[Array, " N"]) -> Float[Array, " N"]:
    """The inverse of softplus."""
    return jnp.log(jnp.expm1(positive))
