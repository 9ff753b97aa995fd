"""Gradients of `chunked` are sums in a fixed order: the same bits again and again, and the same number for every tile."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import FIRE, CoPE, Kerple, Mask, PoPE, Sizes, T5Bias, Tiling, TransformerXL, compose
from attnjax.attention import dispatch
from attnjax.attention.blockwise import blockwise
from attnjax.attention.dispatch import attend
from tests.cases import OPTIMISED, slow_except

B, T, N, K, H = 2, 61, 4, 2, 8
LEARNED = {
    "t5": T5Bias(),
    "kerple": Kerple(),
    "fire": FIRE(threshold=20.0),
    "transformer_xl": TransformerXL(),
    "cope": CoPE(max_position=8),
    "pope+t5": compose(PoPE(), T5Bias(bidirectional=True)),
}


@pytest.fixture
def inputs():
    normal = np.random.default_rng(0).normal
    return tuple(normal(size=(B, T, heads, H)).astype(np.float32) for heads in (N, K, K))


def parameters(encoding):
    """Away from zero, where CoPE and PoPE start."""
    random = np.random.default_rng(1)
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, K, H))
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) + np.float32(0.3) * random.normal(size=leaf.shape).astype("f"), params
    )


QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def gradient(encoding, options=None):
    """A freshly compiled gradient with respect to (params, q, k, v)."""

    def loss(params, q, k, v):
        out = attend(q, k, v, encoding=encoding, params=params, mask=Mask(causal=True), implementation="chunked")
        return jnp.sin(out).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)), compiler_options=options)


def bits(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture
def tiles_of(monkeypatch):
    return lambda *tile: monkeypatch.setitem(
        dispatch.WITH_LSE, "chunked", functools.partial(blockwise, tiling=Tiling(*tile))
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_except(LEARNED, "t5", "cope"))
def test_gradients_repeat_bit_for_bit(name, inputs, tiles_of):
    """Over calls of one program, and over programs compiled anew."""
    tiles_of(16, 8)
    encoding = LEARNED[name]
    params = parameters(encoding)
    run = gradient(encoding, OPTIMISED)
    first = bits(run(params, *inputs))
    assert all(bits(run(params, *inputs)) == first for _ in range(5))
    jax.clear_caches()
    assert bits(gradient(encoding, OPTIMISED)(params, *inputs)) == first


@pytest.mark.parametrize("name", slow_except(LEARNED, "fire"))
def test_gradients_do_not_depend_on_the_tile(name, inputs, tiles_of):
    encoding = LEARNED[name]
    params = parameters(encoding)
    results = []
    for tile in ((128, 128), (7, 33)):
        tiles_of(*tile)
        results.append(jax.tree.leaves(gradient(encoding, QUICK)(params, *inputs)))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(one).max())))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", slow_except(["t5", "fire", "cope"], "t5"))
def test_examples_do_not_see_each_other(name, inputs, tiles_of):
    """The gradient of a batch is the sum of the gradients of its examples, though tiles are planned for all at once."""
    tiles_of(16, 8)
    encoding = LEARNED[name]
    params, inputs = jax.tree.map(lambda x: jnp.asarray(x, "float64"), (parameters(encoding), inputs))
    run = gradient(encoding, QUICK)
    whole = run(params, *inputs)
    parts = [run(params, *(x[b : b + 1] for x in inputs)) for b in range(B)]
    for a, one, other in zip(*(jax.tree.leaves(grads[0]) for grads in (whole, *parts)), strict=True):
        np.testing.assert_allclose(a, one + other, rtol=1e-12, atol=1e-12)
    for a, one, other in zip(whole[1:], parts[0][1:], parts[1][1:], strict=True):
        np.testing.assert_allclose(a, np.concatenate([one, other]), rtol=1e-12, atol=1e-12)
