"""What positions alone add to a logit, against the distance: the biases that T5, KERPLE, FIRE learned, or that ALiBi has.

A curve is the score of a query and a key without content: both are zero, and what is left is the encoding's. Where the
score depends on the place of the query too (FIRE), it is that of one place. RoPE and its kind have no such curve; see
`rotary.py` for them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.analysis.heads import module
from attnjax.analysis.loaded_model import LoadedModel
from attnjax.modules.encoding_sharing import encoding_owner
from attnjax.positions import EncodingParams, PositionEncoding, Tile, Trait, resolve
from attnjax.typing import Array, Float, Int


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
    blocks, found = module(subject).stack.layers, []
    for layer, block in enumerate(blocks):
        params = blocks[encoding_owner(subject.config, layer)].attention.encoding_params()
        found.append(curves_of(block.attention.encoding, params, subject.config.sizes, distances, place))
    return np.asarray(jnp.stack(found))


def curves_of(
    encoding: PositionEncoding,
    params: EncodingParams | None,
    sizes: Any,
    distances: Int[np.ndarray, " X"],
    place: int,
) -> Float[Array, "N X"]:
    """The bias of every head of one encoding with these parameters."""
    if not encoding.traits & Trait.ON_SCORES or Trait.CARRY in encoding.traits:
        raise ValueError(f"{encoding} has no bias that depends on positions alone")
    p = resolve(encoding, params, sizes)
    zeros = lambda *shape: jnp.zeros(shape, jnp.float32)
    q_pos, k_pos = jnp.asarray([place], jnp.int32), jnp.asarray(place - distances, jnp.int32)
    X, seen, scale = len(distances), jnp.ones((1, len(distances)), bool), jnp.float32(sizes.head_dim**-0.5)
    tile = Tile(zeros(1, X), zeros(1, sizes.head_dim), zeros(X, sizes.head_dim), q_pos, k_pos, seen, scale)
    head = jax.tree.map(jnp.asarray, p.head)
    one = lambda head: encoding.score(EncodingParams(head=head, shared=p.shared), tile)[0]
    return jax.vmap(one, axis_size=sizes.heads)(head)
