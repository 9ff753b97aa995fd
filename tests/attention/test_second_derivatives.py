"""Derivatives of gradients through tiles: Hessian-vector products in both orders, and forward mode where it is asked for.

Dense attention, whose derivatives of second order are checked against finite differences, is the reference.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import FIRE, CoPE, Mask, NoPE, RoPE, T5Bias, Tiling, attend
from tests.attention.toys import Budget, MixedHeads, N, Sigmoid, assert_trees_close, drawn, learned
from tests.cases import FAST, slow_except

pytestmark = pytest.mark.usefixtures("x64")
T = 23
ENCODINGS = {
    "nope": NoPE(),
    "rope": RoPE(),
    "t5": T5Bias(),
    "fire": FIRE(hidden=4, threshold=9.0),
    "cope": CoPE(max_position=4),
    "not normalized": Sigmoid(),
    "mixed heads": MixedHeads(),
    "carry of queries": Budget(),
}
TILES = {"tiles": Tiling(7, 5), "one head at a time": Tiling(8, 6, heads=1)}
"""Four tiles of queries and five of keys, of which a causal mask leaves some out and cuts others."""


def loss_of(name, implementation, sink=True):
    """A scalar of (q, k, v, params, scale, sink) that is no quadratic form; two examples of different length."""
    encoding, valid = ENCODINGS[name], np.arange(T)[None] < np.array([[T], [T - 9]])

    def loss(q, k, v, params, scale, sink):
        mask = Mask(causal=True, k_valid=valid)
        sink = None if name == "not normalized" else sink
        options = {"encoding": encoding, "params": params, "scale": scale, "sink": sink, "mask": mask}
        return jnp.sin(attend(q, k, v, implementation=implementation, **options)).sum()

    return loss


def point(name):
    """Where derivatives are taken, and a direction."""
    arguments = (*drawn(T), learned(ENCODINGS[name]), jnp.asarray(0.4), jnp.linspace(-1.0, 1.0, N))
    draw = np.random.default_rng(5)
    return arguments, jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape)), arguments)


ALL = tuple(range(6))


def forward_over_reverse(loss, arguments, along):
    return jax.jvp(jax.grad(loss, argnums=ALL), arguments, along)[1]


def reverse_over_reverse(loss, arguments, along):
    slope = lambda *arguments: sum(
        jnp.vdot(g, d)
        for g, d in zip(*map(jax.tree.leaves, (jax.grad(loss, argnums=ALL)(*arguments), along)), strict=True)
    )
    return jax.grad(slope, argnums=ALL)(*arguments)


ORDERS = {"forward over reverse": forward_over_reverse, "reverse over reverse": reverse_over_reverse}


@pytest.mark.quick("cope-forward over reverse")
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("name", slow_except(ENCODINGS, "nope", "cope"))
def test_hessian_vector_products_are_those_of_dense(name, order):
    arguments, along = point(name)
    run = lambda way: jax.jit(
        lambda arguments, along: order(loss_of(name, way), arguments, along), compiler_options=FAST
    )(arguments, along)
    expected = run("dense")
    assert all(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(expected[:3]))
    for tiling in TILES.values():
        assert_trees_close(run(tiling), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_hessian_vector_products_by_default_at_a_length_that_chooses_tiles():
    """Above 4 MiB of scores `attend` takes tiles of its own choice, and the product still works."""
    T = 800
    arrays = drawn(T, B=1, dtype="float32")
    loss = lambda q, implementation: jnp.sin(
        attend(q, *arrays[1:], encoding=RoPE(), mask=Mask(causal=True), implementation=implementation)
    ).sum()
    along = jnp.cos(jnp.arange(arrays[0].size, dtype=jnp.float32)).reshape(arrays[0].shape)
    product = jax.jit(lambda q, way: jax.jvp(jax.grad(lambda q: loss(q, way)), (q,), (along,))[1], static_argnums=1)
    np.testing.assert_allclose(product(arrays[0], None), product(arrays[0], "dense"), atol=1e-5)


@pytest.mark.parametrize("name", slow_except(ENCODINGS, "rope", "cope"))
def test_forward_mode_of_tiles_that_are_asked_for_it(name):
    """Tangents and gradients of `Tiling(forward_mode=True)` are those of dense; plain tiles are refused by JAX."""
    arguments, along = point(name)
    tangent = lambda way: jax.jit(
        lambda arguments, along: jax.jvp(loss_of(name, way), arguments, along), compiler_options=FAST
    )(arguments, along)
    expected = tangent("dense")
    np.testing.assert_allclose(tangent(Tiling(7, 5, forward_mode=True)), expected, rtol=1e-9)
    gradient = lambda way: jax.jit(jax.grad(loss_of(name, way), argnums=ALL), compiler_options=FAST)(*arguments)
    assert_trees_close(gradient(Tiling(7, 5, forward_mode=True)), gradient("dense"))
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        tangent("chunked")
