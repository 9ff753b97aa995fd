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

from attnjax.attention.hooks import Own, expect, over
from attnjax.attention.record import Call
from attnjax.positions.base import Params, PositionEncoding, Tile
from attnjax.typing import Array, Float


@dataclasses.dataclass(frozen=True)
class Toeplitz(PositionEncoding):
    """The bias of consecutive positions: p["bias"] holds it for the distances `lowest`, `lowest` + 1, ..."""

    lowest: int

    def score(self, p: Params, tile: Tile) -> Float[Array, "t s"]:
        t, s = tile.logits.shape
        first = tile.q_pos[0] - tile.k_pos[0] - (s - 1) - self.lowest
        return tile.logits + toeplitz(jax.lax.dynamic_slice_in_dim(p["bias"], first, t + s - 1), t, s)


def per_distance(call: Call, tile: tuple[int, int]) -> Call:
    """Returns the call with a vector of biases in place of each bias whose positions are consecutive and known.

    `tile`: arrays will be padded to multiples of these sizes.
    """
    T, S = (-(-n // size) * size for n, size in zip((call.rows.q.shape[3], call.cols.k.shape[3]), tile, strict=True))
    encodings, params = list(call.encodings), list(call.params)
    for i, (part, q_pos, k_pos) in enumerate(zip(call.encodings, call.rows.pos, call.cols.pos, strict=True)):
        if part.has("score") or not (consecutive(q_pos) and consecutive(k_pos)):
            continue
        lowest = int(q_pos[0, 0, 0, 0]) - int(k_pos[0, 0, 0, 0]) - (S - 1)
        n = jnp.asarray(np.arange(lowest, lowest + T + S - 1), call.compute_dtype)
        one = lambda p, part=part, n=n: expect(part, "bias", part.bias(Own(p), n), n.shape).astype(n.dtype)
        encodings[i], params[i] = Toeplitz(lowest), {"bias": over(3, one, call.params[i])}
    return dataclasses.replace(call, encodings=tuple(encodings), params=tuple(params))


def consecutive(pos: object) -> bool:
    """Returns whether positions are known, the same for all, whole numbers, and each one more than the one before."""
    if not isinstance(pos, np.ndarray) or pos.shape[:-1] != (1, 1, 1) or not np.issubdtype(pos.dtype, np.integer):
        return False
    return bool(np.all(np.diff(pos[0, 0, 0].astype(np.int64)) == 1))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def toeplitz(w: Float[Array, " L"], t: int, s: int) -> Float[Array, "t s"]:
    """Returns the matrix whose entry (a, b) is w[a - b + s - 1], of the t + s - 1 numbers of w.

    By indices, which cost nothing beside the exponential that they are compiled into. The derivative is written by reshaping,
    so that its transpose is a sum and no scatter.
    """
    at = jnp.arange(t, dtype=jnp.int32)[:, None] - jnp.arange(s, dtype=jnp.int32)[None, :] + jnp.int32(s - 1)
    return w.at[at].get(mode="promise_in_bounds")


@toeplitz.defjvp
def _toeplitz_jvp(t: int, s: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Rows of a matrix, one column wider than the vector is long, follow each other shifted by one."""
    row = jnp.pad(tangents[0][::-1], (0, 1))
    wide = jnp.broadcast_to(row[None, :], (t, t + s)).reshape(-1)
    return toeplitz(*primals, t, s), wide[: t * (t + s - 1)].reshape(t, t + s - 1)[:, t - 1 :]
