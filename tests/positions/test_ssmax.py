"""SSMax against an implementation of others, by hand, and at positions between and before whole numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import EncodingParams, Sizes, SSMax
from tests.positions.contextual import CAUSAL, D, assert_same, golden, self_attention, with_gradients


def with_x(arrays):
    """SSMax reads no tokens."""
    return arrays | {"x": np.zeros((2, 12, D))}


@pytest.mark.parametrize("implementation", ["dense", aj.Tiling(5, 3)])
def test_agrees_with_the_reference_arrays(implementation, x64):
    arrays = with_x(golden("scalable_softmax"))
    plain = EncodingParams(head={"s": arrays["s"]})
    out, _ = with_gradients(SSMax(), plain, arrays, implementation=implementation)
    assert_same(out, arrays["plain_out"])
    biased = EncodingParams(head={"s": arrays["s"], "b": arrays["b"]})
    out, gradients = with_gradients(SSMax(biased=True), biased, arrays, implementation=implementation)
    assert_same(out, arrays["biased_out"])
    for name in ("q", "k"):
        assert_same(gradients[name], arrays[f"grad_{name}"])
    for name in ("s", "b"):
        assert_same(gradients["params"].head[name], arrays[f"grad_{name}"])


def test_weights_are_powers_of_the_number_of_keys():
    """Logits z = 0, 1, 2 under s = 1: the third query weighs them 3^0, 3^1, 3^2, which is the paper's formula."""
    q, k = jnp.ones((1, 3, 1, 1)), jnp.array([0.0, 1.0, 2.0]).reshape(1, 3, 1, 1)
    params = EncodingParams(head={"s": jnp.ones(1)})
    weights = aj.attention_weights(q, k, encoding=SSMax(), params=params, mask=CAUSAL, scale=1)
    np.testing.assert_allclose(weights[0, 0], [[1, 0, 0], [1 / 3, 2 / 3, 0], [1 / 13, 3 / 13, 9 / 13]], rtol=1e-5)


def test_positions_between_and_before_whole_numbers():
    p = EncodingParams(head={"s": jnp.float32(2.0)})
    found = SSMax().map_q(p, jnp.ones((5, 1)), jnp.array([-3.0, -0.5, 0.0, 0.5, 6.25]))
    np.testing.assert_allclose(found[:, 0], [0, 0, 0, 2 * math.log(1.5), 2 * math.log(7.25)], rtol=1e-6)
    far = SSMax().map_q(p, jnp.ones((1, 1)), jnp.array([2**31 - 1]))
    np.testing.assert_allclose(far, [[2 * math.log(2**31)]], rtol=1e-6)


def test_a_bias_of_another_encoding_is_not_multiplied(x64):
    """With keys of 0 only the bias of ALiBi is left, and SSMax changes nothing."""
    q, v = jnp.ones((1, 6, 2, 4)), jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, 2, 4)))
    both = aj.compose(SSMax(), aj.ALiBi())
    params = both.init(jax.random.key(0), Sizes(8, 2, 2, 4))
    alone = aj.attend(q, 0 * q, v, encoding=aj.ALiBi(), mask=CAUSAL)
    assert_same(aj.attend(q, 0 * q, v, encoding=both, params=params, mask=CAUSAL), alone)


def test_gradients_are_finite_from_the_first_position_on():
    for pos in ([-5, 0, 1], [-0.5, 0.0, 3.5]):
        total = lambda s, q, pos=pos: SSMax().map_q(EncodingParams(head={"s": s}), q, jnp.array(pos)).sum()
        for gradient in jax.grad(total, argnums=(0, 1))(jnp.float32(0.4), jnp.ones((3, 2))):
            assert np.all(np.isfinite(gradient))


def test_initial_scale():
    assert float(golden("scalable_softmax")["initial_s"]) == SSMax().initial
    sizes = Sizes(8, 3, 1, 4)
    np.testing.assert_array_equal(SSMax().init(jax.random.key(0), sizes).head["s"], np.full(3, 0.43, np.float32))
    biased = SSMax(0.168, biased=True).init(jax.random.key(0), sizes).head
    np.testing.assert_array_equal(biased["s"], np.full(3, 0.168, np.float32))
    np.testing.assert_array_equal(biased["b"], np.zeros(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial": 0.0}, "SSMax: initial must be positive and finite, got 0.0"),
        ({"biased": 1}, "SSMax: biased must be True or False, got 1"),
    ],
)
def test_refuses_hyperparameters(options, message):
    with pytest.raises(ValueError, match=message):
        SSMax(**options)


def test_refuses_a_mask_that_is_not_causal():
    x, q = jnp.zeros((1, 3, D)), jnp.zeros((1, 3, 2, 8))
    with pytest.raises(ValueError, match=r"SSMax takes pos \+ 1 .* needs a causal mask; pass Mask\(causal=True\)"):
        self_attention(SSMax(), SSMax().init(jax.random.key(0), Sizes(16, 2, 2, 8)), x, q, q, q, mask=aj.Mask())
