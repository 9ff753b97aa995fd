"""What tests of encodings share: one tile of one head with random content, and slices of it."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import Tile

SCALE = 0.3


@pytest.fixture
def make_tile() -> Callable[..., Tile]:
    """A tile at the positions given, of head dimension 4, visible where the key is not in the future unless told."""

    def make(q_pos, k_pos, visible=None, dtype=np.float64, seed=0, head=4):
        draw = np.random.default_rng(seed)
        q_pos, k_pos = np.asarray(q_pos), np.asarray(k_pos)
        q, k = (draw.normal(size=(len(pos), head)).astype(dtype) for pos in (q_pos, k_pos))
        visible = q_pos[:, None] >= k_pos[None, :] if visible is None else visible
        arrays = ((SCALE * q @ k.T).astype(dtype), q, k, q_pos, k_pos, visible)
        return Tile(*(jnp.asarray(array) for array in arrays), SCALE)

    return make


@pytest.fixture
def cut() -> Callable[..., Tile]:
    """The part of a tile that holds these rows and columns."""

    def part(tile, rows, cols):
        return Tile(
            tile.logits[rows, cols],
            tile.q[rows],
            tile.k[cols],
            tile.q_pos[rows],
            tile.k_pos[cols],
            tile.visible[rows, cols],
            tile.scale,
        )

    return part
