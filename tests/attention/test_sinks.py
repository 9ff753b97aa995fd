"""Sinks: a key of every head with a learned logit and no value, which every query sees.

Against a softmax with one more column, against gpt-oss as transformers computes it, in the cache, and beside `combine`.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import (
    ALiBi,
    CoPE,
    Dropout,
    KVCache,
    Mask,
    NoPE,
    RoPE,
    T5Bias,
    Tiling,
    attend_with_lse,
    attention_weights,
    combine,
    explain,
)
from tests.attention.toys import H, K, N, assert_trees_close, averaged, drawn, learned, products, with_gradients
from tests.cases import attend

T, SCALE = 19, 0.4
WAYS = {"dense": "dense", "chunked": Tiling(5, 7), "one head at a time": Tiling(6, 4, heads=1)}
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", WAYS.values(), ids=WAYS)
SEEN = np.tril(np.ones((T, T), bool)) & (np.arange(T) != 0)[None]
"""Causal, and nobody sees key 0: the first query sees the sink alone."""


def sinks(dtype="float64"):
    return jnp.asarray([0.7, -2.0, 3.0, 0.0], dtype)


def with_a_column(q, k, v, sink, bias=0.0):
    """The softmax over S + 1 columns, of which the last one is the sink's and is cut off."""
    table = jnp.where(SEEN, products(q, k, SCALE) + bias, -jnp.inf)
    column = jnp.broadcast_to(sink[None, :, None, None], (*table.shape[:3], 1))
    weights = jax.nn.softmax(jnp.concatenate([table, column], -1), axis=-1)[..., :-1]
    return averaged(weights, v)


@pytest.mark.usefixtures("x64")
@IMPLEMENTATIONS
def test_a_sink_is_one_more_column_without_a_value(implementation):
    """Output and the gradients of q, k, v and the sink, over several tiles."""
    options = {"mask": Mask(allowed=SEEN), "scale": SCALE, "implementation": implementation}
    run = with_gradients(lambda q, k, v, sink: attend(q, k, v, sink=sink, **options))
    assert_trees_close(run(*drawn(T), sinks()), with_gradients(with_a_column)(*drawn(T), sinks()))


@pytest.mark.usefixtures("x64")
@IMPLEMENTATIONS
def test_a_sink_beside_a_learned_bias(implementation):
    encoding, (q, k, v) = T5Bias(bidirectional=True), drawn(T)
    params, n = learned(encoding), np.arange(T)[:, None] - np.arange(T)[None]
    bias = jax.vmap(lambda head: encoding.bias(params._replace(head=head), jnp.asarray(n)))(params.head)

    def run(q, k, v, sink):
        options = {"encoding": encoding, "params": params, "mask": Mask(allowed=SEEN), "scale": SCALE}
        return attend(q, k, v, sink=sink, implementation=implementation, **options)

    expected = with_gradients(lambda *arrays: with_a_column(*arrays, bias=bias[None]))(q, k, v, sinks())
    assert_trees_close(with_gradients(run)(q, k, v, sinks()), expected)


@pytest.mark.quick("dense-200.0", "chunked--1e+30", "one head at a time-1e+30")
@pytest.mark.parametrize("size", [-1e30, -200.0, 200.0, 1e30])
@IMPLEMENTATIONS
def test_sinks_of_any_size(implementation, size):
    """A very low one changes nothing but empty rows, which stay 0; a very high one takes all of the weight."""
    arrays, sink = drawn(T, dtype="float32"), jnp.full((N,), size, jnp.float32)
    options = {"mask": Mask(allowed=SEEN), "scale": SCALE, "implementation": implementation}
    out, gradient = jax.value_and_grad(lambda sink: (attend(*arrays, sink=sink, **options) ** 2).sum())(sink)
    expected = 0 if size > 0 else float((attend(*arrays, **options) ** 2).sum())
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    np.testing.assert_array_equal(gradient, np.zeros(N))


@pytest.mark.quick("dense", "chunked")
@IMPLEMENTATIONS
def test_a_sink_of_minus_infinity_is_none(implementation):
    """Output, log-sum-exp and gradients are those without a sink, also where nothing is seen: NaN in tiles."""
    options = {"mask": Mask(causal=True, k_valid=np.arange(T) != 0), "scale": SCALE, "implementation": implementation}

    def loss(arrays, sink):
        out, lse = attend_with_lse(*arrays, sink=sink, **options)
        return (jnp.sin(out) + jnp.where(jnp.isfinite(lse), lse, 0)[..., None]).sum(), (out, lse)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    arrays, sink = drawn(T, dtype="float32"), jnp.full(N, -jnp.inf, jnp.float32)
    found, expected = run(arrays, sink), run(arrays, None)
    assert_trees_close(found, expected, atol=1e-6)
    assert np.all(found[0][1][1][:, 0] == -np.inf)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda sink: loss(arrays, sink)[0]))(sink), np.zeros(N))


