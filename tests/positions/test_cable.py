"""Cable against the authors' code, by hand, and as FoX with the sign of its weights turned."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import Cable, EncodingParams, FoX, Sizes
from tests.positions.contextual import assert_same, golden, self_attention, with_gradients

SIZES = Sizes(model=16, heads=2, kv_heads=2, head_dim=8)


def params_of(arrays):
    return EncodingParams(head={"w": arrays["gate_kernel"].T, "b": arrays["gate_bias"]})


@pytest.mark.parametrize("implementation", ["dense", aj.Tiling(5, 3)])
def test_agrees_with_the_authors_code(implementation, x64):
    """Which does not divide the logits by sqrt(H)."""
    arrays = golden("cable")
    out, gradients = with_gradients(Cable(), params_of(arrays), arrays, scale=1, implementation=implementation)
    assert_same(out, arrays["out"])
    for name in ("x", "q", "k"):
        assert_same(gradients[name], arrays[f"grad_{name}"])
    assert_same(gradients["params"].head["w"].T, arrays["grad_gate_kernel"])
    assert_same(gradients["params"].head["b"], arrays["grad_gate_bias"])


def test_the_bias_is_that_of_the_authors(x64):
    arrays = golden("cable")
    pos = aj.context_positions(Cable(), params_of(arrays), jnp.asarray(arrays["x"]), np.arange(12), SIZES)
    n = pos[..., :, None] - pos[..., None, :]
    assert_same(jnp.tril(Cable().bias(EncodingParams(), n)), arrays["bias"])
    assert_same(jnp.tril(Cable().slope(EncodingParams()).astype(n.dtype) * n), arrays["bias"])


def test_positions_by_hand():
    """Costs log(1 + e^z) of z = log 1, log 3 and log 7 are log 2, log 4 and log 8."""
    x = jnp.log(jnp.array([[1.0], [3.0], [7.0]]))
    p = EncodingParams(head={"w": jnp.ones(1), "b": jnp.zeros(())})
    pos = Cable().context(p, x, jnp.arange(3), jnp.zeros(()))
    np.testing.assert_allclose(pos, [math.log(2), 3 * math.log(2), 6 * math.log(2)], rtol=1e-6)


def test_is_fox_with_weights_of_the_other_sign(x64):
    arrays = golden("cable")
    params, (x, q, k, v) = params_of(arrays), (jnp.asarray(arrays[name]) for name in "xqkv")
    turned = jax.tree.map(jnp.negative, params)
    assert_same(self_attention(Cable(), params, x, q, k, v), self_attention(FoX(), turned, x, q, k, v))


@pytest.mark.slow
def test_documents_in_one_row_equal_rows_of_their_own(x64):
    arrays = golden("cable")
    params, (x, q, k, v) = params_of(arrays), (jnp.asarray(arrays[name]) for name in "xqkv")
    ids = np.repeat([0, 1], [7, 5])
    packed = self_attention(Cable(), params, x, q, k, v, mask=aj.Mask(causal=True, q_segments=ids, k_segments=ids))
    for part in (slice(0, 7), slice(7, 12)):
        assert_same(packed[:, part], self_attention(Cable(), params, *(one[:, part] for one in (x, q, k, v))))


def test_initial_costs_are_log_2():
    params = Cable().init(jax.random.key(0), Sizes(512, 64, 64, 8))
    assert jax.tree.map(jnp.shape, params.head) == {"w": (64, 512), "b": (64,)}
    np.testing.assert_array_equal(params.head["b"], 0)
    np.testing.assert_allclose([params.head["w"].mean(), params.head["w"].std()], [0, 0.02], atol=5e-4)


def test_refuses_a_mask_that_is_not_causal():
    x, q = jnp.zeros((1, 3, 16)), jnp.zeros((1, 3, 2, 8))
    with pytest.raises(ValueError, match=r"Cable rewards keys in the future .* pass Mask\(causal=True\)"):
        self_attention(Cable(), Cable().init(jax.random.key(0), SIZES), x, q, q, q, mask=aj.Mask())
