import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import EncodingParams, Sizes
from attnjax.positions.fire import FIRE

ENCODING = FIRE(hidden=5, threshold=6.0)


def parameters(dtype=np.float64):
    draw = np.random.default_rng(1)
    head = {"out": draw.normal(size=(3, 5)), "out_bias": draw.normal(size=3)}
    shared = {"hidden": draw.normal(size=5), "hidden_bias": draw.normal(size=5)}
    shared |= {"c": np.array(-0.3), "threshold": np.array(0.9)}
    return jax.tree.map(lambda leaf: leaf.astype(dtype), (head, shared))


def by_loops(head, shared, h, i, j):
    c, threshold = abs(float(shared["c"])), abs(float(shared["threshold"]) * 6.0)
    x = math.log(c * abs(i - j) + 1) / (math.log(c * max(i, threshold) + 1) + 1e-6)
    units = [max(0.0, w * x + b) for w, b in zip(shared["hidden"], shared["hidden_bias"], strict=True)]
    return sum(o * unit for o, unit in zip(head["out"][h], units, strict=True)) + head["out_bias"][h]


@jax.jit
def score(tile, head, shared):
    return jax.vmap(lambda head: ENCODING.score(EncodingParams(head=head, shared=shared), tile))(head)


def test_score_against_loops(make_tile, x64):
    tile = make_tile(np.arange(9), np.arange(12))
    head, shared = parameters()
    bias = score(tile, head, shared) - tile.logits[None]
    assert bias.dtype == jnp.float64
    expected = [[[by_loops(head, shared, h, i, j) for j in range(12)] for i in range(9)] for h in range(3)]
    np.testing.assert_allclose(bias, expected, rtol=1e-11)


def test_score_in_single_precision(make_tile):
    tile = make_tile(np.arange(9), np.arange(12), dtype=np.float32)
    head, shared = parameters(np.float32)
    made = score(tile, head, shared)
    assert made.dtype == jnp.float32
    expected = [[[by_loops(head, shared, h, i, j) for j in range(12)] for i in range(9)] for h in range(3)]
    np.testing.assert_allclose(made - tile.logits[None], expected, atol=2e-6)


def test_a_tile_is_a_slice_of_the_whole(make_tile, cut):
    tile = make_tile(np.arange(9), np.arange(12), dtype=np.float32)
    head, shared = parameters(np.float32)
    whole = score(tile, head, shared)
    part = score(cut(tile, slice(4, 7), slice(2, 9)), head, shared)
    np.testing.assert_allclose(part, whole[:, 4:7, 2:9], atol=1e-6)


def test_gradients_are_finite(make_tile):
    tile = make_tile(
        np.array([-4.0, 0.0, 3.0, 1e5], np.float32), np.array([-7.0, 0.0, 3.0, 2e5], np.float32), dtype=np.float32
    )
    head, shared = parameters(np.float32)

    def loss(head, shared, q_pos, k_pos):
        return score(tile._replace(q_pos=q_pos, k_pos=k_pos), head, shared).sum()

    for c in (0.0, 0.1):
        shared["c"] = np.float32(c)
        gradients = jax.grad(loss, argnums=(0, 1, 2, 3))(head, shared, tile.q_pos, tile.k_pos)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def test_the_hidden_layer_is_computed_once_for_all_heads(make_tile):
    tile = make_tile(np.arange(9), np.arange(12), dtype=np.float32)
    program = jax.make_jaxpr(lambda head, shared: score(tile, head, shared))(*parameters(np.float32))
    wide = [var.aval.shape for eqn in program.jaxpr.eqns for var in eqn.outvars if len(var.aval.shape) == 4]
    assert not wide, "an array of heads x queries x keys x hidden units"


def test_init():
    params = FIRE().init(jax.random.key(0), Sizes(model=32, heads=400, kv_heads=400, head_dim=8))
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes.head == {"out": (400, 32), "out_bias": (400,)}
    assert shapes.shared == {"hidden": (32,), "hidden_bias": (32,), "c": (), "threshold": ()}
    assert params.shared["c"] == np.float32(0.1)
    assert params.shared["threshold"] == 1
    assert 0.9 < np.abs(params.shared["hidden"]).max() <= 1
    assert 0.99 * 32**-0.5 < np.abs(params.head["out"]).max() <= 32**-0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(hidden=0), "hidden must be at least 1, got 0"),
        (dict(hidden=32.0), "hidden must be an integer, got 32.0"),
        (dict(threshold=0.0), "threshold must be positive and finite, got 0.0"),
        (dict(threshold=float("nan")), "threshold must be positive and finite, got nan"),
        (dict(threshold=float("inf")), "threshold must be positive and finite, got inf"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        FIRE(**options)
