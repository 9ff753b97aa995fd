"""Selective RoPE against the authors' code, by hand, and in pieces of every length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import EncodingParams, SelectiveRoPE, Sizes
from tests.positions.contextual import assert_same, golden, self_attention, with_gradients

SIZES = Sizes(model=16, heads=2, kv_heads=2, head_dim=8)
PLAIN = SelectiveRoPE(rank=4)


def torch_layout(params):
    """Parameters under the names and in the shapes of the authors' module."""
    return {
        "phi_proj.0.weight": params.shared["down"].T,
        "phi_proj.1.weight": params.kv_head["up"].swapaxes(1, 2).reshape(8, 4),
        "phi_conv1d.weight": params.kv_head["convolution"].swapaxes(1, 2).reshape(8, 1, 4),
    }


def params_of(arrays):
    by_head = lambda name: arrays[f"low_rank_{name}"].reshape(2, 4, 4).swapaxes(1, 2)
    kv_head = {"up": by_head("phi_proj.1.weight"), "convolution": by_head("phi_conv1d.weight")}
    return EncodingParams(kv_head=kv_head, shared={"down": arrays["low_rank_phi_proj.0.weight"].T})


@pytest.mark.parametrize("implementation", ["dense", aj.Tiling(5, 3)])
def test_agrees_with_the_authors_code(implementation, x64):
    """Their published configuration, convolution included."""
    arrays = golden("selective_rope")
    out, gradients = with_gradients(PLAIN, params_of(arrays), arrays, implementation=implementation)
    assert_same(out, arrays["low_rank_out"])
    assert_same(gradients["x"], arrays["low_rank_grad_x"])
    for name, gradient in torch_layout(gradients["params"]).items():
        assert_same(gradient, arrays[f"low_rank_grad_{name}"])


def test_rotations_are_the_authors(x64):
    arrays = golden("selective_rope")
    p = PLAIN.constants(SIZES)
    assert_same(p.shared["temperature"], arrays["low_rank_temperature"])
    pos = aj.context_positions(PLAIN, params_of(arrays), jnp.asarray(arrays["x"]), np.arange(12), SIZES)
    assert pos.shape == (2, 2, 12, 16)
    over_heads = jax.vmap(lambda q, pos: PLAIN.map_q(p, q, pos), in_axes=(1, 0), out_axes=1)
    assert_same(jax.vmap(over_heads)(jnp.asarray(arrays["q"]), pos), arrays["low_rank_turned_q"])
    ones = jnp.concatenate([jnp.ones((2, 12, 2, 4)), jnp.zeros((2, 12, 2, 4))], -1)
    assert_same(jax.vmap(over_heads)(ones, pos), arrays["low_rank_cos_sin"])


def test_three_tokens_by_hand():
    """One head, one pair, x of length 1: phi = 2, -2, 2; taps 1, 10, 100, 1000 from the oldest to the newest."""
    p = EncodingParams(
        kv_head={"up": jnp.array([[2.0]]), "convolution": jnp.array([[1.0], [10.0], [100.0], [1000.0]])},
        shared={"down": jnp.array([[1.0]]), "temperature": np.ones(1), "heads": np.arange(1)},
    )
    pos = SelectiveRoPE(rank=1).context(p, jnp.array([[1e3], [-1e3], [1e3]]), jnp.arange(3), jnp.zeros((4,)))
    psi = [2000, 200 - 2000, 20 - 200 + 2000]
    np.testing.assert_allclose(pos[:, 0], np.cumsum(psi), rtol=1e-6)
    np.testing.assert_allclose(pos[:, 1:], [[0, 0, 2], [0, 2, -2], [2, -2, 2]], rtol=1e-6)


@pytest.mark.quick("(3, 5, 6)")
@pytest.mark.parametrize("cuts", [(1,), (2, 3), (3, 5, 6), tuple(range(1, 12))], ids=str)
def test_pieces_equal_the_whole(cuts, x64):
    """The position of the token before holds all that the convolution and the sum need, however short the pieces."""
    arrays = golden("selective_rope")
    x, params = jnp.asarray(arrays["x"]), params_of(arrays)
    whole = aj.context_positions(PLAIN, params, x, np.arange(12), SIZES)
    before, parts = None, []
    for start, stop in zip((0, *cuts), (*cuts, 12)):
        parts.append(aj.context_positions(PLAIN, params, x[:, start:stop], np.arange(start, stop), SIZES, before))
        before = parts[-1][:, :, -1]
    assert_same(jnp.concatenate(parts, 2), whole)


def test_initial_angles_are_near_zero():
    params = SelectiveRoPE().init(jax.random.key(0), Sizes(model=512, heads=8, kv_heads=4, head_dim=64))
    assert jax.tree.map(jnp.shape, params.kv_head) == {"up": (4, 32, 32), "convolution": (4, 4, 32)}
    assert params.shared["down"].shape == (512, 32)
    for leaf in jax.tree.leaves(params):
        np.testing.assert_allclose([leaf.mean(), leaf.std()], [0, 0.02], atol=2.5e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "SelectiveRoPE: rank must be at least 1, got 0"),
        ({"theta": -1.0}, "SelectiveRoPE: theta must be positive and finite, got -1.0"),
        ({"temperature": 0}, "SelectiveRoPE: temperature must be positive and finite, got 0"),
        ({"layout": "x"}, "layout must be one of"),
    ],
)
def test_refuses_hyperparameters(options, message):
    with pytest.raises(ValueError, match=message):
        SelectiveRoPE(**options)


def test_refuses_chunks_that_do_not_divide_the_input():
    sizes = Sizes(model=15, heads=2, kv_heads=2, head_dim=8)
    with pytest.raises(ValueError, match="a chunk for each of 2 key heads, which do not divide D = 15"):
        aj.context_positions(PLAIN, PLAIN.init(jax.random.key(0), sizes), jnp.ones((1, 3, 15)), np.arange(3), sizes)


def test_refuses_an_odd_head_dimension():
    x, q = jnp.zeros((1, 3, 16)), jnp.zeros((1, 3, 2, 5))
    with pytest.raises(
        ValueError, match="SelectiveRoPE rotates pairs of channels: the head dimension must be even, got 5"
    ):
        self_attention(PLAIN, PLAIN.init(jax.random.key(0), SIZES), x, q, q, q)
