"""What attention promises for encodings that read the tokens or scale the queries: the same result on every way to it.

Decoding token by token and in chunks, eager and compiled, equals the full forward; gradients of every parameter by tiles
equal those of the whole table and of `reference_attention`; no array is quadratic; compositions keep their parts apart.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import Cable, FoX, Llama4Temperature, RePo, RoPE, SelectiveRoPE, SSMax, Trait
from attnjax.positions.base import resolve
from tests import oracle, oracle_frontier
from tests.cases import FAST, slow_except
from tests.positions.contextual import CAUSAL, self_attention

B, T, N, K, H = 2, 12, 4, 2, 8
SIZES = aj.Sizes(model=N * H, heads=N, kv_heads=K, head_dim=H)
TILES = aj.Tiling(5, 3, heads=1)

ENCODINGS = {
    "fox": FoX(gate_bias=1.0),
    "cable": Cable(),
    "repo": RePo(theta=100.0),
    "repo-interleaved": RePo(layout="interleaved"),
    "selective_rope": SelectiveRoPE(rank=6),
    "ssmax": SSMax(),
    "ssmax-biased": SSMax(biased=True),
    "llama4_temperature": Llama4Temperature(floor_scale=3, attn_scale=0.4),
    "rope+fox": aj.compose(RoPE(), FoX()),
    "ssmax+selective_rope+cable": aj.compose(SSMax(), SelectiveRoPE(rank=3), Cable()),
    "repo+t5": aj.compose(RePo(), aj.T5Bias(buckets=8, max_distance=9)),
    "fox+cope": aj.compose(FoX(), aj.CoPE(max_position=4)),
}
DECODED = ENCODINGS | {
    "fox+axial": aj.compose(FoX(), aj.AxialRoPE()),
    "mrope+cable": aj.compose(aj.MRoPE(), Cable()),
}


def drawn(encoding, dtype="float32", length=T, kv_heads=K):
    """Parameters away from zero, tokens, queries, keys and values."""
    random = np.random.default_rng(3)
    normal = lambda *shape: random.normal(size=shape).astype(dtype)
    sizes = SIZES._replace(kv_heads=kv_heads)
    moved = lambda leaf: np.asarray(np.asarray(leaf) + 0.3 * random.normal(size=leaf.shape), dtype)
    params = jax.tree.map(moved, encoding.init(jax.random.key(1), sizes))
    arrays = normal(B, length, N * H), normal(B, length, N, H), *(normal(B, length, kv_heads, H) for _ in "kv")
    return params, *(jnp.asarray(one) for one in arrays)


def step(cache, params, x, q, k, v, index):
    """Positions of the next tokens from those of the last, into the cache, and attention to it."""
    before = cache.last_positions() if Trait.CONTEXT in cache.encoding.traits else None
    if isinstance(before, tuple):
        before = tuple(
            at if Trait.CONTEXT in part.traits else None for part, at in zip(cache.encoding.parts, before, strict=True)
        )
    pos = aj.context_positions(cache.encoding, params, x, index, SIZES, before)
    cache = cache.append(k, v, pos, params=params)
    return cache, aj.attend(q, cache=cache, encoding=cache.encoding, params=params, mask=CAUSAL)


WAYS = [(name, way) for name in DECODED for way in ("tokens", "chunks")]
WAYS += [pytest.param(name, "eager", marks=pytest.mark.slow) for name in ("fox", "selective_rope", "ssmax", "rope+fox")]


@pytest.mark.quick("ssmax+selective_rope+cable-tokens", "fox+axial-chunks")
@pytest.mark.parametrize(("name", "way"), WAYS)
def test_decoding_equals_the_forward(name, way):
    """Compiled token by token, compiled in chunks, and not compiled, in chunks and single tokens."""
    cuts = {"tokens": tuple(range(1, T)), "chunks": (4, 8), "eager": (5, 6, 7, 10)}[way]
    encoding = DECODED[name]
    params, *arrays = drawn(encoding)
    expected = self_attention(encoding, params, *arrays)
    cache = aj.KVCache.create(B, T, K, H, heads=N, encoding=encoding)
    run = step if way == "eager" else jax.jit(step, compiler_options=FAST)
    outs = []
    for start, stop in zip((0, *cuts), (*cuts, T), strict=True):
        part = (one[:, start:stop] for one in arrays)
        cache, out = run(cache, params, *part, np.arange(start, stop, dtype=np.int32))
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs, 1), expected, atol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fox", "repo", "selective_rope", "rope+fox"])
def test_decoding_in_a_ring_equals_a_window(name):
    """The cache forgets keys, and the position of the last token holds all that the next one needs."""
    encoding = ENCODINGS[name]
    params, *arrays = drawn(encoding)
    mask = aj.Mask(causal=True, window=3)
    expected = self_attention(encoding, params, *arrays, mask=mask)
    cache = aj.KVCache.create(B, 4, K, H, heads=N, encoding=encoding, window=3)
    for i in range(T):
        x, q, k, v = (one[:, i : i + 1] for one in arrays)
        before = cache.last_positions()
        before = (None, before[1]) if isinstance(before, tuple) else before
        pos = aj.context_positions(encoding, params, x, np.array([i], np.int32), SIZES, before)
        cache = cache.append(k, v, pos, params=params)
        out = aj.attend(q, cache=cache, encoding=encoding, params=params, mask=mask)
        np.testing.assert_allclose(out[:, 0], expected[:, i], atol=3e-6)


def gradients(encoding, attention, params, x, q, k, v):
    """The output, and the gradients of a random sum of it with respect to params, x, q, k and v."""
    weight = jnp.asarray(np.random.default_rng(5).normal(size=q.shape), q.dtype)

    def loss(*leaves):
        out = attention(encoding, *leaves)
        return (weight * out).sum(), out

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True), compiler_options=FAST)
    (_, out), found = run(params, x, q, k, v)
    return {"out": out, "gradients": found}


X = (jax.tree_util.SequenceKey(1),)
"""Where `gradients` has those of x, which are zero for encodings that do not read tokens."""


def by_reference(encoding, params, x, q, k, v):
    """`reference_attention`, one head of one example after the other."""
    pos = aj.context_positions(encoding, params, x, np.arange(T), SIZES)
    p = resolve(encoding, params, SIZES)
    visible, scale = jnp.tril(jnp.ones((T, T), bool)), jnp.asarray(H**-0.5, q.dtype)
    pick = lambda tree, i: jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), tree)

    def one(b, n):
        group = n // (N // K)
        # Of a composition each part has rows of its own: none, one per query head, or one per key head.
        rows = {N: n, K: group}
        at = jax.tree.map(lambda leaf: leaf if leaf.ndim == 1 else leaf[b, rows[leaf.shape[1]]], pos)
        own = aj.EncodingParams(pick(p.head, n), pick(p.kv_head, group), p.shared)
        return aj.reference_attention(encoding, own, q[b, :, n], k[b, :, group], v[b, :, group], at, at, visible, scale)

    return jnp.stack([jnp.stack([one(b, n) for n in range(N)], 1) for b in range(B)])


@pytest.mark.quick("rope+fox", "ssmax+selective_rope+cable")
@pytest.mark.parametrize("name", ENCODINGS)
def test_gradients_by_tiles_equal_those_of_the_table_and_of_the_reference(name, x64):
    encoding = ENCODINGS[name]
    arrays = drawn(encoding, "float64")
    dense, tiles = (functools.partial(self_attention, implementation=way) for way in ("dense", TILES))
    expected = gradients(encoding, by_reference, *arrays)
    for attention in (dense, tiles):
        found = gradients(encoding, attention, *arrays)
        for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
            unit = max(1.0, np.abs(b).max())
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * unit, err_msg=jax.tree_util.keystr(path))
            reads_x = Trait.CONTEXT in encoding.traits or path[1:] != X
            assert not reads_x or np.abs(b).max() > 1e-3, f"zero proves nothing: {jax.tree_util.keystr(path)}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fox", "cable", "repo", "selective_rope", "ssmax", "llama4_temperature"])
@pytest.mark.parametrize("kv_heads", slow_except([1, 4], 1))
def test_single_precision_on_every_way(name, kv_heads):
    """Multi-query and one key head per query head; dense, by tiles, and the plain path of `jax.nn`."""
    encoding = ENCODINGS[name]
    params, *arrays = drawn(encoding, kv_heads=kv_heads)
    with jax.enable_x64(True):
        double = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (params, *arrays))
        expected = self_attention(encoding, *double)
    for way in ("dense", TILES, "xla"):
        found = self_attention(encoding, params, *arrays, implementation=way)
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["fox", "cable", "repo", "selective_rope", "ssmax", "llama4_temperature"])
def test_sixteen_bit_tokens(name):
    """Positions are computed in float32 from the rounded tokens, and the result is rounded once."""
    encoding = ENCODINGS[name]
    params, *arrays = drawn(encoding)
    rounded = [one.astype(jnp.bfloat16) for one in arrays]
    expected = self_attention(encoding, params, *(one.astype(jnp.float32) for one in rounded))
    found = self_attention(encoding, params, *rounded)
    assert found.dtype == jnp.bfloat16
    # Weights and the result are each wrong by 2^-8 of themselves at most, and queries and keys are rounded once more after
    # they were turned or scaled.
    bits = 6 if Trait.MAP_Q in encoding.traits else 7
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=2.0**-bits * float(jnp.abs(arrays[-1]).max()))


@pytest.mark.quick("fox-2", "repo-4", "selective_rope-1", "ssmax-biased-2")
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(
    "name", ["fox", "cable", "repo", "selective_rope", "ssmax", "ssmax-biased", "llama4_temperature"]
)
def test_agrees_with_the_oracle(name, kv_heads, x64):
    """Positions and output of each head by the formulas of `tests/oracle.py`, which were written from the papers."""
    encoding, sizes = ENCODINGS[name], SIZES._replace(kv_heads=kv_heads)
    params, x, q, k, v = drawn(encoding, "float64", kv_heads=kv_heads)
    pos = aj.context_positions(encoding, params, x, np.arange(T), sizes)
    found = self_attention(encoding, params, x, q, k, v)
    positions_of = oracle_frontier.POSITIONS.get(type(encoding).__name__)
    pick = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)
    for b, n in np.ndindex(B, N):
        group = n // (N // kv_heads)
        head, kv_head = pick(params.head, n), pick(params.kv_head, group)
        at = jnp.arange(float(T))
        if positions_of is not None:
            at = positions_of(encoding, head, kv_head, params.shared, x[b], kv_heads)
            np.testing.assert_allclose(pos[b, group if Trait.MAP_K in encoding.traits else n], at, rtol=0, atol=1e-10)
        context = {"q_pos": at, "k_pos": at, "allowed": jnp.tril(jnp.ones((T, T), bool)), "scale": H**-0.5}
        rows = q[b, :, n], k[b, :, group], v[b, :, group]
        expected = oracle.attention(encoding, head, params.shared, *rows, context)
        np.testing.assert_allclose(found[b, :, n], expected, rtol=0, atol=1e-9)


def shapes(jaxpr):
    """Shapes of every array that a program names, inner programs included."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in (*equation.invars, *equation.outvars))
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from shapes(inner)


