"""DAPE against the authors' arrays and by hand, with each base, grouped queries, masks, decoding and compositions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import (
    DAPE,
    FIRE,
    ALiBi,
    CoPE,
    EncodingParams,
    Kerple,
    Mask,
    ReRoPE,
    RoPE,
    Sizes,
    StickBreaking,
    T5Bias,
    attend,
    compose,
)
from attnjax.positions.base import Tile, resolve
from tests.cases import slow_except
from tests.positions.attending import (
    DECODING,
    TILES,
    assert_close,
    check_decoding,
    drawn,
    golden,
    gradient_program,
    moved,
    outcome,
    quadratic,
)

CAUSAL = Mask(causal=True)
B, T, N, K, H = 2, 13, 4, 2, 6
ENCODINGS = {
    "kerple": DAPE(width=5),
    "alibi": DAPE(ALiBi(), width=5),
    "fire": DAPE(FIRE(hidden=3, threshold=4.0), width=5),
    "without": DAPE(None, width=5),
    "rope": compose(RoPE(), DAPE(T5Bias(), width=3)),
    "stick": compose(DAPE(width=3), StickBreaking()),
    "rope without": compose(RoPE(), DAPE(None, width=3)),
}


def raw(positive):
    """Kerple's stored number for a positive one: the inverse of softplus."""
    return np.log(np.expm1(positive))


def of_the_authors(case):
    """DAPE and its parameters as the arrays have them."""
    arrays = golden("frontier_dape")
    base, own = ALiBi(), ()
    if case == "kerple":
        base, own = Kerple(), {"r1": raw(arrays["kerple_p"].ravel()), "r2": raw(arrays["kerple_a"].ravel())}
    network = {
        "hidden": arrays["mlp2.0.weight"].T,
        "hidden_bias": arrays["mlp2.0.bias"],
        "out": arrays["mlp2.2.weight"].T,
        "out_bias": arrays["mlp2.2.bias"],
    }
    return DAPE(base, width=6), EncodingParams((own, ()), ((), ()), ((), network)), arrays


@pytest.mark.parametrize("case", ["alibi", "kerple"])
def test_logits_and_gradients_of_the_authors(case, x64):
    """The arrays hold logits, so the hook is called on the whole table of each example."""
    encoding, params, arrays = of_the_authors(case)
    q, k, w = (jnp.asarray(arrays[name]) for name in "qkw")
    heads, length, width = q.shape[2], q.shape[1], q.shape[3]
    seen, pos = jnp.tril(jnp.ones((length, length), bool)), jnp.arange(length)

    def logits(params, q, k):
        p = resolve(encoding, params, Sizes(heads * width, heads, heads, width))

        def example(q, k):
            q, k = q.swapaxes(0, 1), k.swapaxes(0, 1)
            tile = Tile(jnp.einsum("nth,nsh->nts", q, k) * width**-0.5, q, k, pos, pos, seen, width**-0.5)
            return jnp.where(seen, encoding.score(p, tile), 0.0)

        return jax.vmap(example)(q, k)

    np.testing.assert_allclose(logits(params, q, k), arrays[f"{case}_logits"], atol=1e-13)
    found = jax.grad(lambda *x: (w * logits(*x)).sum(), (0, 1, 2))(jax.tree.map(jnp.asarray, params), q, k)
    network = found[0].shared[1]
    close = lambda got, name: np.testing.assert_allclose(got, arrays[f"{case}_grad_{name}"], atol=1e-11, err_msg=name)
    close(network["hidden"].T, "mlp2.0.weight")
    close(network["hidden_bias"], "mlp2.0.bias")
    close(network["out"].T, "mlp2.2.weight")
    close(network["out_bias"], "mlp2.2.bias")
    if case == "kerple":
        close(found[1], "q")
        close(found[2], "k")
        # Ours is the gradient of the raw number, theirs of the positive one: softplus'(raw) = 1 - e^(-softplus).
        for ours, theirs in (("r1", "kerple_p"), ("r2", "kerple_a")):
            slope = -np.expm1(-arrays[theirs].ravel())
            np.testing.assert_allclose(
                found[0].head[0][ours], slope * arrays[f"kerple_grad_{theirs}"].ravel(), atol=1e-11
            )


@pytest.mark.quick("alibi-dense", "kerple-tiles")
@pytest.mark.parametrize("implementation", ["dense", TILES], ids=["dense", "tiles"])
@pytest.mark.parametrize("case", ["alibi", "kerple"])
def test_attention_with_the_logits_of_the_authors(case, implementation, x64):
    encoding, params, arrays = of_the_authors(case)
    v = np.random.default_rng(0).normal(size=arrays["q"].shape)
    out = attend(
        *(jnp.asarray(x) for x in (arrays["q"], arrays["k"], v)),
        encoding=encoding, params=params, mask=CAUSAL, implementation=implementation,
    )  # fmt: skip
    weights = np.where(np.tril(np.ones((12, 12), bool)), np.exp(arrays[f"{case}_logits"]), 0)
    expected = np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(out, expected, atol=1e-12)


