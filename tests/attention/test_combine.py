"""Joining blocks of keys, gating heads, and dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import (
    ALiBi,
    Dropout,
    Mask,
    RoPE,
    Sizes,
    T5Bias,
    Tiling,
    attend,
    attend_with_lse,
    combine,
    compose,
    gate_heads,
)
from attnjax.attention import dispatch
from attnjax.attention.blockwise import blockwise
from tests.cases import slow_except

B, T, S, N, K, H = 2, 7, 12, 4, 2, 4
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
IMPLEMENTATIONS = ("dense", "chunked")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(dispatch.WITH_LSE, "chunked", functools.partial(blockwise, tiling=Tiling(3, 5)))


def content(dtype="float64"):
    normal = np.random.default_rng(0).normal
    return tuple(jnp.asarray(normal(size=(B, n, heads, H)), dtype) for n, heads in ((T, N), (S, K), (S, K)))


# Blocks


def blocks_of(q, k, v, params, encoding, cuts, implementation):
    """Attention over keys cut into blocks, with indices and positions that tell where each block lies."""
    index, edges = np.arange(S), (0, *cuts, S)
    # Queries 0 and 1 lie before all keys; query 2 sees the first key alone.
    q_index = np.arange(T) * 2 - 4
    results = []
    for start, end in zip(edges, edges[1:], strict=False):
        mask = Mask(causal=True, q_index=q_index, k_index=index[start:end])
        options = {"encoding": encoding, "params": params, "implementation": implementation, "mask": mask}
        results.append(attend_with_lse(q, k[:, start:end], v[:, start:end], **options))
    return combine(*(jnp.stack(parts) for parts in zip(*results, strict=True)))


ENCODINGS = {"alibi": ALiBi(), "rope+t5": compose(RoPE(), T5Bias())}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", slow_except(ENCODINGS, "alibi"))
def test_blocks_combine_to_the_whole(name, implementation):
    """Output, log-sum-exp and every gradient, also through the log-sum-exp, for one, two and three blocks."""
    encoding = ENCODINGS[name]
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, K, H))
    params = jax.tree.map(lambda leaf: leaf.astype("float64"), params)
    inputs = (*content(), params)
    empty = np.arange(T) * 2 - 4 < 0

    def run(cuts):
        def loss(q, k, v, params):
            out, lse = blocks_of(q, k, v, params, encoding, cuts, implementation)
            seen = jnp.where(empty[None, :, None], 0.0, lse)
            return jnp.sin(out).sum() + jnp.cos(seen).sum(), (out, lse)

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True), compiler_options=QUICK)(*inputs)

    (_, (out, lse)), gradients = run(())
    assert not np.asarray(out)[:, empty].any()
    assert np.isneginf(np.asarray(lse)[:, empty]).all()
    for cuts in ((5,), (1, 9)):
        (_, (joined, joined_lse)), joined_gradients = run(cuts)
        np.testing.assert_allclose(joined, out, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(joined_lse, lse, rtol=1e-12)
        for a, b in zip(jax.tree.leaves(joined_gradients), jax.tree.leaves(gradients), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_log_sum_exp_and_its_gradient(implementation):
    """lse_i = log sum_j e^(s q_i . k_j), so its gradient by q_i is s sum_j w_ij k_j and by v nothing."""
    q, k, v = content()
    lse_of = lambda q, v: attend_with_lse(q, k, v, scale=0.7, implementation=implementation)[1]
    gradient = jax.jit(jax.grad(lambda q, v: lse_of(q, v).sum(), argnums=(0, 1)), compiler_options=QUICK)
    scores = 0.7 * np.einsum("btnh,bsnh->btns", q, np.repeat(k, N // K, axis=2))
    np.testing.assert_allclose(
        jax.jit(lse_of, compiler_options=QUICK)(q, v), np.log(np.exp(scores).sum(-1)), rtol=1e-12
    )
    dq, dv = gradient(q, v)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(
        dq, 0.7 * np.einsum("btns,bsnh->btnh", weights, np.repeat(k, N // K, axis=2)), rtol=1e-10
    )
    assert not np.asarray(dv).any()


def test_combine_by_hand():
    """Weights 1/4 and 3/4 from log-sum-exps log 1 and log 3; an empty block does not count; all empty stays 0."""
    outs = jnp.array([[4.0, 8.0, 0.0], [8.0, 5.0, 0.0]]).reshape(2, 1, 3, 1, 1)
    lses = jnp.array([[0.0, -jnp.inf, -jnp.inf], [jnp.log(3.0), 2.0, -jnp.inf]]).reshape(2, 1, 3, 1)
    out, lse = combine(outs, lses)
    np.testing.assert_allclose(out.ravel(), [7, 5, 0], rtol=1e-6)
    np.testing.assert_allclose(lse.ravel(), [np.log(4), 2, -np.inf], rtol=1e-6)


def test_combine_survives_large_scores():
    """Log-sum-exps of thousands neither overflow nor vanish, also in their gradients."""
    outs, lses = jnp.array([1.0, 3.0]).reshape(2, 1, 1, 1, 1), jnp.array([5000.0, 5000.0]).reshape(2, 1, 1, 1)
    for sign in (1, -1):
        out, lse = jax.jit(combine)(outs, sign * lses)
        assert (out.item(), lse.item()) == (2.0, pytest.approx(sign * 5000 + np.log(2)))
        slope = jax.jit(jax.grad(lambda lses, sign=sign: combine(outs, sign * lses)[0].sum()))(lses)
        np.testing.assert_allclose(slope.ravel(), [-0.5 * sign, 0.5 * sign])


def test_empty_blocks_pass_no_gradient():
    outs, lses = jnp.ones((2, 1, 2, 1, 3)), jnp.array([[0.0, -jnp.inf], [-jnp.inf, -jnp.inf]]).reshape(2, 1, 2, 1)
    d_outs, d_lses = jax.jit(jax.grad(lambda o, s: combine(o, s)[0].sum(), argnums=(0, 1)))(outs, lses)
    np.testing.assert_array_equal(d_outs[..., 0].reshape(2, 2), [[1, 0], [0, 0]])
    np.testing.assert_array_equal(d_lses, np.zeros(lses.shape))


def test_combine_refuses_shapes_that_do_not_fit():
    with pytest.raises(
        ValueError, match=r"combine needs outs \[blocks, B, T, N, H\].*\(2, 1, 3, 1, 1\), \(2, 3, 1, 1\)"
    ):
        combine(jnp.zeros((2, 1, 3, 1, 1)), jnp.zeros((2, 3, 1, 1)))


# Gates


def test_gate_heads_by_hand():
    out = jnp.arange(1.0, 13.0).reshape(2, 1, 3, 2)
    np.testing.assert_array_equal(gate_heads(out, jnp.array([1.0, 0.0, 0.5]))[0, 0], [[1, 2], [0, 0], [2.5, 3]])
    each = gate_heads(out, jnp.array([[1.0, 0.0, 0.5], [0.0, 2.0, 1.0]]))
    np.testing.assert_array_equal(each[1, 0], [[0, 0], [18, 20], [11, 12]])
    assert gate_heads(out.astype("bfloat16"), jnp.ones(3)).dtype == "bfloat16"


def test_the_gradient_of_a_gate_is_what_its_head_is_worth():
    """d sum(c * out) / d gate_h = sum over everything but heads of c * out (Michel et al. 2019)."""
    normal = np.random.default_rng(1).normal
    out, cotangent = (normal(size=(2, 3, 4, 5)).astype(np.float32) for _ in range(2))
    importance = jax.jit(jax.grad(lambda gate: (cotangent * gate_heads(out, gate)).sum()))(jnp.ones(4))
    np.testing.assert_allclose(importance, (cotangent * out).sum((0, 1, 3)), rtol=1e-5)


def test_gate_heads_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"gate must have shape \(3,\) or \(2, 3\), got \(2,\)"):
        gate_heads(jnp.zeros((2, 1, 3, 2)), jnp.zeros(2))
    with pytest.raises(ValueError, match=r"out must have 4 axes \[batch, length, heads, head\], got shape \(1, 3, 2\)"):
        gate_heads(jnp.zeros((1, 3, 2)), jnp.zeros(3))


# Dropout


def dropped(implementation, rate, seed=0, v=None, **options):
    """Output with attention weights dropped, and gradients by q, k, v."""
    q, k, values = content("float32")
    v = values if v is None else v

    def loss(q, k, v):
        dropout = Dropout(jax.random.key(seed), rate)
        out = attend(q, k, v, encoding=RoPE(), dropout=dropout, implementation=implementation, **options)
        return jnp.sin(out).sum(), out

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True), compiler_options=QUICK)
    (_, out), gradients = run(q, k, v)
    return [np.asarray(x) for x in (out, *gradients)]


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True, window=3)])
def test_dropout_is_the_same_in_both_implementations(mask):
    """The same pairs fall out whatever the tiles, so outputs and gradients agree."""
    for dense, tiled in zip(*(dropped(name, 0.4, mask=mask) for name in IMPLEMENTATIONS), strict=True):
        np.testing.assert_allclose(tiled, dense, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("x64")
def test_dropout_in_double_precision():
    q, k, v = content()
    run = lambda name: attend(q, k, v, dropout=Dropout(jax.random.key(1), 0.5), implementation=name)
    outs = [jax.jit(run, static_argnums=0, compiler_options=QUICK)(name) for name in IMPLEMENTATIONS]
    np.testing.assert_allclose(*outs, rtol=1e-12)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_dropout_zeroes_weights_and_scales_the_rest(implementation):
    """With equal scores each weight is 0 or 1/S/(1 - rate), about `rate` of them 0, in every head and example apart."""
    rate, S = 0.3, 50
    zeros, v = jnp.zeros((B, 40, N, S)), jnp.broadcast_to(jnp.eye(S)[None, :, None], (B, S, N, S))
    run = lambda drop: attend(zeros, v * 0, v, dropout=drop, implementation=implementation)
    weights = np.asarray(jax.jit(run, compiler_options=QUICK)(Dropout(jax.random.key(3), rate))) * S * (1 - rate)
    kept = weights > 0.5
    np.testing.assert_allclose(weights, kept, atol=1e-5)
    # 16,000 pairs: the share kept has a standard deviation of 0.0036.
    assert abs(kept.mean() - (1 - rate)) < 0.015
    assert abs(weights.sum(-1).mean() / (1 - rate) / S - 1) < 0.02
    heads = kept.swapaxes(1, 2).reshape(B * N, -1)
    assert len({row.tobytes() for row in heads}) == B * N


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_gradient_of_dropout_is_that_of_its_output(implementation):
    """Against finite differences of the same draw, in double precision."""
    with jax.enable_x64(True):
        q, k, v = content()
        drop = Dropout(jax.random.key(5), 0.5)
        loss = lambda q, k, v: jnp.sin(attend(q, k, v, dropout=drop, implementation=implementation)).sum()
        loss = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)), compiler_options=QUICK)
        _, gradients = loss(q, k, v)
        normal = np.random.default_rng(6).normal
        direction = [normal(size=x.shape) for x in (q, k, v)]
        moved = [loss(*(x + step * d for x, d in zip((q, k, v), direction, strict=True)))[0] for step in (1e-5, -1e-5)]
        slope = (moved[0] - moved[1]) / 2e-5
        expected = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
        np.testing.assert_allclose(expected, slope, rtol=1e-7)


@pytest.mark.quick("rbg")
@pytest.mark.parametrize("generator", ["rbg", "unsafe_rbg"])
def test_dropout_with_keys_of_other_generators(generator):
    """Their numbers depend on how many are drawn at once: masks differed between tiles, and between the passes."""
    q, k, v = content("float32")
    keys = jax.random.split(jax.random.key(7, impl=generator), 2)
    run = lambda key, way: attend(q, k, v, dropout=Dropout(key, 0.5), implementation=way)
    outs = [[run(key, way) for way in ("dense", Tiling(3, 5), Tiling(4, 2, heads=1))] for key in keys]
    for dense, *tiled in outs:
        for one in tiled:
            np.testing.assert_allclose(one, dense, rtol=1e-5, atol=1e-5)
    assert np.abs(outs[0][0] - outs[1][0]).max() > 0.1, "another key, other masks"
    mapped = jax.vmap(lambda key: run(key, "dense"))(keys)
    np.testing.assert_allclose(mapped, [each[0] for each in outs], rtol=1e-5, atol=1e-5)


def test_dropout_of_nothing_and_of_another_key():
    q, k, v = content("float32")
    plain = jax.jit(lambda q, k, v: attend(q, k, v, encoding=RoPE(), implementation="dense"))(q, k, v)
    np.testing.assert_allclose(dropped("dense", 0.0)[0], plain, rtol=1e-6)
    assert np.abs(dropped("dense", 0.4, seed=0)[0] - dropped("dense", 0.4, seed=1)[0]).max() > 0.01
