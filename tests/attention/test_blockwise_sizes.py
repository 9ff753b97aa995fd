"""Tiles and groups of heads are a matter of speed alone: the same numbers whatever their sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import Mask, Sizes, T5Bias, Tiling, attend, explain
from attnjax.attention.blockwise.sizes import over_groups

B, T, S, N, K, H = 4, 19, 23, 6, 3, 8


def arrays(seed=0):
    normal = np.random.default_rng(seed).normal
    return tuple(jnp.asarray(normal(size=shape), jnp.float32) for shape in ((B, T, N, H), (B, S, K, H), (B, S, K, H)))


MASKS = {
    "one for all": Mask(causal=True, q_index=np.arange(T) + 4),
    "by example": Mask(
        k_valid=np.arange(S)[None] < np.array([[3], [23], [11], [1]]),
        q_segments=np.tile(np.arange(T) // 7, (B, 1)),
        k_segments=np.tile(np.arange(S) // 9, (B, 1)),
    ),
    "allowed by example": Mask(allowed=np.random.default_rng(1).random((B, T, S)) < 0.7),
}


@functools.cache
def output_and_gradients(mask, implementation):
    """Leaves of the output and of all gradients, under the mask of this name."""
    encoding = T5Bias(bidirectional=True)
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, K, H))

    def loss(params, scale, q, k, v):
        options = {"mask": MASKS[mask], "scale": scale, "implementation": implementation}
        out = attend(q, k, v, encoding=encoding, params=params, **options)
        return jnp.sin(out).sum(), out

    run = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True))
    return jax.tree.map(np.asarray, jax.tree.leaves(run(params, 0.3, *arrays())))


@pytest.mark.quick("one for all-8", "allowed by example-None")
@pytest.mark.parametrize("heads", [1, pytest.param(2, marks=pytest.mark.slow), 8, None])
@pytest.mark.parametrize("mask", MASKS)
def test_groups_of_heads_change_nothing(mask, heads):
    ways = (Tiling(8, 5, heads), "dense")
    for ours, dense in zip(*(output_and_gradients(mask, way) for way in ways), strict=True):
        np.testing.assert_allclose(ours, dense, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize(("at_once", "groups"), [(100, 1), (12, 1), (11, 3), (4, 3), (3, 6), (1, 12), (8, 3)])
def test_groups_take_examples_first(at_once, groups):
    """4 examples of 3 heads: at most `at_once` pairs go together, in equal groups; what belongs to no pair is summed."""
    seen = []

    def note(inputs):
        seen.append(inputs["x"].shape)
        return inputs["x"] * inputs["by_head"][None, :, None] + inputs["all"], inputs["x"].sum()

    inputs = {"x": jnp.arange(24.0).reshape(4, 3, 2), "by_head": jnp.arange(3.0), "all": jnp.float32(7)}
    axes = [{"x": 0, "by_head": -1, "all": -1}, {"x": 1, "by_head": 0, "all": -1}]
    out, total = over_groups(note, inputs, axes, [(0, -1), (1, -1)], (4, 3), at_once)
    (shape,) = set(seen)
    assert 12 // (shape[0] * shape[1]) == groups
    np.testing.assert_array_equal(out, inputs["x"] * jnp.arange(3.0)[None, :, None] + 7)
    assert total == inputs["x"].sum()


def test_a_tiling_is_an_implementation():
    q, k, v = arrays()
    chosen = explain(q, k, v, implementation=Tiling(4, 4))
    assert (chosen.implementation, chosen.reason) == ("chunked", "asked for by name")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"queries": 0}, "Tiling: queries must be a whole number of at least 1, got 0"),
        ({"keys": 2.5}, "Tiling: keys must be a whole number of at least 1, got 2.5"),
        ({"heads": -1}, "Tiling: heads must be a whole number of at least 1, got -1"),
        ({"queries": None}, "Tiling: queries must be a whole number of at least 1, got None"),
    ],
)
def test_sizes_that_no_tile_has(sizes, message):
    with pytest.raises(ValueError, match=message):
        Tiling(**sizes)