def test_one_entry_by_hand():
    """Two heads with logits 2 and -3, slopes 1 and 2 at distance 1, one hidden unit: 2 - 1 and -3 - 2, plus the network."""
    network = {
        "hidden": jnp.array([[1.0], [10.0], [100.0], [1000.0]]),
        "hidden_bias": jnp.array([28.0]),
        "out": jnp.array([[1.0, -1.0]]),
        "out_bias": jnp.array([0.5, 0.25]),
    }
    encoding = DAPE(ALiBi(slopes=(1.0, 2.0)), width=1)
    p = resolve(encoding, EncodingParams((), (), ((), network)), Sizes(2, 2, 2, 1))
    tile = Tile(
        jnp.array([[[2.0]], [[-3.0]]]), jnp.ones((2, 1, 1)), jnp.ones((2, 1, 1)),
        jnp.array([1]), jnp.array([0]), jnp.ones((1, 1), bool), 1.0,
    )  # fmt: skip
    # hidden = 2 - 30 - 100 - 2000 + 28 = -2100, of which LeakyReLU leaves -21
    np.testing.assert_allclose(encoding.score(p, tile).ravel(), [1 - 21 + 0.5, -5 + 21 + 0.25], rtol=1e-6)


SEGMENTS = np.arange(T, dtype=np.int32) // 5
MASKS = {
    "window and padding": Mask(causal=True, window=(5, 0), k_valid=np.arange(T)[None] >= np.array([[3], [0]])),
    "segments": Mask(causal=True, q_segments=SEGMENTS, k_segments=SEGMENTS),
}


