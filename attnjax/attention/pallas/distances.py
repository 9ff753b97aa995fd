"""Consecutive positions in a kernel: a bias, or relative-position keys, of which a tile reads those of its own distances.

A tile of b queries and b keys has 2b - 1 distances, and all tiles on one diagonal of the table have the same. So the numbers
of all distances, from the farthest past to the farthest future, lie in rows of b, and the tile at block of queries i and block
of keys j reads two of them, the row n - 1 - i + j of n blocks of queries and the next one. With x[a, m] for row a and the m-th
of these distances,

    aligned(x)[a, c] = x[a, b - 1 - a + c]

puts each where it belongs: every row one place further to the right than the row above, which is one instruction of a TPU.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from attnjax.attention.inputs import AttentionInputs
from attnjax.attention.pallas.tile import product
from attnjax.attention.relative_bias import ToeplitzBias, per_distance
from attnjax.attention.relative_keys import RelativeKeys
from attnjax.positions.base import EncodingParams, PositionEncoding, Tile
from attnjax.typing import Array, Float


@dataclasses.dataclass(frozen=True)
class ByDistance(PositionEncoding):
    """Stands in for an encoding: of `p.head[window]` a tile is given two rows, each of `rows` entries along the first axis."""

    window: str
    rows: int


class BiasByDistance(ByDistance):
    """`p.head["bias"]` [2, b]: the bias of the distances of a tile, falling."""

    def score(self, p: EncodingParams, tile: Tile) -> Float[Array, "b b"]:
        """logits + bias."""
        near = p.head["bias"]
        row = jnp.concatenate([near[:1], near[1:]], axis=1)
        return tile.logits + aligned(jnp.broadcast_to(row, (near.shape[1], row.shape[1])))


class KeysByDistance(ByDistance):
    """`p.head["r"]` [2b, h]: relative-position keys of the distances of a tile, falling; also u and v (`relative_keys.py`)."""

    def score(self, p: EncodingParams, tile: Tile) -> Float[Array, "b b"]:
        """logits + scale * (u . k + (q + v) . r)."""
        # A row of products, because a sum over channels lies in a column, which takes minutes to compile where it is turned.
        content = product(p.head["u"][None, :], tile.k, (1, 1))
        products = product(tile.q + p.head["v"][None, :], p.head["r"], (1, 1))
        return tile.logits + tile.scale * (content + aligned(products))


def by_distance(inputs: AttentionInputs, block: int) -> AttentionInputs:
    """The inputs with an encoding of this file in place of theirs, where it has such a form and positions are consecutive."""
    found = per_distance(inputs, (block, block))
    T, S = (-(-n // block) * block for n in (inputs.queries.q.shape[3], inputs.keys.k.shape[2]))
    if isinstance(found.encoding, ToeplitzBias):
        # One more than there are distances, which fills the last row and which no tile reads.
        falling = jnp.pad(found.params.head["bias"][..., ::-1], ((0, 0), (0, 0), (0, 1)))
        head = {"bias": falling.reshape(*falling.shape[:2], (T + S) // block, block)}
        return found._replace(encoding=BiasByDistance("bias", 1), params=EncodingParams(head=head))
    if isinstance(found.encoding, RelativeKeys):
        head = dict(found.params.head)
        # From the highest distance of any tile on: `RelativeKeys` begins further up, to fill blocks of its own.
        extra = head["r"].shape[2] - (T + S)
        head["r"] = head["r"][:, :, extra:]
        return found._replace(encoding=KeysByDistance("r", block), params=EncodingParams(head=head))
    return found


@jax.custom_vjp
def aligned(x: Float[Array, "b 2*b"]) -> Float[Array, "b b"]:
    """x[a, b - 1 - a + c] at (a, c)."""
    return pltpu.roll(x, 1, 1, stride=1, stride_axis=0)[:, x.shape[0] :]


def _aligned_fwd(x: Array) -> tuple[Array, None]:
    return aligned(x), None


def _aligned_bwd(_: None, g: Float[Array, "b b"]) -> tuple[Float[Array, "b 2*b"]]:
    """Row a turned left by a + 1. A TPU has an instruction for rows turned ever further to the right alone, so that this takes
    a turn for each bit of a.
    """
    b = g.shape[0]
    row = jax.lax.broadcasted_iota(jnp.int32, (b, 2 * b), 0)
    x = pltpu.roll(jnp.concatenate([jnp.zeros_like(g), g], axis=1), 2 * b - 1, 1)
    for bit in range((b - 1).bit_length()):
        x = jnp.where((row >> bit) & 1 == 1, pltpu.roll(x, 2 * b - 2**bit, 1), x)
    return (x,)


aligned.defvjp(_aligned_fwd, _aligned_bwd)
