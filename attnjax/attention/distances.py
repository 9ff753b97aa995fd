"""A bias of the distance alone, read from one number per distance where positions are consecutive.

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

from attnjax.attention.meeting import meeting
from attnjax.attention.problem import Problem
from attnjax.positions.base import PositionEncoding, Tile
from attnjax.typing import Array, ArrayLike, Float, PyTree


@dataclasses.dataclass(frozen=True)
class Distances(PositionEncoding):
    """What stands in for an encoding inside a problem: head holds the bias of distances `lowest`, `lowest` + 1, ..."""

    lowest: int

    def score(self, head: PyTree, shared: PyTree, tile: Tile, carry: PyTree = ()) -> Float[Array, "t s"]:
        """logits + bias, of a tile of consecutive positions."""
        del shared, carry
        t, s = tile.logits.shape
        first = tile.q_pos[0] - tile.k_pos[0] - (s - 1) - self.lowest
        return tile.logits + toeplitz(jax.lax.dynamic_slice_in_dim(head, first, t + s - 1), t, s)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def toeplitz(w: Float[Array, " t+s-1"], t: int, s: int) -> Float[Array, "t s"]:
    """The matrix whose entry (a, b) is w[a - b + s - 1]. By indices, which cost nothing beside the exponential they are
    compiled into; its derivative is laid out by reshaping, whose transpose is a sum and no scatter.
    """
    at = jnp.arange(t, dtype=jnp.int32)[:, None] - jnp.arange(s, dtype=jnp.int32)[None, :] + jnp.int32(s - 1)
    return w.at[at].get(mode="promise_in_bounds")


@toeplitz.defjvp
def _toeplitz_jvp(t: int, s: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return toeplitz(*primals, t, s), _reshaped(*tangents, t, s)


def _reshaped(w: Float[Array, " t+s-1"], t: int, s: int) -> Float[Array, "t s"]:
    """`toeplitz`: rows of a matrix, one column wider than the vector is long, follow each other shifted by one."""
    row = jnp.pad(w[::-1], (0, 1))
    wide = jnp.broadcast_to(row[None, :], (t, t + s)).reshape(-1)
    return wide[: t * (t + s - 1)].reshape(t, t + s - 1)[:, t - 1 :]


def by_distance(problem: Problem, tile: tuple[int, int], *, skipping: bool = False) -> Problem:
    """The problem with a vector of biases, or the vectors of all distances (see `meeting.py`), in place of its encoding,
    where it has such and positions are consecutive; otherwise the problem itself. `tile`: arrays will be padded to
    multiples of these sizes; `skipping`: scores are made tile by tile, and not where the mask leaves a tile empty.
    """
    encoding, rows, cols = problem.encoding, problem.rows, problem.cols
    only_bias = encoding.has("bias") and not encoding.has("score")
    if not (only_bias or encoding.has("vectors")) or not (_consecutive(rows.pos) and _consecutive(cols.pos)):
        return problem
    T, S = (-(-n // size) * size for n, size in zip((rows.q.shape[3], cols.k.shape[2]), tile, strict=True))
    lowest = int(rows.pos[0]) - int(cols.pos[0]) - (S - 1)
    highest = lowest + T + S - 2
    if skipping:
        last_tile = highest - (tile[0] - 1) - (tile[1] - 1)
        lowest = max(lowest, min(_lowest_seen(problem, tile, lowest), last_tile))
    if not only_bias:
        return meeting(problem, lowest, highest)
    n = np.arange(lowest, highest + 1, dtype=np.int32)
    one = lambda head: encoding.bias(head, problem.shared, jnp.asarray(n)).astype(rows.q.dtype)
    K, G = rows.q.shape[1:3]
    heads = jax.vmap(jax.vmap(one, axis_size=G), axis_size=K)
    return problem._replace(encoding=Distances(lowest), head=heads(problem.head), shared=())


def _lowest_seen(problem: Problem, tile: tuple[int, int], lowest: int) -> int:
    """The smallest distance in a tile of which the mask's causal rule, or its window to the right, leaves something."""
    rows, cols, right = problem.rows, problem.cols, problem.span.right
    if right is None or not (_consecutive(rows.index) and _consecutive(cols.index)):
        return lowest
    ahead = int(rows.index[0]) - int(cols.index[0]) - int(rows.pos[0]) + int(cols.pos[0])
    return -ahead - right - (tile[0] - 1) - (tile[1] - 1)


def _consecutive(pos: ArrayLike) -> bool:
    """Whether positions are known, the same for every example, whole numbers, and each one more than the one before."""
    if not isinstance(pos, np.ndarray) or pos.ndim != 1 or not np.issubdtype(pos.dtype, np.integer):
        return False
    return bool(np.all(np.diff(pos.astype(np.int64)) == 1))
