"""A bias that depends on the distance alone, as a Toeplitz matrix, where positions are consecutive.

Consecutive positions q_0 + i and k_0 + j have T + S - 1 different distances, while a table has T * S entries. So the
encoding's `bias` is called once, on a vector w of all distances, and its gradient passes through that vector: learned
biases (T5, KERPLE) are looked up and differentiated T + S - 1 times. A tile of t queries and s keys reads t + s - 1
numbers of it and lays them out as

    bias[a, b] = w[a - b + s - 1]
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.hooks import expect
from attnjax.attention.inputs import AttentionInputs
from attnjax.attention.position_axes import known
from attnjax.positions.base import EncodingParams, PositionEncoding, Tile, Trait
from attnjax.positions.checks import INT32
from attnjax.typing import Array, Float, PyTree


@dataclasses.dataclass(frozen=True)
class ToeplitzBias(PositionEncoding):
    """Stands in for an encoding: `p.head["bias"]` holds the bias of distances `lowest`, `lowest` + 1, ..."""

    lowest: int

    def score(self, p: EncodingParams, tile: Tile) -> Float[Array, "t s"]:
        """logits + bias, of a tile of consecutive positions."""
        t, s = tile.logits.shape
        first = tile.q_pos[0] - tile.k_pos[0] - (s - 1) - self.lowest
        return tile.logits + toeplitz(jax.lax.dynamic_slice_in_dim(p.head["bias"], first, t + s - 1), t, s)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def toeplitz(w: Float[Array, " L"], t: int, s: int) -> Float[Array, "t s"]:
    """The matrix whose entry (a, b) is w[a - b + s - 1], of the t + s - 1 numbers of w.

    By indices, which cost nothing beside the exponential they are compiled into. Its derivative is made by reshaping: the
    transpose is then a sum and no scatter.
    """
    at = jnp.arange(t, dtype=jnp.int32)[:, None] - jnp.arange(s, dtype=jnp.int32)[None, :] + jnp.int32(s - 1)
    return w.at[at].get(mode="promise_in_bounds")


@toeplitz.defjvp
def _toeplitz_jvp(t: int, s: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return toeplitz(*primals, t, s), _reshaped(*tangents, t, s)


def _reshaped(w: Float[Array, " L"], t: int, s: int) -> Float[Array, "t s"]:
    """`toeplitz`: rows of a matrix, one column wider than the vector is long, follow each other shifted by one."""
    row = jnp.pad(w[::-1], (0, 1))
    wide = jnp.broadcast_to(row[None, :], (t, t + s)).reshape(-1)
    return wide[: t * (t + s - 1)].reshape(t, t + s - 1)[:, t - 1 :]


def per_distance(inputs: AttentionInputs, tile: tuple[int, int], *, skipping: bool = False) -> AttentionInputs:
    """The inputs with a vector of biases in place of the encoding, where it has no more than a bias and positions are
    consecutive; otherwise the inputs themselves.

    `tile`: arrays will be padded to multiples of these sizes. `skipping`: tiles that the mask leaves empty are not visited.
    """
    encoding, queries, keys = inputs.encoding, inputs.queries, inputs.keys
    traits, q_pos, k_pos = encoding.traits, known(queries.pos), known(keys.pos)
    only_bias = Trait.BIAS in traits and not traits & (Trait.SCORE | Trait.LENGTH)
    if not (only_bias and consecutive(q_pos) and consecutive(k_pos)):
        return inputs
    T, S = (-(-n // size) * size for n, size in zip((queries.q.shape[3], keys.k.shape[2]), tile, strict=True))
    apart = first_distance(inputs)
    lowest = apart - (S - 1)
    highest = lowest + T + S - 2
    if not INT32.min <= lowest <= highest <= INT32.max:
        return inputs
    if skipping:
        last_tile = highest - (tile[0] - 1) - (tile[1] - 1)
        lowest = max(lowest, min(_lowest_seen(inputs, tile, lowest), last_tile))
    n = jnp.asarray(np.arange(lowest, highest + 1, dtype=np.int32))
    dtype, p = inputs.compute_dtype, inputs.params

    def one(head: PyTree, kv_head: PyTree) -> Float[Array, " m"]:
        return expect(encoding, "bias", encoding.bias(EncodingParams(head, kv_head, p.shared), n), n.shape).astype(
            dtype
        )

    K, G = queries.q.shape[1:3]
    groups = jax.vmap(one, in_axes=(0, None), axis_size=G)
    heads = jax.vmap(groups, in_axes=(0, 0), axis_size=K)(p.head, p.kv_head)
    return inputs._replace(encoding=ToeplitzBias(lowest), params=EncodingParams(head={"bias": heads}))


def _lowest_seen(inputs: AttentionInputs, tile: tuple[int, int], lowest: int) -> int:
    """The smallest distance in a tile of which the mask's causal rule, or its window to the right, leaves something."""
    queries, keys, right = inputs.queries, inputs.keys, inputs.span.right
    if right is None or not (consecutive(queries.index) and consecutive(keys.index)):
        return lowest
    ahead = int(np.asarray(queries.index)[0]) - int(np.asarray(keys.index)[0]) - first_distance(inputs)
    return -ahead - right - (tile[0] - 1) - (tile[1] - 1)


def first_distance(inputs: AttentionInputs) -> int:
    """The distance of the first query and the first key, at positions that are known."""
    q_pos, k_pos = known(inputs.queries.pos), known(inputs.keys.pos)
    assert q_pos is not None and k_pos is not None
    return int(q_pos[0]) - int(k_pos[0])


def consecutive(pos: object) -> bool:
    """Whether positions are known, the same for every example, whole numbers, and each one more than the one before."""
    if not isinstance(pos, np.ndarray) or pos.ndim != 1 or not np.issubdtype(pos.dtype, np.integer):
        return False
    return bool(np.all(np.diff(pos.astype(np.int64)) == 1))
