"""RePo against the authors' code, by hand, and as RoPE at the positions that it predicts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import EncodingParams, RePo, RoPE, Sizes
from tests.positions.contextual import assert_same, golden, self_attention, with_gradients

SIZES = Sizes(model=16, heads=2, kv_heads=2, head_dim=8)


def params_of(arrays):
    shared = {"gate": arrays["gate_kernel"], "content": arrays["content_kernel"]}
    return EncodingParams(kv_head={"out": arrays["final_kernel"].T}, shared=shared)


@pytest.mark.parametrize("implementation", ["dense", aj.Tiling(5, 3)])
def test_agrees_with_the_authors_code(implementation, x64):
    arrays = golden("repo")
    out, gradients = with_gradients(RePo(), params_of(arrays), arrays, implementation=implementation)
    assert_same(out, arrays["out"])
    for name in ("x", "q", "k"):
        assert_same(gradients[name], arrays[f"grad_{name}"])
    assert_same(gradients["params"].kv_head["out"].T, arrays["grad_final_kernel"])
    for name in ("gate", "content"):
        assert_same(gradients["params"].shared[name], arrays[f"grad_{name}_kernel"])


def test_positions_and_rotations_are_the_authors(x64):
    arrays = golden("repo")
    params, encoding = params_of(arrays), RePo()
    pos = aj.context_positions(encoding, params, jnp.asarray(arrays["x"]), np.arange(12), SIZES)
    assert_same(pos, arrays["positions"])
    assert np.ptp(pos) > 3, "or the rotations would prove little"
    p = encoding.constants(SIZES)
    over_heads = jax.vmap(lambda q, pos: encoding.map_q(p, q, pos), in_axes=(1, 0), out_axes=1)
    assert_same(jax.vmap(over_heads)(jnp.asarray(arrays["q"]), pos), arrays["turned_q"])


def test_is_rope_at_the_positions_it_predicts(x64):
    """One key head: positions [B, T] that any caller could pass to RoPE."""
    random = np.random.default_rng(0)
    x, q, k = (jnp.asarray(random.normal(size=shape)) for shape in ((2, 9, 16), (2, 9, 4, 8), (2, 9, 1, 8)))
    params = RePo().init(jax.random.key(0), Sizes(16, 4, 1, 8))
    params = jax.tree.map(lambda leaf: 40.0 * leaf, params)
    pos = aj.context_positions(RePo(), params, x, np.arange(9), Sizes(16, 4, 1, 8))[:, 0]
    expected = aj.attend(q, k, k, encoding=RoPE(), q_pos=pos, k_pos=pos, mask=aj.Mask(causal=True))
    assert_same(self_attention(RePo(), params, x, q, k, k), expected)


def test_one_token_by_hand():
    """gate silu(1) = 1 / (1 + 1/e), content 3, out 2."""
    p = EncodingParams(
        kv_head={"out": jnp.array([2.0])}, shared={"gate": jnp.ones((1, 1)), "content": 3 * jnp.ones((1, 1))}
    )
    pos = RePo().context(p, jnp.ones((1, 1)), jnp.arange(1), jnp.zeros(()))
    np.testing.assert_allclose(pos, [6 / (1 + math.exp(-1))], rtol=1e-6)


def test_single_precision_follows_double():
    """Fractional positions of thousands: the whole part of a position is exact in the angle."""
    random = np.random.default_rng(1)
    x = random.normal(size=(1, 20, 64)).astype(np.float32)
    sizes = Sizes(64, 2, 2, 8)
    params = jax.tree.map(lambda leaf: np.asarray(150.0 * leaf), RePo().init(jax.random.key(3), sizes))
    single = aj.context_positions(RePo(), params, jnp.asarray(x), np.arange(20), sizes)
    assert single.dtype == jnp.float32
    assert np.abs(single).max() > 1000
    with jax.enable_x64(True):
        double = aj.context_positions(RePo(), params, jnp.asarray(x, jnp.float64), np.arange(20), sizes)
        np.testing.assert_allclose(single, double, rtol=1e-5, atol=1e-2)


def test_initial_positions_are_near_zero():
    params = RePo().init(jax.random.key(0), Sizes(model=512, heads=8, kv_heads=2, head_dim=64))
    assert jax.tree.map(jnp.shape, params.shared) == {"gate": (512, 64), "content": (512, 64)}
    assert params.kv_head["out"].shape == (2, 64)
    leaves = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    assert np.abs(leaves).max() <= 0.06
    # The deviation of a normal number cut off at three deviations is 0.9866 of what it was.
    np.testing.assert_allclose([leaves.mean(), leaves.std()], [0, 0.02 * 0.9866], atol=2e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"theta": 0.0}, "RePo: theta must be positive and finite, got 0.0"),
        ({"layout": "both"}, r"layout must be one of \('half', 'interleaved'\), got 'both'"),
    ],
)
def test_refuses_hyperparameters(options, message):
    with pytest.raises(ValueError, match=message):
        RePo(**options)


def test_refuses_an_odd_head_dimension():
    x, q = jnp.zeros((1, 3, 8)), jnp.zeros((1, 3, 2, 5))
    params = EncodingParams(
        kv_head={"out": jnp.ones((2, 1))}, shared={n: jnp.ones((8, 1)) for n in ("gate", "content")}
    )
    with pytest.raises(ValueError, match="RePo rotates pairs of channels: the head dimension must be even, got 5"):
        self_attention(RePo(), params, x, q, q, q)