@pytest.mark.usefixtures("x64")
@IMPLEMENTATIONS
def test_a_query_that_sees_a_sink_alone_is_zero(implementation):
    q, k, v = drawn(T)
    nobody = Mask(k_valid=np.zeros(T, bool))
    options = {"sink": sinks(), "mask": nobody, "implementation": implementation}
    out, lse = attend_with_lse(q, k, v, **options)
    assert not np.asarray(out).any()
    np.testing.assert_allclose(lse, jnp.broadcast_to(sinks(), lse.shape), rtol=1e-12)


GOLDEN = Path(__file__).parents[1] / "golden" / "frontier_sinks.npz"


@pytest.mark.quick("causal-None-chunked", "window-window1-dense")
@pytest.mark.usefixtures("x64")
@IMPLEMENTATIONS
@pytest.mark.parametrize(("name", "window"), [("causal", None), ("window", (3, 0))])
def test_sinks_of_gpt_oss(name, window, implementation):
    """`eager_attention_forward` of transformers: output and gradients, two key heads for four query heads."""
    with np.load(GOLDEN, allow_pickle=False) as file:
        arrays = {key: jnp.asarray(x, "float64") for key, x in file.items()}

    def loss(q, k, v, sink):
        out = attend(q, k, v, sink=sink, mask=Mask(causal=True, window=window), implementation=implementation)
        return (out * arrays["w"]).sum(), out

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True))
    gradients, out = gradient(*(arrays[name] for name in ("q", "k", "v", "sinks")))
    np.testing.assert_allclose(out, arrays[f"{name}_out"], atol=1e-12)
    np.testing.assert_allclose(gradients[3], arrays[f"{name}_grad_sinks"], atol=1e-12)
    if name == "causal":
        # The file has these gradients for one of its masks.
        for ours, key in zip(gradients, ("grad_q", "grad_k", "grad_v"), strict=False):
            np.testing.assert_allclose(ours, arrays[key], atol=1e-12)


@pytest.mark.quick("whole-cope", "ring-rope")
@pytest.mark.parametrize("encoding", [NoPE(), RoPE(), CoPE()], ids=["nope", "rope", "cope"])
@pytest.mark.parametrize("window", [None, 5], ids=["whole", "ring"])
def test_sinks_in_a_cache(encoding, window):
    """Every token decoded on its own sees the sink once."""
    q, k, v = drawn(T, dtype="float32")
    params, mask = learned(encoding, dtype="float32"), Mask(causal=True, window=window)
    options = {"encoding": encoding, "params": params, "mask": mask, "sink": sinks("float32")}
    cache = KVCache.create(2, T if window is None else 6, K, H, encoding=encoding, window=window)

    @jax.jit
    def step(cache, q, k, v):
        cache = cache.append(k, v, params=params)
        return cache, attend(q, cache=cache, **options)

    outs = []
    for t in range(T):
        cache, out = step(cache, *(x[:, t : t + 1] for x in (q, k, v)))
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs, 1), attend(q, k, v, **options), atol=3e-6)


@pytest.mark.usefixtures("x64")
def test_blocks_of_keys_combine_if_one_of_them_has_the_sink():
    q, k, v = drawn(T)
    blocks = [Mask(k_valid=np.arange(T) < 8), Mask(k_valid=np.arange(T) >= 8)]
    outs = [attend_with_lse(q, k, v, mask=mask, sink=sink) for mask, sink in zip(blocks, (sinks(), None), strict=True)]
    out, lse = combine(*(jnp.stack(each) for each in zip(*outs, strict=True)))
    expected, expected_lse = attend_with_lse(q, k, v, sink=sinks())
    np.testing.assert_allclose(out, expected, atol=1e-12)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-12)


def test_weights_beside_a_sink_leave_its_share():
    q, k, _ = drawn(T, dtype="float32")
    weights = attention_weights(q, k, sink=sinks("float32"), scale=0.0)
    np.testing.assert_allclose(weights.sum(-1)[0, :, 0], T / (T + np.exp(sinks("float32"))), rtol=1e-6)


def test_dropout_does_not_drop_the_sink():
    """The weights that are kept are those beside the sink, in both implementations."""
    q, k, v = drawn(T, dtype="float32")
    options = {"sink": sinks("float32"), "dropout": Dropout(jax.random.key(0), 0.5)}
    outs = [attend(q, k, v, implementation=way, **options) for way in ("dense", Tiling(5, 7))]
    np.testing.assert_allclose(*outs, atol=1e-6)


@pytest.mark.parametrize("name", ["xla", "cudnn"])
def test_kernels_have_no_sink(name):
    q, k, v = drawn(T, dtype="float32")
    with pytest.raises(
        NotImplementedError, match=rf"'{name}' cannot serve NoPE\(\): it has no sink; these can: dense, "
    ):
        attend(q, k, v, sink=sinks("float32"), implementation=name)
    assert (
        dict(explain(q, k, v, encoding=ALiBi(symmetric=True), sink=sinks("float32")).rejected)[name] == "it has no sink"
    )
