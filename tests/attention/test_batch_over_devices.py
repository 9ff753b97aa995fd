"""A batch spread over devices under plain `jax.jit`: each computes its own examples, one sum of learned gradients follows, and
gradients that nobody asks for are not made.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import ENCODINGS, Mask, attend
from attnjax.aot.hlo import collectives
from tests.cases import FAST, slow_except

B, T, N, K, H = 8, 48, 4, 2, 8
SIZES = aj.Sizes(N * H, N, K, H)
P = jax.sharding.PartitionSpec
TILES = {"all heads": aj.Tiling(16, 16), "in groups": aj.Tiling(16, 16, heads=2)}
MASKS = {
    "causal": Mask(causal=True),
    "by example": Mask(k_valid=np.arange(T)[None] < 5 * (1 + np.arange(B))[:, None]),
}


def spread(arrays):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(arrays, jax.sharding.NamedSharding(mesh, P("data")))


def arrays_of(encoding):
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(B, T, heads, H)).astype(np.float32) for heads in (N, K, K))
    params = jax.tree.map(
        lambda leaf: np.asarray(leaf + 0.3 * random.normal(size=leaf.shape), np.float32),
        encoding.init(jax.random.key(0), SIZES),
    )
    return params, (q, k, v)


def gradient(encoding, mask, tiles, argnums=(0, 1)):
    def loss(params, arrays):
        return jnp.sin(attend(*arrays, encoding=encoding, params=params, mask=mask, implementation=tiles)).sum()

    return jax.jit(jax.grad(loss, argnums=argnums))


def cases():
    for name in ("t5", "alibi", "fire", "transformer_xl", "cope", "dape"):
        for mask in MASKS:
            for tiles in TILES:
                if mask == "causal" or (not ENCODINGS[name]().needs_causal and name != "alibi"):
                    yield name, mask, tiles


@pytest.mark.parametrize(
    ("name", "mask", "tiles"),
    [
        pytest.param(*case, marks=() if case == ("t5", "causal", "in groups") else pytest.mark.slow, id="-".join(case))
        for case in cases()
    ],
)
def test_learned_gradients_are_summed_over_devices_once(name, mask, tiles):
    """Nowhere in a loop; and they are the numbers of one device."""
    encoding = ENCODINGS[name]()
    params, arrays = arrays_of(encoding)
    run = gradient(encoding, MASKS[mask], TILES[tiles])
    expected = run(params, arrays)
    compiled = run.lower(params, spread(arrays)).compile()
    sums = {kind: (count, at_least) for kind, count, _, at_least in collectives(compiled.as_text())}
    learned = bool(jax.tree.leaves(params))
    assert sums.keys() <= {"all-reduce"}
    assert not any(at_least for _, at_least in sums.values())
    if mask == "causal":
        assert (sums != {}) == learned
    got = run(params, spread(arrays))
    # The output bias of FIRE and DAPE has a gradient of 0: what is left of terms as large as those of the others.
    for a_side, b_side in zip(got, expected, strict=True):
        unit = max((np.abs(b).max() for b in jax.tree.leaves(b_side)), default=0)
        for a, b in zip(jax.tree.leaves(a_side), jax.tree.leaves(b_side), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5 * max(1, unit))


EARLY = ("t5", "kerple", "ssmax", "pope", "mixed_rope")
"""Of which, under plain `jax.jit`, gradients of distances or positions are summed over devices (`experiments/devices`)."""


@pytest.mark.slow
@pytest.mark.parametrize("name", EARLY)
def test_parameters_that_vary_over_devices_are_all_that_is_summed(name):
    """Inside `jax.shard_map`, as a training step makes them; without that more numbers are summed than are learned."""
    encoding = ENCODINGS[name]()
    params, arrays = arrays_of(encoding)
    learned = sum(4 * leaf.size for leaf in jax.tree.leaves(params))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    vary = lambda tree: jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "data", to="varying"), tree)

    def summed(made):
        def loss(params, arrays):
            out = attend(
                *arrays, encoding=encoding, params=made(params), mask=MASKS["causal"], implementation="chunked"
            )
            return jnp.sin(out).sum()

        whole = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
        text = jax.jit(whole).lower(params, arrays).compile(compiler_options=FAST).as_text()
        found = collectives(text)
        assert {one.kind for one in found} == {"all-reduce"}
        return sum(one.bytes for one in found)

    assert summed(vary) == learned
    assert summed(lambda params: params) > learned


def products(jaxpr) -> int:
    """Products and exponentials in a program, its loops and inner functions included."""
    total = 0
    for equation in jaxpr.eqns:
        total += equation.primitive.name in ("dot_general", "exp", "log1p")
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                total += products(inner) if hasattr(inner, "eqns") else 0
    return total


@pytest.mark.parametrize("name", ["fire", "transformer_xl"])
def test_gradients_that_nobody_asks_for_are_not_made(name):
    encoding = ENCODINGS[name]()
    params, arrays = arrays_of(encoding)
    work = [
        products(jax.make_jaxpr(gradient(encoding, MASKS["causal"], None, argnums))(params, arrays).jaxpr)
        for argnums in (1, (0, 1))
    ]
    assert work[0] < work[1]


@pytest.mark.parametrize("name", slow_except(["t5", "fire", "cope"], "t5"))
def test_what_a_gradient_left_out_may_be_asked_for_of_the_gradient(name):
    """d/dparams of dq: the gradient of q alone does not make that of params, and still depends on them."""
    encoding = ENCODINGS[name]()
    params, (q, k, v) = arrays_of(encoding)
    q, k, v = (x[:1, :9] for x in (q, k, v))

    def of_queries(implementation):
        loss = lambda params, q: jnp.sin(
            attend(q, k, v, encoding=encoding, params=params, mask=MASKS["causal"], implementation=implementation)
        ).sum()
        return lambda params: (jax.grad(loss, argnums=1)(params, q) * v.repeat(N // K, 2)).sum()

    got, expected = (jax.jit(jax.grad(of_queries(kind)))(params) for kind in (aj.Tiling(4, 4), "dense"))
    assert max(np.abs(b).max() for b in jax.tree.leaves(expected)) > 1e-4
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * max(1, np.abs(b).max()))
