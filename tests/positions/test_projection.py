"""`project`: the bits of a plain product in float32; in 16 bits exact products of rounded operands, and so in its gradient.

Then the positions that encodings compute with it from content: of 16-bit products, and exact in float32 but for the rounding of
what is learned.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions.projection import HIGHEST, project
from tests.cases import OPTIMISED
from tests.widened import equations, products, widened_products

U = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SIZES = aj.Sizes(model=32, heads=4, kv_heads=2, head_dim=8)
CONTEXTS = ("fox", "cable", "repo", "selective_rope", "path")
T = 200
RNG = np.random.default_rng(0)
X, W, DY = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in ((T, 32), (32, 5), (T, 5)))


def double(*arrays):
    return [np.asarray(x, np.float64) for x in arrays]


@pytest.mark.parametrize("w", [W, W[:, 0]], ids=["matrix", "vector"])
def test_float32_is_the_plain_product(w):
    plain = lambda x, w: jnp.dot(x, w, precision=HIGHEST)
    weight = DY if w.ndim == 2 else DY[:, 0]
    of = lambda product: jax.make_jaxpr(jax.grad(lambda x, w: (product(x, w) * weight).sum(), argnums=(0, 1)))(X, w)
    assert str(of(project)) == str(of(plain))
    np.testing.assert_array_equal(project(X, w), plain(X, w))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_round_the_factors_alone(dtype):
    x, u = X.astype(dtype), U[dtype]
    y, pull = jax.vjp(project, x, W)
    rounded_x, rounded_w, dy = double(x, W.astype(dtype), DY)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, rounded_x @ rounded_w, rtol=0, atol=1e-5)
    dx, dw = pull(DY)
    assert (dx.dtype, dw.dtype) == (dtype, jnp.float32)
    for found, left, right in ((dx, dy, rounded_w.T), (dw, rounded_x.T, dy)):
        # The cotangent is rounded, and the result.
        bound = u * 1.01 * (np.abs(left) @ np.abs(right) + np.abs(left @ right)) + 1e-5
        error = np.abs(np.asarray(found, np.float64) - left @ right)
        assert np.all(error <= bound)
        assert error.max() > u / 100


def test_a_float32_cotangent_would_widen_the_other_factor():
    """What `preferred_element_type` alone becomes, which is why there is a rule of our own."""
    alone = lambda x, w: jnp.dot(x, w.astype(x.dtype), preferred_element_type=jnp.float32)
    traced = lambda product: jax.make_jaxpr(jax.grad(lambda x, w: (product(x, w) * DY).sum(), argnums=(0, 1)))
    x = X.astype(jnp.bfloat16)
    assert set(products(traced(alone)(x, W))) != {("bfloat16", "bfloat16")}
    assert products(traced(project)(x, W)) == {("bfloat16", "bfloat16"): 3}


def test_second_derivatives_and_forward_mode():
    x = X.astype(jnp.bfloat16)
    loss = lambda w: (jnp.tanh(project(x, w)) ** 2).sum()
    hessian = lambda loss, w: jax.jvp(jax.grad(loss), (w,), (W,))[1]
    exact = hessian(lambda w: (jnp.tanh(X @ w) ** 2).sum(), W)
    found = jax.jit(lambda w: hessian(loss, w))(W)
    assert np.linalg.norm(found - exact) < 2**-5 * np.linalg.norm(exact)


def positions_of(name, dtype, params=None, gradient=False):
    encoding = aj.ENCODINGS[name]()
    params = encoding.init(jax.random.key(0), SIZES) if params is None else params
    x = jnp.asarray(RNG.normal(size=(2, T, 32)), dtype)
    found = lambda params, x: aj.context_positions(encoding, params, x, np.arange(T), SIZES)
    return (jax.grad(lambda *of: found(*of).sum(), argnums=(0, 1)) if gradient else found), params, x


@pytest.mark.parametrize("name", CONTEXTS)
def test_content_of_sixteen_bits_is_not_widened_before_a_product(name):
    function, params, x = positions_of(name, "bfloat16", gradient=True)
    jaxpr = jax.make_jaxpr(function)(params, x)
    assert widened_products(jaxpr) == []
    assert products(jaxpr)["bfloat16", "bfloat16"] >= 2


@pytest.mark.parametrize("name", CONTEXTS)
def test_content_of_float32_has_no_product_of_sixteen_bits(name):
    function, params, x = positions_of(name, "float32", gradient=True)
    jaxpr = jax.make_jaxpr(function)(params, x)
    assert set(products(jaxpr)) == {("float32", "float32")}
    assert "bfloat16" not in {str(v.aval.dtype) for one in equations(jaxpr.jaxpr) for v in one.outvars}


@pytest.mark.parametrize("name", ["fox", "cable", "repo"])
def test_positions_from_bfloat16_content_are_exact_but_for_the_rounding_of_weights(name):
    """In float64, with the weights that multiply the content rounded to bfloat16."""
    function, params, x = positions_of(name, "bfloat16")
    found = jax.jit(function, compiler_options=OPTIMISED)(params, x)
    assert found.dtype == jnp.float32
    narrow = lambda name, leaf: leaf if name in ("b", "out") else leaf.astype(jnp.bfloat16)
    with jax.enable_x64(True):
        side = lambda leaves: {
            key: jnp.asarray(np.asarray(narrow(key, leaf), np.float64)) for key, leaf in leaves.items()
        }
        rounded = aj.EncodingParams(*(side(leaves) if leaves else leaves for leaves in params))
        exact = function(rounded, jnp.asarray(np.asarray(x, np.float64)))
    np.testing.assert_allclose(found, exact, rtol=2e-6, atol=1e-6)
