"""The kernel of `attnjax/attention/pallas/`, interpreted: numbers and gradients against the oracle, and what it refuses.

Programs for a TPU are lowered here and read as text. Whether one compiles is not tested, because that takes libtpu.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import (
    DAPE,
    ALiBi,
    CoPE,
    Dropout,
    DynamicNTK,
    FoX,
    Kerple,
    Mask,
    NoPE,
    RoPE,
    Sizes,
    StickBreaking,
    T5Bias,
    TransformerXL,
    compose,
)
from attnjax.attention import dispatch
from attnjax.attention.pallas import pallas
from attnjax.attention.support import IMPLEMENTATIONS
from tests.attention.matrix import (
    CAUSAL_ONLY,
    ENCODINGS,
    TOLERANCE,
    B,
    H,
    allowed_by,
    assert_near,
    attention,
    cases_of,
    draw,
    outcome,
    served_by_the_kernel,
    truth,
    with_gradients,
)
from tests.cases import FAST, slow_except

SIZE = 8
"""Of a tile: several in both directions, and padding of both."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(dispatch.WITH_LSE, "pallas", functools.partial(pallas, size=SIZE))


SERVED = [name for name in ENCODINGS if served_by_the_kernel(name)]


def kinds():
    """Encodings; one is quick."""
    marks = lambda name: () if name == "fox" else pytest.mark.slow
    return [pytest.param(name, marks=marks(name)) for name in SERVED]


@pytest.mark.parametrize("name", kinds())
def test_agrees_with_the_oracle(name):
    """All masks, rules and positions of the big agreement, traced: hooks run in the kernel."""
    inputs, program, true = draw(ENCODINGS[name], "gqa"), attention(name, "pallas"), truth(name)
    for case, data in cases_of(name, "gqa"):
        expected = outcome(true, inputs, (*data[:2], allowed_by(*data[2:]), data[-1]), "float64")
        assert_near(outcome(program, inputs, data, "float32"), expected, TOLERANCE["float32"], case)


CONSECUTIVE = "nope rope alibi t5 t5-bidirectional kerple kerple-power sandwich transformer_xl rope+t5 fire".split()


@pytest.mark.parametrize("name", slow_except(CONSECUTIVE, "t5"))
def test_consecutive_positions(name):
    """Biases and relative-position keys of a tile's distances, and gradients of what they are made from."""
    inputs = draw(ENCODINGS[name], "gqa")
    T, S = inputs[0].shape[1], inputs[1].shape[1]
    i, j = np.arange(T)[:, None], np.arange(S)[None]
    ids = np.arange(S) // 5
    masks = [(Mask(causal=True, q_segments=ids[:T], k_segments=ids), (j <= i) & (ids[:T, None] == ids[None]))]
    if name not in CAUSAL_ONLY and name != "t5":
        masks += [(Mask(window=(3, 6)), (i - 3 <= j) & (j <= i + 6)), (Mask(), i + j >= 0)]
    pos = [np.broadcast_to(np.arange(n, dtype=np.int32), (B, n)) for n in (T, S)]
    true = truth(name)
    for mask, allowed in masks:
        attend = lambda q, k, v, params, scale, mask=mask: attnjax.attend(
            q, k, v, encoding=ENCODINGS[name], params=params, scale=scale, mask=mask, implementation="pallas"
        )
        expected = outcome(true, inputs, (*pos, np.broadcast_to(allowed, (B, T, S)), np.ones((B, S), bool)), "float64")
        assert_near(outcome(with_gradients(attend), inputs, (), "float32"), expected, TOLERANCE["float32"], mask)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [FoX(), compose(RoPE(), FoX())], ids=["fox", "rope+fox"])
