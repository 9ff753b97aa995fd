"""Leaves as bytes: each has a sha256, which is all that a step of an earlier version, without SHA256SUMS, has."""

import jax
import numpy as np
import pytest

from attnjax.train import leaves


@pytest.fixture
def state():
    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.int32(7), "key": jax.random.key(3)}


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("name", ["w", "count", "key"])
def test_a_flipped_bit_is_found_in_every_leaf(state, name, place):
    arrays, table = leaves.pack(state)
    flipped = np.array(arrays[name])
    flipped.reshape(-1).view(np.uint8)[place] ^= 1
    assert leaves.unpack(arrays, table, state)["w"].tolist() == state["w"].tolist()
    with pytest.raises(leaves.Damaged, match=f"sha256 differs at .*{name}"):
        leaves.unpack(arrays | {name: flipped}, table, state)
