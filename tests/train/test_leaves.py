"""Leaves as bytes: each has a sha256, which is all that a step of an earlier version, without SHA256SUMS, has."""

import jax
import numpy as np
import pytest

from attnjax.train import leaves


@pytest.fixture
def state():
    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.int32(7), "key": jax.random.key(3)}


@pytest.mark.parametrize("place", [0, 13, -1])
def test_a_flipped_bit_is_found_in_every_leaf(state, place):
    data, table = leaves.pack(state)
    damaged = data.copy()
    damaged[place] ^= 1
    assert leaves.unpack(memoryview(data), table, state)["w"].tolist() == state["w"].tolist()
    with pytest.raises(leaves.Damaged, match="sha256 differs at "):
        leaves.unpack(memoryview(damaged), table, state)