def by_numpy(encoding, params, q, k, v, pos, seen):
    """Attention with DAPE of Kerple, head by head and unit by unit."""
    network, raw = params.shared[1], params.head[0]
    softplus = lambda x: np.log1p(np.exp(x))
    out = np.zeros(q.shape)
    for b in range(len(q)):
        n = np.abs(pos[b][:, None] - pos[b][None, :])
        A = [q[b, :, h] @ k[b, :, h // 2].T / np.sqrt(H) for h in range(N)]
        bias = [-softplus(raw["r1"][h]) * np.log(1 + softplus(raw["r2"][h]) * n) for h in range(N)]
        logits = [a + c + network["out_bias"][h] for h, (a, c) in enumerate(zip(A, bias, strict=True))]
        for unit in range(encoding.width):
            x = (
                sum(network["hidden"][i, unit] * table for i, table in enumerate(A + bias))
                + network["hidden_bias"][unit]
            )
            x = np.where(x > 0, x, 0.01 * x)
            logits = [table + network["out"][unit, h] * x for h, table in enumerate(logits)]
        for h in range(N):
            weights = np.where(seen[b], np.exp(logits[h]), 0)
            total = weights.sum(1, keepdims=True)
            out[b, :, h] = weights / np.where(total == 0, 1, total) @ v[b, :, h // 2]
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_grouped_queries_and_masks_by_numpy(name, x64):
    encoding, mask, (q, k, v) = ENCODINGS["kerple"], MASKS[name], drawn(B, T, N, K, H)
    params, at = moved(encoding, N, K, H), np.arange(T)
    pos = np.sort(np.random.default_rng(2).integers(0, 99, (B, T)), -1)
    seen = np.broadcast_to(at[:, None] >= at[None, :], (B, T, T))
    if name == "segments":
        seen = seen & (SEGMENTS[:, None] == SEGMENTS[None, :])
    else:
        seen = seen & (at[:, None] - at[None, :] <= 5) & mask.k_valid[:, None, :]
    expected = by_numpy(encoding, params, q, k, v, pos, seen)
    options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "mask": mask}
    for implementation in ("dense", TILES):
        out = attend(*(jnp.asarray(x) for x in (q, k, v)), implementation=implementation, **options)
        np.testing.assert_allclose(out, expected, atol=1e-12)


@pytest.mark.quick("rope", "stick")
@pytest.mark.parametrize("name", ENCODINGS)
def test_tiles_give_the_values_and_gradients_of_dense(name, x64):
    encoding = ENCODINGS[name]
    mask = Mask(causal=True, window=(7, 0), k_valid=np.arange(T)[None] >= np.array([[3], [0]]))

    def run(implementation):
        options = {"encoding": encoding, "mask": mask, "implementation": implementation}
        one = lambda params, q, k, v: attend(q, k, v, params=params, **options)
        return outcome(one, moved(encoding, N, K, H), *drawn(B, T, N, K, H))

    dense = run("dense")
    assert_close(run(TILES), dense, 1e-9)
    for path, leaf in jax.tree_util.tree_leaves_with_path(dense["gradients"]):
        # A softmax does not see what is added to a whole row.
        unseen = "shared" in str(path) and "out_bias" in str(path) and name != "stick"
        assert bool(np.abs(leaf).max() > 1e-6) != unseen, path


@pytest.mark.slow
def test_the_future_stays_hidden_and_masked_keys_have_no_effect():
    encoding = ENCODINGS["kerple"]
    q, k, v = (jnp.asarray(x, jnp.float32) for x in drawn(B, T, N, K, H))
    params = jax.tree.map(jnp.float32, moved(encoding, N, K, H))
    mask = Mask(causal=True, k_valid=np.arange(T) >= 3)
    run = lambda k, v, way: attend(q, k, v, encoding=encoding, params=params, mask=mask, implementation=way)
    for way in ("dense", TILES):
        out = run(k, v, way)
        np.testing.assert_array_equal(out[:, :3], 0)
        np.testing.assert_array_equal(run(k.at[:, :3].set(jnp.inf), v.at[:, :3].set(jnp.nan), way), out)
        np.testing.assert_array_equal(run(k.at[:, 9:].set(5.0), v.at[:, 9:].set(7.0), way)[:, :9], out[:, :9])


@pytest.mark.quick("fire-chunks in a ring, jitted", "rope without-tokens, jitted")
@pytest.mark.parametrize("way", DECODING)
@pytest.mark.parametrize("name", slow_except(["fire", "rope", "stick", "rope without"], "fire", "rope without"))
def test_decoding_is_the_full_forward(name, way, x64):
    """Also where no parameter of a head tells how many heads there are, by which those of the network have their shapes."""
    encoding = ENCODINGS[name]
    pos = np.broadcast_to(np.arange(T, dtype=np.int32) * 2 + 7, (B, T))
    check_decoding(encoding, moved(encoding, N, K, H), *drawn(B, T, N, K, H), pos, way, atol=1e-9)


@pytest.mark.parametrize("name", ["alibi", "fire", "rope", "stick"])
def test_tiles_need_linear_memory(name):
    assert quadratic(gradient_program(ENCODINGS[name], 512), 512) == []


def test_init_is_uniform_by_the_number_of_inputs():
    params = DAPE(width=400).init(jax.random.key(0), Sizes(model=64, heads=32, kv_heads=32, head_dim=2))
    network = {name: np.asarray(leaf) for name, leaf in params.shared[1].items()}
    shapes = {"hidden": (64, 400), "hidden_bias": (400,), "out": (400, 32), "out_bias": (32,)}
    assert {name: leaf.shape for name, leaf in network.items()} == shapes
    for name, limit in (("hidden", 1 / 8), ("hidden_bias", 1 / 8), ("out", 1 / 20), ("out_bias", 1 / 20)):
        assert 0.85 * limit < np.abs(network[name]).max() <= limit
    np.testing.assert_allclose(network["hidden"].std(), 1 / 8 / np.sqrt(3), rtol=0.02)
    assert params.head[0].keys() == {"r1", "r2"}
    assert DAPE(None, width=3).init(jax.random.key(0), Sizes(64, 32, 32, 2)).shared[1]["hidden"].shape == (32, 3)


REPLACING = [ReRoPE(window=2), compose(ReRoPE(window=2), ALiBi())]
"""What they return of logits that are 0 is no bias."""


@pytest.mark.parametrize(
    "base", [RoPE(), CoPE(), StickBreaking(), compose(RoPE(), ALiBi()), DAPE(), *REPLACING], ids=str
)
def test_refuses_a_base_that_does_more_than_add(base):
    with pytest.raises(ValueError, match="base must add to the logits of a head and do nothing else, got"):
        DAPE(base)


def test_refuses():
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        DAPE(width=0)
    with pytest.raises(ValueError, match=r"base must be an encoding such as Kerple\(\), or None, got 'alibi'"):
        DAPE("alibi")
    x = jnp.ones((1, 3, 2, 4))
    with pytest.raises(ValueError, match=r"learns parameters: pass params=encoding.init"):
        attend(x, x, x, encoding=DAPE())
    params = DAPE(ALiBi()).init(jax.random.key(0), Sizes(8, 2, 2, 4))
    with pytest.raises(ValueError, match="needs a causal mask"):
        attend(x, x, x, encoding=DAPE(ALiBi()), params=params)
    with pytest.raises(ValueError, match=r"leaves of params.shared must have shapes .*\(2, 32\).* got .*\(4, 32\)"):
        attend(x[:, :, :1], x[:, :, :1], x[:, :, :1], encoding=DAPE(ALiBi(slopes=(1.0,))), params=params, mask=CAUSAL)
