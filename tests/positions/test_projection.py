"""`project`: the bits of a plain product in float32; in 16 bits exact products of rounded operands, and so in its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions.projection import HIGHEST, project
from tests.positions.hooks import close, run
from tests.widened import products, widened_products

SIZES = aj.Sizes(model=32, heads=4, kv_heads=2, head_dim=8)
CONTEXTS = ("fox", "cable", "repo", "selective_rope", "path")
DRAW = np.random.default_rng(0)
X, W, DY = (DRAW.normal(size=shape).astype(np.float32) for shape in ((50, 32), (32, 5), (50, 5)))


def test_float32_is_the_plain_product():
    plain = lambda x, w: jnp.dot(x, w, precision=HIGHEST)
    of = lambda product, w: jax.make_jaxpr(jax.grad(lambda x, w: jnp.sin(product(x, w)).sum(), argnums=(0, 1)))(X, w)
    for w in (W, W[:, 0]):
        assert str(of(project, w)) == str(of(plain, w))


@pytest.mark.parametrize(("dtype", "u"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_sixteen_bits_round_the_factors_alone(dtype, u):
    """Of the gradient the cotangent is rounded, and the result."""
    x = X.astype(dtype)
    y, dx, dw = run(lambda x, w, dy: (lambda y, pull: (y, *pull(dy)))(*jax.vjp(project, x, w)), x, W, DY)
    rounded_x, rounded_w, dy = (np.asarray(one, np.float64) for one in (x, W.astype(dtype), DY))
    assert (y.dtype, dx.dtype, dw.dtype) == (np.float32, x.dtype, np.float32)
    close(y, rounded_x @ rounded_w, 1e-5)
    for found, left, right in ((dx, dy, rounded_w.T), (dw, rounded_x.T, dy)):
        bound = u * 1.01 * (np.abs(left) @ np.abs(right) + np.abs(left @ right)) + 1e-5
        error = np.abs(found.astype(np.float64) - left @ right)
        assert np.all(error <= bound)
        assert error.max() > u / 100


def test_a_float32_cotangent_would_widen_the_other_factor():
    """So it does with `preferred_element_type` alone, which is why there is a rule of our own."""
    alone = lambda x, w: jnp.dot(x, w.astype(x.dtype), preferred_element_type=jnp.float32)
    traced = lambda product: jax.make_jaxpr(jax.grad(lambda x, w: (product(x, w) * DY).sum(), argnums=(0, 1)))
    x = X.astype(jnp.bfloat16)
    assert set(products(traced(alone)(x, W))) != {("bfloat16", "bfloat16")}
    assert products(traced(project)(x, W)) == {("bfloat16", "bfloat16"): 3}


@pytest.mark.parametrize("name", CONTEXTS)
def test_content_of_an_encoding_is_not_widened_before_a_product(name):
    """Positions of 16-bit content come from products of 16 bits, and those of float32 from none."""
    encoding = aj.ENCODINGS[name]()
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), SIZES))
    loss = lambda params, x: aj.context_positions(encoding, params, x, np.arange(20), SIZES).sum()
    program = lambda dtype: jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(
        params, jax.ShapeDtypeStruct((2, 20, 32), dtype)
    )
    narrow = program(jnp.bfloat16)
    assert widened_products(narrow) == []
    assert products(narrow)["bfloat16", "bfloat16"] >= 2
    assert set(products(program(jnp.float32))) == {("float32", "float32")}
