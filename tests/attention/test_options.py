"""What else `attend` takes and returns: sinks, log-sum-exps, gates, dropout, derivatives of higher order."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import attnjax as aj
from attnjax import Dropout, Mask, RoPE, Sizes, T5Bias, Tiling, attend, attend_with_lse
from tests.attention.matrix import compiled, differentiated, learned

B, T, S, N, K, H = 2, 7, 12, 4, 2, 4
SIZES, CAUSAL = Sizes(N * H, N, K, H), Mask(causal=True)
WAYS = {"dense": "dense", "tiles": Tiling(3, 5)}
IMPLEMENTATIONS = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def drawn(dtype="float64", T=T, S=S):
    random = np.random.default_rng(0)
    return tuple(random.normal(size=(B, n, heads, H)).astype(dtype) for n, heads in ((T, N), (S, K), (S, K)))


def assert_close(got, expected, tolerance=1e-11):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=jax.tree_util.keystr(path))


# Sinks

SINK = np.array([0.7, -2.0, 3.0, 0.0])
SEEN = (np.arange(S)[None] <= np.arange(T)[:, None]) & (np.arange(S) != 0)[None]
"""Causal, and nobody sees key 0: the first query sees the sink alone."""


@IMPLEMENTATIONS
def test_sinks_of_any_size(way):
    """A very low one, and one of -inf, change empty rows alone, and have no gradient; a very high one takes all weight."""
    arrays = drawn("float32")
    options = {"mask": Mask(allowed=SEEN), "scale": 0.4, "implementation": way}

    def run(sink):
        lse = attend_with_lse(*arrays, sink=sink, **options)[1]
        return lse, *differentiated(lambda *x: attend(*x, **options))(*arrays, *(() if sink is None else (sink,)))

    def attend(q, k, v, sink=None, **options):
        return aj.attend(q, k, v, sink=sink, **options)

    sizes = np.float32([-np.inf, -1e30, -200, 1e30])[:, None] * np.ones((1, N), np.float32)
    found = compiled(lambda: (run(None), jax.lax.map(run, sizes)))
    (lse, out, slopes), (lses, outs, (*others, sinks)) = found
    assert not sinks.any()
    assert not outs[3].any()
    for n in range(3):
        assert_close([x[n] for x in (outs, *others)], [out, *slopes], 1e-6)
        np.testing.assert_allclose(lses[n][:, 1:], lse[:, 1:], rtol=1e-6)
        np.testing.assert_allclose(lses[n][:, 0], np.broadcast_to(sizes[n], (B, N)), rtol=1e-6)


GOLDEN = Path(__file__).parents[1] / "golden" / "frontier_sinks.npz"


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "window", "way"), [("causal", None, Tiling(5, 7)), ("window", (3, 0), "dense")])
def test_sinks_of_gpt_oss(name, window, way):
    """`eager_attention_forward` of transformers: output and gradients, two key heads for four query heads."""
    with np.load(GOLDEN, allow_pickle=False) as file:
        arrays = {key: jnp.asarray(x, "float64") for key, x in file.items()}

    def loss(q, k, v, sink):
        out = attend(q, k, v, sink=sink, mask=Mask(causal=True, window=window), implementation=way)
        return (out * arrays["w"]).sum(), out

    gradient = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
    gradients, out = compiled(gradient, *(arrays[key] for key in ("q", "k", "v", "sinks")))
    np.testing.assert_allclose(out, arrays[f"{name}_out"], atol=1e-12)
    np.testing.assert_allclose(gradients[3], arrays[f"{name}_grad_sinks"], atol=1e-12)
    if name == "causal":
        # The file has these gradients for one of its masks.
        for ours, key in zip(gradients, ("grad_q", "grad_k", "grad_v"), strict=False):
            np.testing.assert_allclose(ours, arrays[key], atol=1e-12)


# Log-sum-exps and blocks


@pytest.mark.usefixtures("x64")
def test_blocks_of_keys_combine_to_the_whole():
    """Output, log-sum-exp and every gradient, of a block by tiles and a dense one with a sink; queries 0 and 1 see nothing."""
    params = jax.tree.map(lambda x: x.astype("float64"), learned(T5Bias(), SIZES, np.random.default_rng(1)))
    q_index = np.arange(T) * 2 - 4

    def blocks(*edges):
        def run(q, k, v, params):
            results = []
            for (start, end), way in zip(edges, WAYS.values(), strict=False):
                index = np.arange(start, end)
                mask = Mask(causal=True, q_index=q_index, k_index=index)
                options = {"encoding": T5Bias(), "params": params, "mask": mask, "k_pos": index, "q_pos": q_index}
                sink = SINK if start == 0 else None
                keys = k[:, start:end], v[:, start:end]
                results.append(attend_with_lse(q, *keys, sink=sink, implementation=way, **options))
            return aj.combine(*(jnp.stack(parts) for parts in zip(*results, strict=True)))

        return differentiated(run)

    run = lambda *x: [f(*x) for f in (blocks((0, S)), blocks((0, 5), (5, S)))]
    whole, joined = compiled(run, *drawn(), params)
    assert not whole[0][0][:, :2].any()
    assert_close(joined, whole)


def test_combine_by_hand():
    """Weights 1/4 and 3/4 from log-sum-exps log 1 and log 3; an empty block does not count; all empty is 0, without gradient;
    log-sum-exps of thousands do not overflow."""
    outs = np.float32([[4, 8, 0, 1], [8, 5, 0, 3]]).reshape(2, 1, 4, 1, 1)
    lses = np.float32([[0, -np.inf, -np.inf, 5000], [np.log(3), 2, -np.inf, 5000]]).reshape(2, 1, 4, 1)
    total = lambda outs, lses: (aj.combine(outs, lses)[0].sum(), aj.combine(outs, lses))
    (_, (out, lse)), (d_outs, d_lses) = compiled(jax.value_and_grad(total, argnums=(0, 1), has_aux=True), outs, lses)
    np.testing.assert_allclose(out.ravel(), [7, 5, 0, 2], rtol=1e-6)
    np.testing.assert_allclose(lse.ravel(), [np.log(4), 2, -np.inf, 5000 + np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(d_outs.reshape(2, 4), [[0.25, 0, 0, 0.5], [0.75, 1, 0, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(d_lses.reshape(2, 4), [[-0.75, 0, 0, -0.5], [0.75, 0, 0, 0.5]], atol=1e-6)


# Gates


def test_gates_of_heads():
    """d sum(c * out) / d gate_h = sum over everything but heads of c * out (Michel et al. 2019)."""
    out = np.arange(1.0, 13.0, dtype=np.float32).reshape(2, 1, 3, 2)
    half = np.float32([1, 0, 0.5])
    np.testing.assert_array_equal(aj.gate_heads(out, half)[0, 0], [[1, 2], [0, 0], [2.5, 3]])
    np.testing.assert_array_equal(aj.gate_heads(out, np.stack([half, 2 * half]))[1, 0], [[14, 16], [0, 0], [11, 12]])
    assert aj.gate_heads(jnp.asarray(out, "bfloat16"), half).dtype == "bfloat16"
    cotangent = np.cos(out)
    importance = compiled(jax.grad(lambda gate: (cotangent * aj.gate_heads(out, gate)).sum()), np.ones(3, np.float32))
    np.testing.assert_allclose(importance, (cotangent * out).sum((0, 1, 3)), rtol=1e-5)


# Dropout


def test_dropout_zeroes_weights_and_scales_the_rest():
    """With equal scores each weight is 0 or 1/S/(1 - rate), about `rate` of them 0, in every head and example apart.

    A sink, here of as much weight as all keys together, is not dropped.
    """
    rate, S = 0.3, 50
    zeros, eye = np.zeros((B, 40, N, S), np.float32), np.eye(S, dtype=np.float32)
    v, sink = np.broadcast_to(eye[None, :, None], (B, S, N, S)), np.full(N, np.log(S), np.float32)
    run = lambda key, sink=None: attend(zeros, v * 0, v, dropout=Dropout(key, rate), sink=sink)
    keys = jax.random.key(3), jax.random.key(4, impl="rbg")
    one, other, beside = compiled(lambda: (run(keys[0]), run(keys[1]), run(keys[0], sink)))
    weights = one * S * (1 - rate)
    kept = weights > 0.5
    np.testing.assert_allclose(weights, kept, atol=1e-5)
    np.testing.assert_allclose(2 * beside, one, atol=1e-6)
    # 16,000 pairs: the share kept has a standard deviation of 0.0036.
    assert abs(kept.mean() - (1 - rate)) < 0.015
    assert len({row.tobytes() for row in kept.swapaxes(1, 2).reshape(B * N, -1)}) == B * N
    assert (kept != (other > 0)).any()


def test_the_gradient_of_dropout_is_that_of_its_output():
    """The same weights fall out forward and backward; a rate of 0 drops nothing."""
    with jax.enable_x64(True):
        q, k, v = drawn()
        run = lambda rate: lambda q, k, v: attend(q, k, v, encoding=RoPE(), dropout=Dropout(jax.random.key(5), rate))
        check_grads(jax.jit(run(0.5)), (q, k, v), order=1, modes=("rev",), rtol=1e-6, atol=1e-6)
        out, plain = compiled(lambda *x: (run(0.0)(*x), attend(*x, encoding=RoPE())), q, k, v)
        np.testing.assert_array_equal(out, plain)


# Derivatives of dense attention, and of tiles where there are none


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_first_and_second_derivatives_of_dense_in_both_modes():
    encoding, (q, k, v), seen = T5Bias(buckets=4, max_distance=5), drawn(T=4, S=5), np.tri(4, 5, dtype=bool)
    params = jax.tree.map(lambda x: x.astype("float64"), learned(encoding, SIZES, np.random.default_rng(1)))
    seen[2] = False

    def f(q, k, v, params, scale):
        mask = Mask(allowed=seen, causal=True, q_index=np.arange(4))
        options = {"encoding": encoding, "params": params, "mask": mask}
        out, lse = attend_with_lse(q, k, v, scale=scale, implementation="dense", **options)
        return out, jnp.where(jnp.isinf(lse), 0.0, lse)

    check_grads(jax.jit(f), (q, k, v, params, 0.7), order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5)


def test_tiles_have_no_forward_mode():
    q, k, v = drawn("float32")
    with pytest.raises(TypeError, match="forward-mode"):
        compiled(lambda q: jax.jvp(lambda q: attend(q, k, v, implementation="chunked"), (q,), (q,)), q)


def test_transformations_of_jax():
    """A scan over layers that are computed again backward, with heads spread over devices; and vmap over models."""
    encoding, (q, k, v) = T5Bias(), drawn("float32", S, S)
    k, v = (np.repeat(x, N // K, axis=2) for x in (k, v))
    made = [learned(encoding, SIZES._replace(kv_heads=N), np.random.default_rng(n)) for n in range(2)]
    layers, options = jax.tree.map(lambda *x: np.stack(x), *made), {"encoding": encoding, "mask": CAUSAL}
    tiles, dense = (
        lambda params, q, k, v, way=way: attend(q, k, v, params=params, implementation=way, **options)
        for way in (Tiling(4, 5), "dense")
    )
    mesh = jax.make_mesh((2,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,))
    P = jax.sharding.PartitionSpec
    heads = P(None, None, "heads")

    def scanned(layers, q, k, v):
        again = jax.checkpoint(tiles)
        return jax.lax.scan(lambda q, params: (again(params, q, k, v), None), q, layers)[0]

    def looped(layers, q, k, v):
        for i in range(2):
            q = dense(jax.tree.map(lambda x, i=i: x[i], layers), q, k, v)
        return q

    def run(layers, q, k, v):
        specs = {"in_specs": (P(None, "heads"), heads, heads, heads), "out_specs": heads}
        pair = [differentiated(f)(layers, q, k, v) for f in (jax.shard_map(scanned, mesh=mesh, **specs), looped)]
        models = jax.vmap(tiles, in_axes=(0, None, None, None))(layers, q, k, v)
        return pair, (models, jax.lax.map(lambda params: dense(params, q, k, v), layers))

    for got, expected in compiled(run, layers, q, k, v):
        assert_close(got, expected, 2e-5)