def test_gradients_come_home_through_positions_of_the_content(encoding):
    """Of the tokens and of the gates that positions are computed from, and of a sink and the log-sum-exp."""
    sizes, normal = Sizes(16, 4, 2, 8), np.random.default_rng(0).normal
    T = 19
    params = jax.tree.map(lambda x: x + 0.3, encoding.init(jax.random.key(0), sizes))
    x, q, k, v = (jnp.asarray(normal(size=(2, T, *last)), "float32") for last in ((16,), (4, 8), (2, 8), (2, 8)))

    def loss(implementation, params, x, q, k, v, sink):
        pos = attnjax.context_positions(encoding, params, x, jnp.arange(T), sizes)
        options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "mask": Mask(causal=True)}
        out, lse = attnjax.attend_with_lse(q, k, v, sink=sink, implementation=implementation, **options)
        return jnp.sin(out).sum() + jnp.sin(lse).sum()

    got, expected = (
        jax.jit(jax.grad(functools.partial(loss, way), argnums=range(6)), compiler_options=FAST)(
            params, x, q, k, v, jnp.arange(4.0)
        )
        for way in ("pallas", "dense")
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * max(1.0, float(jnp.abs(b).max())))


# Transformations


def example(encoding, T=16, dtype="float32"):
    """Arguments and a loss of them."""
    normal = np.random.default_rng(1).normal
    params = encoding.init(jax.random.key(0), Sizes(4 * H, 4, 2, H))
    arrays = [jnp.asarray(normal(size=(8, T, heads, H)), dtype) for heads in (4, 2, 2)]

    def loss(implementation, params, q, k, v):
        options = {"encoding": encoding, "params": params, "mask": Mask(causal=True)}
        return jnp.sin(attnjax.attend(q, k, v, implementation=implementation, **options)).sum()

    return loss, (params, *arrays)


@pytest.mark.slow
def test_examples_spread_over_devices():
    """Data parallel in `jax.shard_map`: gradients of replicated parameters are summed over the devices."""
    loss, arguments = example(Kerple())
    mesh, P = jax.sharding.Mesh(np.array(jax.devices()), ("data",)), jax.sharding.PartitionSpec
    expected = jax.jit(jax.grad(functools.partial(loss, "dense"), argnums=range(4)), compiler_options=FAST)(*arguments)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data"), P("data"), P("data")), out_specs=P())
    def total(*arguments):
        return jax.lax.psum(loss("pallas", *arguments), "data")

    got = jax.jit(jax.grad(total, argnums=range(4)), compiler_options=FAST)(*arguments)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_vmap():
    loss, (params, *arrays) = example(T5Bias())
    apart = [x.reshape(2, 4, *x.shape[1:]) for x in arrays]
    gradient = lambda way: jax.grad(functools.partial(loss, way))
    got = jax.jit(jax.vmap(gradient("pallas"), in_axes=(None, 0, 0, 0)), compiler_options=FAST)(params, *apart)
    expected = jax.jit(jax.vmap(gradient("dense"), in_axes=(None, 0, 0, 0)), compiler_options=FAST)(params, *apart)
    np.testing.assert_allclose(got.head["table"], expected.head["table"], atol=1e-5)


def test_second_derivatives_are_refused():
    loss, arguments = example(NoPE())
    gradient = jax.grad(lambda q: loss("pallas", arguments[0], q, *arguments[2:]))
    with pytest.raises(NotImplementedError, match="'pallas' has no second derivatives .*; take 'chunked' or 'dense'"):
        jax.eval_shape(jax.grad(lambda q: gradient(q).sum()), arguments[1])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype):
    """Gradients have the type of the inputs, and are as near to single precision as those of tiles."""
    loss, (params, *arrays) = example(Kerple(), T=40)
    gradient = lambda way, arrays: jax.jit(
        jax.grad(functools.partial(loss, way), argnums=range(4)), compiler_options=FAST
    )(params, *arrays)
    small = [x.astype(dtype) for x in arrays]
    exact = gradient("dense", [x.astype("float32") for x in small])
    far = lambda got: [
        float(jnp.linalg.norm((a.astype("float32") - b).ravel()) / jnp.linalg.norm(b.ravel()))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(exact), strict=True)
    ]
    got = gradient("pallas", small)
    assert [x.dtype for x in got[1:]] == [jnp.dtype(dtype)] * 3
    for ours, tiles in zip(far(got), far(gradient("chunked", small)), strict=True):
        assert ours <= 1.5 * tiles + 1e-5


# Programs


