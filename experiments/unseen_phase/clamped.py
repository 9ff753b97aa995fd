"""RoPE in which some pairs stop turning beyond a distance: an intervention on trained models.

    score(i, j) = scale * sum_k q_ik . R(m_k) k_jk      m_k = min(i - j, reach) of a clamped pair k, i - j of any other
    q_ik, k_jk: the two channels of pair k; R(m) turns them by m theta_k, the query against the key

Acts on queries and keys (`map_q`, `map_k`: [T,H] -> [T,2H]) and on scores. A minimum of the distance is no rotation of q and
of k apart, so both are carried twice: turned by their positions, and for distances beyond `reach` the query turned by
`reach` and the key not at all. Which pairs are clamped and the reach are numbers, so that a population of interventions is
one program. With all pairs clamped this is ReRoPE (Su 2023, https://github.com/bojone/rerope) with the window `reach`; with
none it is RoPE. For causal masks.
"""

import dataclasses
from typing import Annotated

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Range
from attnjax.positions import RoPE, Sizes, Tile
from attnjax.positions.base import Params
from attnjax.positions.population import numeric
from attnjax.positions.rotary import merge
from attnjax.typing import Array, ArrayLike, Float, Num

PATH = f"{__name__}:ClampedRoPE"
"""What a config calls the encoding."""
FARTHEST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class ClampedRoPE(RoPE):
    """RoPE whose pairs `clamped`, numbered from the fastest, turn as at the distance `reach` for every distance beyond.

    Constants: those of RoPE, clamped: 1.0 for a clamped pair, else 0.0, and reach.
    Raises ValueError for a pair that the head does not have or that is named twice, and for a reach below 0.

    Example:
        >>> p = ClampedRoPE(clamped=(1,), reach=63).constants(Sizes(8, 1, 1, 8))
        >>> p["clamped"].tolist(), p["reach"].item()
        ([0.0, 1.0, 0.0, 0.0], 63)
    """

    clamped: tuple[int, ...] = numeric(())
    reach: Annotated[int, Range(0, FARTHEST)] = numeric(FARTHEST)

    causal_only = "clamps distances to the past"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.clamped)) < len(self.clamped):
            raise ValueError(f"ClampedRoPE: clamped names a pair twice: {self.clamped}")

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns frequencies, gain, clamped and reach."""
        known = super().constants(sizes, length)
        pairs, _ = self.pairs(sizes.head_dim)
        if not set(self.clamped) <= set(range(pairs)):
            raise ValueError(f"ClampedRoPE: a head has the pairs 0 .. {pairs - 1}, got clamped={self.clamped}")
        clamped = np.isin(np.arange(pairs), self.clamped).astype(np.float32)
        return {**known, "clamped": clamped, "reach": np.int32(self.reach)}

    def map_q(self, p: Params, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T h"]:
        """Returns [R(pos) q | R(reach) q]."""
        far = jnp.full(len(q), p["reach"], jnp.int32)
        return jnp.concatenate([super().map_q(p, q, pos), super().map_q(p, q, far)], axis=-1)

    def map_k(self, p: Params, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S h"]:
        """Returns [R(pos) k | k], both with the attention factor of a scaling."""
        return jnp.concatenate([super().map_k(p, k, pos), super().map_k(p, k, jnp.zeros(len(k), jnp.int32))], axis=-1)

    def score(self, p: Params, tile: Tile) -> Float[Array, "t s"]:
        """Returns logits of the free pairs and, of clamped ones, those at the distance or, beyond `reach`, at the reach."""
        chex.assert_equal(tile.q.shape[-1], tile.k.shape[-1])
        (q, q_far), (k, k_far) = jnp.split(tile.q, 2, axis=-1), jnp.split(tile.k, 2, axis=-1)
        one = jnp.asarray(p["clamped"], q.dtype)[None]
        one = merge(one, one, self.layout)
        one = jnp.pad(one, ((0, 0), (0, q.shape[-1] - one.shape[-1])))
        near, far = product(q * one, k), product(q_far * one, k_far)
        within = tile.distance <= jnp.asarray(p["reach"], tile.distance.dtype)
        return tile.scale * (product(q * (1 - one), k) + jnp.where(within, near, far))


def product(q: Float[Array, "t H"], k: Float[Array, "s H"]) -> Float[Array, "t s"]:
    """q k^T in the highest precision, since the default of a GPU rounds float32 inputs to 11 bits.

    Example:
        >>> product(jnp.ones((1, 4)), jnp.ones((2, 4))).tolist()
        [[4.0, 4.0]]
    """
    return jnp.matmul(q, k.T, precision=jax.lax.Precision.HIGHEST)
