"""What positions alone add to a logit, against the distance: the biases that T5, KERPLE, FIRE learned, or that ALiBi has.

A curve is the score of a query and a key without content: both are zero, and what is left is the encoding's. Where the
score depends on the place of the query too (FIRE), it is that of one place. RoPE and its kind have no such curve; see
`rotary.py` for them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.positions import PositionEncoding, Tile, resolve
from attnjax.positions.compose import each, parts_of
from attnjax.typing import Array, Float, Int, PyTree


def bias_curves(
    subject: LoadedModel, distances: Int[np.ndarray, " X"], place: int | None = None
) -> Float[np.ndarray, "L N X"]:
    """The bias of every head at each distance n, for a query at `place` (unless given: the largest distance).

    Raises ValueError for an encoding that adds nothing to the score or needs the content of a whole row, for distances that
    are no whole numbers, and for a place that has no token so far back.
    """
    distances = np.asarray(distances)
    if distances.ndim != 1 or not distances.size or not np.issubdtype(distances.dtype, np.integer):
        raise ValueError(f"distances must be integers [X], at least one, got {distances.dtype}{list(distances.shape)}")
    place = int(distances.max()) if place is None else place
    if place < distances.max():
        raise ValueError(f"place {place} has no token {distances.max()} before it")
    blocks, found = subject.module().stack.layers, []
    for block, owner in zip(blocks, subject.config.encoding_owners, strict=True):
        params = blocks[owner].attention.encoding_params()
        found.append(curves_of(block.attention.encoding, params, subject.config.sizes, distances, place))
    return np.asarray(jnp.stack(found))


def curves_of(
    encoding: PositionEncoding,
    params: PyTree,
    sizes: Any,
    distances: Int[np.ndarray, " X"],
    place: int,
) -> Float[Array, "N X"]:
    """The bias of every head of one encoding with these parameters."""
    if not has_curve(encoding):
        raise ValueError(f"{encoding} has no bias that depends on positions alone")
    zeros = lambda *shape: jnp.zeros(shape, jnp.float32)
    q_pos, k_pos = jnp.asarray([place], jnp.int32), jnp.asarray(place - distances, jnp.int32)
    X, seen, scale = len(distances), jnp.ones((1, len(distances)), bool), jnp.float32(sizes.head_dim**-0.5)
    tile = Tile(zeros(1, X), zeros(1, sizes.head_dim), zeros(X, sizes.head_dim), q_pos, k_pos, seen, scale)
    found = zeros(sizes.heads, 1, X)
    for part, own in zip(parts_of(encoding), each("params", encoding, params), strict=True):
        p = jax.tree.map(jnp.asarray, resolve(part, own, sizes))
        axes = {name: 0 if name in part.per_head else None for name in p}
        score = lambda p, logits, part=part: part.score(p, tile._replace(logits=logits))
        found = jax.vmap(score, in_axes=(axes, 0))(p, found)
    return found[:, 0]


def has_curve(encoding: PositionEncoding) -> bool:
    """Whether positions alone add to the score, of which a whole row of keys need not be known."""
    return encoding.has("bias", "score") and not any(part.whole_table for part in parts_of(encoding))
