"""The feed-forward layer against its formula in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.modules import FeedForward
from attnjax.modules.feed_forward import gelu

ERF = np.vectorize(math.erf)
GATED = ("swiglu", "geglu")
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + ERF(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "swiglu": lambda x: x / (1 + np.exp(-x)),
    "geglu": lambda x: ACTIVATIONS["gelu_tanh"](x),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_its_formula(activation, build, call):
    layer = build(FeedForward, 6, 10, activation=activation)
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype(np.float32)
    value = lambda name: np.asarray(getattr(layer, name)[...], np.float64)
    hidden = x @ value("w_in") + value("b_in")
    if activation in GATED:
        hidden *= ACTIVATIONS[activation](x @ value("w_gate") + value("b_gate"))
    else:
        hidden = ACTIVATIONS[activation](hidden)
    np.testing.assert_allclose(call(layer, jnp.asarray(x)), hidden @ value("w_out") + value("b_out"), atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "bias", "parameters"),
    [("relu", True, 2 * 6 * 10 + 10 + 6), ("gelu", False, 2 * 6 * 10), ("swiglu", True, 3 * 6 * 10 + 2 * 10 + 6)],
)
def test_parameters_counted_by_hand(activation, bias, parameters, count):
    assert count(FeedForward, 6, 10, activation=activation, bias=bias) == parameters


def test_initial_values_keep_the_variance():
    layer = FeedForward(400, 100, bias=False, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(np.var(layer.w_in[...]), 1 / 400, rtol=0.05)
    np.testing.assert_allclose(np.var(layer.w_out[...]), 1 / 100, rtol=0.05)


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match=r"activation must be one of 'relu'.*got 'tanh'"):
        FeedForward(6, 10, activation="tanh", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="FeedForward.hidden must be a whole number of at least 1, got 0"):
        FeedForward(6, 0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"x must have shape \[B, T, 6\], got \(2, 3, 5\)"):
        FeedForward(6, 10, rngs=nnx.Rngs(0))(jnp.ones((2, 3, 5)))


def test_the_derivative_of_gelu_is_that_of_jax_also_where_its_own_fails(x64):
    x = jnp.concatenate([jnp.linspace(-10, 10, 161), jnp.array([-1e-9, 0.0, 1e-9])])
    theirs = lambda x: jax.nn.gelu(x, approximate=False)
    np.testing.assert_array_equal(gelu(x), theirs(x))
    slope = lambda f: jax.vmap(jax.grad(f))
    np.testing.assert_allclose(slope(gelu)(x), slope(theirs)(x), rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(
        slope(slope_at := jax.grad(gelu))(x), slope(jax.grad(theirs))(x), rtol=1e-12, atol=1e-300
    )
    mesh = jax.make_mesh((4,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("devices")
    spread = jax.shard_map(jax.vmap(slope_at), mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(jax.jit(spread)(x[:160]), jax.jit(jax.vmap(slope_at))(x[:160]))
