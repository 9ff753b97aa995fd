import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import EncodingParams, Sizes
from attnjax.positions.kerple import Kerple

SIZES = Sizes(model=8, heads=20_000, kv_heads=20_000, head_dim=4)
N = [-70_000, -3, -1, 0, 1, 2, 50, 65_536]


def softplus(x):
    return math.log1p(math.exp(x))


def expected(kind, r1, r2, n):
    if kind == "log":
        return -softplus(r1) * math.log(1 + softplus(r2) * abs(n))
    return -softplus(r1) * abs(n) ** (2 / (1 + math.exp(-r2)))


@pytest.mark.parametrize("kind", ["log", "power"])
def test_bias_against_the_formula(kind, x64):
    head = {"r1": np.array([-2.0, 0.3, 1.5]), "r2": np.array([0.7, -4.0, 2.5])}
    bias = jax.jit(jax.vmap(lambda head: Kerple(kind).bias(EncodingParams(head=head), jnp.array(N))))(head)
    assert bias.dtype == jnp.float64
    rows = [[expected(kind, r1, r2, n) for n in N] for r1, r2 in zip(head["r1"], head["r2"], strict=True)]
    np.testing.assert_allclose(bias, rows, rtol=1e-12)


@pytest.mark.parametrize("kind", ["log", "power"])
def test_bias_in_single_precision(kind):
    bias = Kerple(kind).bias(EncodingParams(head={"r1": jnp.float32(0.3), "r2": jnp.float32(-0.4)}), jnp.array(N))
    assert bias.dtype == jnp.float32
    np.testing.assert_allclose(bias, [expected(kind, 0.3, -0.4, n) for n in N], rtol=1e-5)


@pytest.mark.parametrize("kind", ["log", "power"])
@pytest.mark.parametrize("raw", [-30.0, 0.0, 30.0])
def test_gradients_are_finite(kind, raw):
    def total(r1, r2, n):
        return Kerple(kind).bias(EncodingParams(head={"r1": r1, "r2": r2}), n).sum()

    n = jnp.array([-1e5, -1.0, -0.5, 0.0, 0.5, 1.0, 1e5])
    for gradient in jax.grad(total, argnums=(0, 1, 2))(jnp.float32(raw), jnp.float32(raw), n):
        assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize(("kind", "tops"), [("log", (2.0, 1.0)), ("power", (1.0, 2.0))])
def test_init_is_uniform_after_the_map(kind, tops):
    """The authors draw the exponent, or what stands before the logarithm, to 2, and what multiplies the distance to 1."""
    head = Kerple(kind).init(jax.random.key(3), SIZES).head
    assert {name: leaf.shape for name, leaf in head.items()} == {"r1": (20_000,), "r2": (20_000,)}
    r1, r2 = (np.asarray(head[name], np.float64) for name in ("r1", "r2"))
    mapped = np.log1p(np.exp(r2)) if kind == "log" else 2 / (1 + np.exp(-r2))
    for sample, top in zip((np.log1p(np.exp(r1)), mapped), tops, strict=True):
        assert sample.min() > 0
        assert sample.max() < top
        np.testing.assert_allclose(np.quantile(sample, [0.25, 0.5, 0.75]), np.array([0.25, 0.5, 0.75]) * top, atol=0.04)


@pytest.mark.parametrize("kind", ["linear", float("nan"), None])
def test_refuses(kind):
    with pytest.raises(ValueError, match=r"kind must be one of \('log', 'power'\)"):
        Kerple(kind)
