"""KERPLE: learned biases that are conditionally positive definite kernels of the distance.

    kind="log"      score[i, j] = scale * q_i . k_j - r1 * ln(1 + r2 * |i - j|)        r1 > 0, r2 > 0
    kind="power"    score[i, j] = scale * q_i . k_j - r1 * |i - j|^r2                  r1 > 0, 0 < r2 < 2

Acts through `bias`. The parameters are stored raw and mapped to their range, so that any optimizer may move them:
r1 = softplus(raw), r2 = softplus(raw) for the logarithmic kind and 2 * sigmoid(raw) for the power kind.

Learned: head = {"r1": [N], "r2": [N]}, made so that r1 ~ U(0, 2) and r2 ~ U(0, 1) (log), or r1 ~ U(0, 1) and r2 ~ U(0, 2)
(power): in both, what multiplies the distance is in (0, 1).
Reference: Chi, Fan, Ramadge, Rudnicky 2022, arXiv:2205.09921, section 4; initial ranges from the authors' code.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.typing import Array, Float, Num, compute_dtype

KINDS = ("log", "power")
MARGIN = 0.01
"""Kept from the ends of a range when sampling, whose raw values are infinite; the authors clamp at this number too."""


@dataclasses.dataclass(frozen=True)
class Kerple(PositionEncoding):
    """Logarithmic (`kind="log"`) or power (`kind="power"`) decay with the distance, learned per head.

    Example:
        >>> params = Kerple().init(jax.random.key(0), Sizes(16, 2, 2, 8))
        >>> one = EncodingParams(head=jax.tree.map(lambda leaf: leaf[0], params.head))
        >>> float(Kerple().bias(one, jnp.array([0]))[0])
        -0.0
    """

    kind: Literal["log", "power"] = "log"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Kerple: kind must be one of {KINDS}, got {self.kind!r}")

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """Raw parameters of uniformly drawn r1 and r2, each [N]."""
        first, second = jax.random.split(key)
        if self.kind == "log":
            r1, r2 = _uniform(first, sizes.heads, 2.0), _uniform(second, sizes.heads, 1.0)
            return EncodingParams(head={"r1": _raw(r1), "r2": _raw(r2)})
        r1, share = _uniform(first, sizes.heads, 1.0), _uniform(second, sizes.heads, 2.0) / 2.0
        return EncodingParams(head={"r1": _raw(r1), "r2": jnp.log(share) - jnp.log1p(-share)})

    def bias(self, p: EncodingParams, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """-r1 * ln(1 + r2 * |n|), or -r1 * |n|^r2; zero at n = 0."""
        head = p.head
        dtype = compute_dtype(head["r1"])
        distance = jnp.abs(n).astype(dtype)
        r1 = jax.nn.softplus(head["r1"].astype(dtype))
        r2 = head["r2"].astype(dtype)
        if self.kind == "log":
            return -r1 * jnp.log1p(jax.nn.softplus(r2) * distance)
        return -r1 * _power(distance, 2.0 * jax.nn.sigmoid(r2))


def _uniform(key: jax.Array, heads: int, upper: float) -> Float[Array, " N"]:
    return jnp.clip(jax.random.uniform(key, (heads,), jnp.float32, 0.0, upper), MARGIN, upper - MARGIN)


def _raw(positive: Float[Array, " N"]) -> Float[Array, " N"]:
    """The inverse of softplus."""
    return jnp.log(jnp.expm1(positive))


def _power(distance: Float[Array, "..."], exponent: Float[Array, ""]) -> Float[Array, "..."]:
    # The logarithm of zero is kept out of both branches, or its infinite slope would reach the gradient as 0 * inf.
    zero = distance == 0
    return jnp.where(zero, 0.0, jnp.exp(exponent * jnp.log(jnp.where(zero, 1.0, distance))))