def lowered(encoding, platform, **options):
    """The text of a gradient for a platform, in tiles of 128."""
    params = encoding.init(jax.random.key(0), Sizes(4 * 128, 4, 2, 128))
    shapes = [jax.ShapeDtypeStruct((1, 256, heads, 128), "bfloat16") for heads in (4, 2, 2)]

    def loss(params, q, k, v):
        options_of = {"encoding": encoding, "params": params, "mask": Mask(causal=True), **options}
        return attnjax.attend(q, k, v, implementation="pallas", **options_of).astype(jnp.float32).sum()

    program = jax.jit(jax.grad(loss, argnums=range(4))).trace(params, *shapes)
    return program.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("encoding", slow_except([ALiBi(), T5Bias(), TransformerXL()], T5Bias()), ids=repr)
def test_a_program_for_a_tpu_has_three_kernels(encoding, monkeypatch):
    """One forward and two backward, and no table of T x S numbers; elsewhere it has none and is interpreted."""
    monkeypatch.setitem(dispatch.WITH_LSE, "pallas", pallas)
    text = lowered(encoding, "tpu")
    assert text.count("tpu_custom_call") == 3
    assert "256x256x" not in text
    if encoding == T5Bias():
        assert "tpu_custom_call" not in lowered(encoding, "cpu")


# What it refuses


REFUSED = {
    "allowed": (NoPE(), {"mask": Mask(allowed=np.ones((5, 5), bool))}, "it takes no Mask.allowed, which holds T x S"),
    "dropout": (NoPE(), {"dropout": Dropout(jax.random.key(0), 0.1)}, "it has no attention dropout"),
    "carry": (CoPE(), {}, "the hook 'score' of the encoding carries a state from tile to tile"),
    "all heads": (DAPE(), {}, "the hook 'score' of the encoding reads all heads at once"),
    "sticks": (StickBreaking(), {}, "the hook 'score' of the encoding carries a state"),
    "constants": (T5Bias(), {"q_pos": 2 * np.arange(5)}, "a hook of the encoding makes an array of constants"),
    "length": (
        compose(RoPE(scaling=DynamicNTK(2.0, 16)), T5Bias()),
        {},
        "the parameters that its scores read depend on the length of each example",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_serve(name):
    encoding, options, reason = REFUSED[name]
    q = jax.ShapeDtypeStruct((2, 5, 4, H), "float32")
    params = encoding.init(jax.random.key(0), Sizes(4 * H, 4, 4, H))
    options = {"encoding": encoding, "params": params, "mask": Mask(causal=True)} | options
    assert dict(attnjax.explain(q, q, q, **options).rejected)["pallas"].startswith(reason)
    with pytest.raises(NotImplementedError) as error:
        attnjax.explain(q, q, q, implementation="pallas", **options)
    assert str(error.value).startswith(f"implementation 'pallas' cannot serve {encoding}: {reason}")
    assert "; these can: dense, chunked" in str(error.value)


def test_double_precision_is_refused():
    with jax.enable_x64(True):
        q = jax.ShapeDtypeStruct((2, 5, 4, H), "float64")
        with pytest.raises(NotImplementedError, match="its softmax is float32, the inputs are float64"):
            attnjax.explain(q, q, q, implementation="pallas")


def test_relative_keys_fit_into_the_memory_of_a_core():
    encoding, shapes = TransformerXL(), lambda T: [jax.ShapeDtypeStruct((1, T, 4, 128), "float32")] * 3
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), Sizes(512, 4, 4, 128)))
    explain = functools.partial(attnjax.explain, encoding=encoding, params=params, implementation="pallas")
    assert explain(*shapes(8192)).implementation == "pallas"
    with pytest.raises(
        NotImplementedError, match="keys take 64 MiB of the memory of a core, of at most 48 MiB; these can: dense"
    ):
        explain(*shapes(16384))


def test_it_is_never_chosen():
    q = jax.ShapeDtypeStruct((8, 4096, 8, 128), "bfloat16")
    chosen = attnjax.explain(q, q, q, mask=Mask(causal=True))
    assert chosen.implementation == "chunked"
    assert dict(chosen.rejected)["pallas"] == "its speed has never been measured on a TPU; ask for it by name"
    assert "pallas" in IMPLEMENTATIONS