@pytest.mark.quick("repo", "fox+cope")
@pytest.mark.parametrize("name", ENCODINGS)
def test_no_array_has_two_long_axes(name):
    """Positions included, forward and backward; the whole table does."""
    encoding, length = ENCODINGS[name], 512
    params, *arrays = drawn(encoding, length=length)

    def loss(params, x, q, k, v, way):
        return (self_attention(encoding, params, x, q, k, v, implementation=way) ** 2).sum()

    def quadratic(way):
        program = jax.make_jaxpr(jax.grad(functools.partial(loss, way=way), argnums=(0, 1, 2, 3, 4)))(params, *arrays)
        return {shape for shape in shapes(program) if sum(size >= length - 1 for size in shape) > 1}

    assert quadratic(aj.Tiling(16, 16)) == set()
    assert quadratic("dense")


def test_parts_of_a_composition_act_as_they_do_alone(x64):
    """FoX on keys that RoPE turned before is FoX after RoPE."""
    encoding = ENCODINGS["rope+fox"]
    params, x, q, k, v = drawn(encoding, "float64")
    turn = lambda y: jnp.stack(
        [
            jnp.stack([RoPE().map_q(RoPE().constants(SIZES), y[b, :, n], np.arange(T)) for n in range(y.shape[2])], 1)
            for b in (0, 1)
        ]
    )
    own = aj.EncodingParams(head=params.head[1])
    expected = self_attention(FoX(), own, x, turn(q), turn(k), v)
    np.testing.assert_allclose(self_attention(encoding, params, x, q, k, v), expected, rtol=0, atol=1e-12)
    pos = aj.context_positions(encoding, params, x, np.arange(T), SIZES)
    assert [one.shape for one in pos] == [(T,), (B, N, T)]


def test_a_composition_with_positions_of_its_own_needs_them():
    encoding = ENCODINGS["rope+fox"]
    params, _, q, k, v = drawn(encoding)
    with pytest.raises(ValueError, match="q_pos: a part of .* computes positions: pass those of context_positions"):
        aj.attend(q, k, v, encoding=encoding, params=params, mask=CAUSAL)
    params, x, q, k, v = drawn(RePo())
    pos = aj.context_positions(RePo(), params, x, np.arange(T), SIZES)
    wrong = jnp.repeat(pos, 2, axis=1)
    with pytest.raises(ValueError, match=r"k_pos must have shape .*, got \(2, 4, 12\)"):
        aj.attend(q, k, v, encoding=RePo(), params=params, q_pos=pos, k_pos=wrong, mask=CAUSAL)
