"""PaTH against the authors' arrays, by products of matrices, in decoding and in compositions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import ALiBi, KVCache, Mask, PaTH, Sizes, attend, compose, context_positions
from attnjax.positions.contextual import context_positions as positions_of
from tests.cases import slow_except
from tests.positions.attending import TILES, assert_close, drawn, golden, moved, outcome, quadratic

CAUSAL = Mask(causal=True)
B, T, N, K, H = 2, 11, 4, 2, 4
SIZES = Sizes(N * H, N, K, H)
ENCODINGS = {"path": PaTH(rank=3), "gated": PaTH(rank=3, convolution=1, forget=True), "long": PaTH(rank=3, forget=True)}


def channels(direction, beta, gate):
    """Positions [B,N,T,H+2] of `PaTH(convolution=1, forget=True)`; w and beta of a group are those of its key head."""
    group = gate.shape[2] // beta.shape[2]
    w, beta = (jnp.repeat(x, group, axis=2) for x in (direction, beta[..., None]))
    return jnp.concatenate([w, beta, jnp.cumsum(gate, 1)[..., None]], -1).swapaxes(1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["dense", TILES], ids=["dense", "tiles"])
def test_values_and_gradients_of_the_authors(implementation, x64):
    arrays = {name: jnp.asarray(x) for name, x in golden("frontier_path_attention").items()}
    encoding = PaTH(convolution=1, forget=True)
    params = encoding.init(jax.random.key(0), Sizes(32, 4, 2, 8))

    def run(q, k, direction, beta, log_gate):
        pos = channels(direction, beta, log_gate)
        options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos}
        return attend(q, k, arrays["v"], mask=CAUSAL, implementation=implementation, **options)

    names = ("q", "k", "direction", "beta", "log_gate")
    given = [arrays[name] for name in names]
    np.testing.assert_allclose(run(*given), arrays["gated_out"], atol=1e-13)
    plain = run(*given[:-1], jnp.zeros_like(given[-1]))
    np.testing.assert_allclose(plain, arrays["plain_out"], atol=1e-13)
    gradients = jax.grad(lambda *x: (arrays["w"] * run(*x)).sum(), tuple(range(5)))(*given)
    for name, gradient in zip(names, gradients, strict=True):
        np.testing.assert_allclose(gradient, arrays[f"grad_{name}"], atol=1e-12, err_msg=name)


def by_matrices(encoding, params, x, q, k, v, seen):
    """Every map written out as a matrix, and every product from scratch."""
    p, out = params, np.zeros(q.shape)
    silu, sigmoid = (lambda z: z / (1 + np.exp(-z))), (lambda z: 1 / (1 + np.exp(-z)))
    for b, h in np.ndindex(B, N):
        own = {name: leaf[h // (N // K)] for name, leaf in p.kv_head.items()}
        raw = x[b] @ p.shared["down"] @ own["up"]
        maps, c = [], np.zeros(T)
        for t in range(T):
            taps = [(own["convolution"][-1 - back], raw[t - back]) for back in range(encoding.convolution) if t >= back]
            w = silu(sum(tap * value for tap, value in taps))
            w = w / np.sqrt(w @ w + 1e-6)
            maps.append(np.eye(H) - 2 * sigmoid(x[b, t] @ own["beta"] + own["beta_bias"]) * np.outer(w, w))
            if encoding.forget:
                c[t] = c[t - 1] * (t > 0) + np.log(sigmoid(x[b, t] @ p.head["gate"][h] + p.head["gate_bias"][h]))
        for i in range(T):
            keys = [j for j in range(T) if seen[b, i, j]]
            logits = []
            for j in keys:
                way = np.eye(H)
                for s in reversed([s for s in range(j + 1, i + 1) if seen[b, i, s]]):
                    way = way @ maps[s]
                logits.append((q[b, i, h] @ way @ k[b, j, h // (N // K)] + c[i] - c[j]) / np.sqrt(H))
            weights = np.exp(logits)
            out[b, i, h] = sum(weight * v[b, j, h // (N // K)] for weight, j in zip(weights, keys, strict=True))
            out[b, i, h] /= weights.sum() if keys else 1
    return out


SEGMENTS = np.arange(T, dtype=np.int32) // 5
MASKS = {
    "causal": (CAUSAL, np.ones((B, T, T), bool)),
    "segments": (
        Mask(causal=True, q_segments=SEGMENTS, k_segments=SEGMENTS),
        np.broadcast_to(SEGMENTS[:, None] == SEGMENTS[None, :], (B, T, T)),
    ),
    "scattered": (Mask(causal=True, k_valid=np.arange(T) % 4 != 1), np.broadcast_to(np.arange(T) % 4 != 1, (B, T, T))),
}


@pytest.mark.quick("gated-segments")
@pytest.mark.parametrize(("name", "mask"), [("path", "causal"), ("gated", "segments"), ("long", "scattered")])
def test_products_of_matrices(name, mask, x64):
    encoding, (q, k, v) = ENCODINGS[name], drawn(B, T, N, K, H)
    x = np.random.default_rng(5).normal(size=(B, T, N * H))
    params = moved(encoding, N, K, H)
    seen = MASKS[mask][1] & np.tril(np.ones((T, T), bool))

    def run(implementation):
        def one(params, x, q, k, v):
            pos = context_positions(encoding, params, x, np.arange(T), SIZES)
            options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos}
            return attend(q, k, v, mask=MASKS[mask][0], implementation=implementation, **options)

        return outcome(one, params, x, q, k, v)

    dense = run("dense")
    np.testing.assert_allclose(dense["out"], by_matrices(encoding, params, x, q, k, v, seen), atol=1e-12)
    assert_close(run(TILES), dense, 1e-9)
    for path, leaf in jax.tree_util.tree_leaves_with_path(dense["gradients"]):
        assert np.abs(leaf).max() > 1e-6, path


@pytest.mark.slow
@pytest.mark.parametrize("compiled", slow_except([False, True], True), ids=["eager", "jitted"])
@pytest.mark.parametrize("window", [None, 4])
def test_decoding_is_the_full_forward(window, compiled, x64):
    encoding = compose(ENCODINGS["long"], ALiBi()) if window else ENCODINGS["long"]
    (q, k, v), draw = (jnp.asarray(x) for x in drawn(B, T, N, K, H)), np.random.default_rng(5)
    x, params = jnp.asarray(draw.normal(size=(B, T, N * H))), moved(encoding, N, K, H)
    mask = Mask(causal=True, window=None if window is None else (window, 0))
    pos = positions_of(encoding, params, x, np.arange(T, dtype=np.int32), SIZES)
    options = {"encoding": encoding, "params": params, "mask": mask}
    expected = attend(q, k, v, q_pos=pos, k_pos=pos, implementation="dense", **options)
    # Positions are floats of the type that the content has.
    cache = KVCache.create(
        B, T if window is None else window + 4, K, H, q.dtype, heads=N, encoding=encoding, window=mask.window
    )
    cache = jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if leaf.dtype == jnp.float32 else leaf, cache)

    def step(cache, x, q, k, v, index):
        at = positions_of(encoding, params, x, index, SIZES, before=cache.last_positions())
        cache = cache.append(k, v, at, params=params)
        return cache, attend(q, cache=cache, **options)

    step = jax.jit(step) if compiled else step
    outs = []
    for first, last in ((0, 4), (4, 5), (5, 6), (6, 9), (9, T)):
        parts = (array[:, first:last] for array in (x, q, k, v))
        cache, out = step(cache, *parts, jnp.arange(first, last, dtype=jnp.int32))
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs, 1), expected, atol=1e-9)


@pytest.mark.quick("gated")
@pytest.mark.parametrize("name", ["path", "gated"])
def test_a_hidden_token_has_no_effect_whatever_it_holds(name):
    """NaN or infinity in every channel of a key: rows that do not see it stay as they are, and so do gradients of theirs."""
    encoding, hidden = ENCODINGS[name], np.arange(T) == 4
    q, k, v = (jnp.asarray(x, jnp.float32) for x in drawn(B, T, N, K, H))
    x = jnp.asarray(np.random.default_rng(5).normal(size=(B, T, N * H)), jnp.float32)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), moved(encoding, N, K, H))
    pos = context_positions(encoding, params, x, np.arange(T), SIZES)

    @functools.partial(jax.jit, static_argnames=("tiles", "valid"))
    def run(k_pos, tiles, valid):
        def loss(q, k, v, k_pos):
            mask = Mask(causal=True, k_valid=~hidden if valid else None)
            options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": k_pos, "mask": mask}
            out = attend(q, k, v, implementation=TILES if tiles else "dense", **options)
            return (out if valid else out[:, :4]).sum(), out

        return jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, k_pos)

    for tiles, junk in ((False, np.nan), (True, np.nan), (True, np.inf)):
        broken = jnp.where(hidden[:, None], junk, pos)
        for got, expected in zip(*(jax.tree.leaves(run(at, tiles, True)) for at in (broken, pos)), strict=True):
            np.testing.assert_array_equal(got, expected)
        (gradients, out), expected = run(broken, tiles, False), run(pos, tiles, False)
        assert np.array_equal(np.isfinite(out).all((0, 2, 3)), np.arange(T) < 4)
        np.testing.assert_array_equal(out[:, :4], expected[1][:, :4])
        np.testing.assert_array_equal(gradients[0][:, :4], expected[0][0][:, :4])


def test_tiles_need_linear_memory():
    encoding, T = PaTH(rank=3, forget=True), 512
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), SIZES))
    x = jax.ShapeDtypeStruct((1, T, N * H), jnp.float32)
    q, k = (jax.ShapeDtypeStruct((1, T, heads, H), jnp.float32) for heads in (N, K))

    def loss(params, x, q, k):
        pos = context_positions(encoding, params, x, np.arange(T), SIZES)
        tiles = type(TILES)(16, 16)
        options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "implementation": tiles}
        return (attend(q, k, k, mask=CAUSAL, **options) ** 2).sum()

    assert quadratic(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2, 3)))(params, x, q, k), T) == []


@pytest.mark.slow
def test_long_ways_stay_finite_in_single_precision():
    """Reflections (beta near 2) and projections (beta of 1, which have no inverse) along 300 tokens."""
    T, draw = 300, np.random.default_rng(0)
    w = draw.normal(size=(1, T, 1, 4)).astype(np.float32)
    w /= np.linalg.norm(w, axis=-1, keepdims=True)
    q, k, v = (jnp.asarray(draw.normal(size=(1, T, 1, 4)), jnp.float32) for _ in range(3))
    encoding = PaTH(convolution=1, forget=True)
    params = encoding.init(jax.random.key(0), Sizes(4, 1, 1, 4))
    options = {"encoding": encoding, "params": params, "mask": CAUSAL, "implementation": TILES}
    run = lambda q, pos: attend(q, k, v, q_pos=pos, k_pos=pos, **options)
    for beta in (1.0, 1.999):
        pos = channels(jnp.asarray(w), jnp.full((1, T, 1), beta), jnp.zeros((1, T, 1)))
        assert np.abs(run(q, pos)).max() <= np.abs(v).max()
        for leaf in jax.grad(lambda q, pos: run(q, pos).sum(), (0, 1))(q, pos):
            assert np.all(np.isfinite(leaf))


def test_refuses():
    for make, message in (
        (lambda: PaTH(rank=0), "rank must be at least 1, got 0"),
        (lambda: PaTH(convolution=0), "convolution must be at least 1, got 0"),
        (lambda: PaTH(forget=None), "forget must be True or False, got None"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    q, k = jnp.ones((1, 3, N, H)), jnp.ones((1, 3, K, H))
    params = PaTH().init(jax.random.key(0), SIZES)
    with pytest.raises(ValueError, match="needs a causal mask"):
        attend(q, k, k, encoding=PaTH(), params=params)
    with pytest.raises(ValueError, match="computes positions from content: pass q_pos as context_positions returns"):
        attend(q, k, k, encoding=PaTH(), params=params, mask=CAUSAL, q_pos=jnp.zeros((1, 3, 13)))
