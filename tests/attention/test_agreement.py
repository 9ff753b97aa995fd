"""Every encoding, implementation, mask, layout of heads and choice of positions against the oracle, and decoding.

Outputs, and the gradients of q, k, v, the scale and every learned number, are compared in float64 to 1e-9 and in float32
to 2e-5 (see `assert_near`). Cases and programs are in `matrix.py`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import KVCache, Mask, PaTH, Sizes, Tiling, attend, context_positions
from attnjax.positions.base import resolve
from attnjax.positions.compose import parts_of
from tests.attention import matrix
from tests.attention.matrix import AXES, ENCODINGS, LAYOUTS, PER_HEAD, TOLERANCE, B, H, N, assert_near, outcome
from tests.cases import slow_except
from tests.oracle import oracle, turns_of


def unpacked(function):
    """The result for one case."""
    return lambda *given: function(*given[:-1], *given[-1])


def compare(name, layout, dtype, ways, *, gradients=True, disorder=8):
    """All implementations in one program, under all masks at once. Zeros of outputs and gradients of v are exact."""
    inputs = matrix.draw(ENCODINGS[name], layout)
    names, data = zip(*matrix.cases_of(name, layout, disorder), strict=True)
    differentiated = matrix.with_gradients if gradients else lambda function: lambda *given: {"out": function(*given)}
    masks = matrix.stacked([(*case[:2], matrix.allowed_by(*case[2:])) for case in data])
    expected = outcome(matrix.over_cases(differentiated(matrix.truth(name))), inputs, masks, "float64")
    programs = {way: differentiated(matrix.attention(name, way)) for way in ways}
    run = lambda *given: {str(way): program(*given) for way, program in programs.items()}
    tolerance = matrix.ROUNDING.get(name, TOLERANCE[dtype]) if dtype == "float32" else TOLERANCE[dtype]
    for way, got in outcome(matrix.over_cases(run), inputs, matrix.stacked(data), dtype).items():
        for i, case in enumerate(names):
            one, other = (jax.tree.map(lambda x, i=i: x[i], each) for each in (got, expected))
            assert_near({"out": one["out"]}, {"out": other["out"]}, TOLERANCE[dtype], (way, dtype, *case))
            assert_near(one, other, tolerance, (way, dtype, *case))
            for key in {"out", "v"} & one.keys():
                assert not one[key][other[key] == 0].any(), (key, way, dtype, *case)


def ways_of(name):
    """The implementations that can serve."""
    whole = any(part.whole_table for part in parts_of(ENCODINGS[name]))
    return ("dense",) if whole else ("dense", matrix.TILES)


BY_DAY = {
    **dict.fromkeys(("nope", "t5"), ("dense", matrix.TILES)),
    **dict.fromkeys(("fire", "self_extend", "repo", "alibi", "transformer_xl", "fox"), (matrix.TILES,)),
}
"""They stand by day for all in these implementations: maps act before one is chosen, and tiles call every bias alike."""


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name not in matrix.STRETCHED | matrix.COMBINED])
def test_agreement(name):
    """With grouped heads."""
    dtype = "float64" if name in matrix.EVERY_DAY else "float32"
    compare(name, "gqa", dtype, BY_DAY.get(name, ("dense",)), gradients=name not in matrix.VARIANTS)


@pytest.mark.parametrize("name", sorted(matrix.STRETCHED))
def test_frequencies(name):
    """All in which RoPE with a scaling, and with a share of its pairs, differs from RoPE: what it turns, and how far."""
    length = LAYOUTS["gqa"][2]
    constants = ENCODINGS[name].constants(Sizes(N * H, N, 2, H), length)
    with jax.enable_x64(True):
        radians, gains = turns_of(ENCODINGS[name], H, {"length": length})
    np.testing.assert_allclose(constants["frequencies"].radians, radians, rtol=1e-12)
    np.testing.assert_allclose(constants["gain"], gains[0], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["mha", "gqa", "mqa"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_agreement_in_all_layouts(name, layout):
    """One layout is enough in single precision, since rounding is the same in each, and for 200 cases without order."""
    compare(name, layout, "float64", ways_of(name), disorder=200 if layout == "gqa" else 8)
    if layout == "gqa":
        compare(name, layout, "float32", ways_of(name))


def test_the_matrix_is_whole():
    """Every encoding but those of embeddings, and PaTH, which has a reference of its own."""
    kinds = {type(part) for encoding in ENCODINGS.values() for part in parts_of(encoding)}
    assert set(aj.ENCODINGS.values()) - kinds == {aj.PaTH, aj.Sinusoidal, aj.Learned}
    assert {*PER_HEAD, *AXES, *BY_DAY} | matrix.EVERY_DAY | matrix.VARIANTS | matrix.COMBINED <= set(ENCODINGS)


@pytest.mark.parametrize("name", slow_except(("rope", "t5", "fire", "cope", "stick"), "t5", "stick"))
def test_the_page_to_read_first(name):
    """`reference_attention` of every head of an example, in float64."""
    encoding, (q, k, v, params, scale) = ENCODINGS[name], matrix.draw(ENCODINGS[name], "gqa")
    (_, case), group = next(matrix.cases_of(name, "gqa")), N // k.shape[2]
    q_pos, k_pos, allowed = case[0][0], case[1][0], matrix.allowed_by(*case[2:])[0]

    def run(q, k, v, params, scale, _):
        p = resolve(encoding, params, Sizes(N * H, N, k.shape[2], H), k.shape[1])
        own = {part: 0 if part in encoding.per_head else None for part in p}
        one = lambda p, q, k, v: aj.reference_attention(encoding, p, q, k, v, q_pos, k_pos, jnp.asarray(allowed), scale)
        spread = lambda x: jnp.repeat(x[0], group, axis=1)
        return {"out": jax.vmap(one, (own, 1, 1, 1), 1)(p, q[0], spread(k), spread(v))[None]}

    inputs, data = (q[:1], k[:1], v[:1], params, scale), (q_pos[None], k_pos[None], allowed[None])
    expected = outcome(unpacked(matrix.truth(name)), inputs, data, "float64")
    assert_near(outcome(run, inputs, (), "float64"), {"out": expected}, 1e-9, name)


ROWS = [(name, "key heads") for name in ENCODINGS if name not in PER_HEAD]
ROWS += [(name, "query heads") for name, _ in ROWS if not ENCODINGS[name].has("angle", "map_k")]


@pytest.mark.parametrize(("name", "heads"), slow_except(ROWS, ("rope", "key heads"), ("alibi", "query heads")))
def test_positions_with_a_row_per_head(name, heads):
    """Any positions may differ between heads: [B, N, T] of queries, [B, K, S] of keys, or [B, N, S] where no map reads them."""
    inputs, (K, T, S) = matrix.draw(ENCODINGS[name], "gqa"), LAYOUTS["gqa"]
    random, last = np.random.default_rng(6), (AXES[name],) if name in AXES else ()
    rows = lambda heads, n: np.sort(random.integers(0, matrix.FARTHEST, (B, heads, n, *last)), axis=2).astype(np.int32)
    given = *matrix.index_of("causal", T, S), *matrix.rules_of("left padding", T, S)
    pos = rows(N, T), rows({"key heads": K, "query heads": N}[heads], S)

    def true(q, k, v, params, scale, q_pos, k_pos, allowed):
        parts = len(parts_of(ENCODINGS[name]))
        one = (q_pos, k_pos, True) if parts == 1 else ((q_pos,) * parts, (k_pos,) * parts, (True,) * parts)
        return oracle(ENCODINGS[name], params, q, k, v, *one[:2], allowed, scale, per_head=one[2])

    run = lambda function: unpacked(matrix.with_gradients(function))
    expected = outcome(run(true), inputs, (*pos, matrix.allowed_by(*given)), "float64")
    got = outcome(run(matrix.attention(name, ways_of(name)[:2][-1])), inputs, (*pos, *given), "float32")
    assert_near(got, expected, TOLERANCE["float32"], name)


AS_WRITTEN = ("nope", "rope-dynamic", "alibi", "t5-bidirectional", "sandwich", "cope")


@pytest.mark.parametrize("name", slow_except(AS_WRITTEN, "t5-bidirectional"))
def test_masks_as_written(name):
    """The masks of a user, with positions by default, which are known, or [T] instead of [B, T]: output and gradients."""
    inputs, T, way = matrix.draw(ENCODINGS[name], "mha"), 13, ways_of(name)[:2][-1]
    i, j, pos = np.arange(T)[:, None], np.arange(T)[None], np.arange(T)
    causal, window, ids = j <= i, (i - 3 <= j) & (j <= i + 2), np.arange(T) // 5
    near = causal & (i - 4 <= j) & (j > 1)
    cases = [
        (Mask(causal=True), None, pos, causal),
        (Mask(causal=True, window=4, k_valid=pos > 1), pos[::-1], pos[::-1], near),
        (Mask(window=(3, 2), q_segments=ids, k_segments=ids), None, pos % 5, window & (ids[:, None] == ids[None])),
    ]
    cases = cases[: 2 if name in matrix.CAUSAL_ONLY else 3]
    rows = lambda x: np.broadcast_to(x, (B, *np.shape(x)))
    data = matrix.stacked([(rows(pos), rows(pos), rows(allowed)) for _, _, pos, allowed in cases])
    expected = outcome(matrix.over_cases(matrix.with_gradients(matrix.truth(name))), inputs, data, "float64")

    def written(mask, pos):
        options = {"encoding": ENCODINGS[name], "mask": mask, "q_pos": pos, "k_pos": pos, "implementation": way}
        # Documents have no length in common: it is given.
        options |= {} if mask.k_segments is None else {"length": T}
        return lambda q, k, v, params, scale: attend(q, k, v, params=params, scale=scale, **options)

    run = lambda *given: [matrix.with_gradients(written(mask, pos))(*given[:-1]) for mask, pos, *_ in cases]
    for n, got in enumerate(outcome(run, inputs, (), "float32")):
        assert_near(got, jax.tree.map(lambda x, n=n: x[n], expected), TOLERANCE["float32"], cases[n][0])


@pytest.mark.parametrize("name", slow_except(("rope", "xpos", "kerple-power", "fire", "transformer_xl"), "fire"))
def test_fractional_positions_and_their_gradients(name):
    """Positions may lie anywhere between whole numbers, and get the gradient of a smooth function of them."""
    inputs, (_, T, S), uniform = matrix.draw(ENCODINGS[name], "gqa"), LAYOUTS["gqa"], np.random.default_rng(5).uniform
    pos = [np.sort(uniform(0, 40, (B, n)), axis=1).astype(np.float32) for n in (T, S)]
    allowed = np.broadcast_to(np.arange(S)[None] <= np.arange(T)[:, None], (B, T, S))

    def differentiated(attention):
        def run(*given):
            loss = lambda *pos: (jnp.sin(out := attention(*given[:-1], *pos)).sum(), out)
            (_, out), (q_pos, k_pos) = jax.value_and_grad(loss, (0, 1), has_aux=True)(*given[-1])
            return {"out": out, "q_pos": q_pos, "k_pos": k_pos}

        return run

    def ours(q, k, v, params, scale, q_pos, k_pos, way):
        options = {"encoding": ENCODINGS[name], "params": params, "scale": scale, "implementation": way}
        return attend(q, k, v, q_pos=q_pos, k_pos=k_pos, mask=Mask(causal=True, q_index=np.arange(T)), **options)

    true = lambda *given: matrix.truth(name)(*given, jnp.asarray(allowed))
    expected = outcome(differentiated(true), inputs, pos, "float64")
    got = outcome(differentiated(functools.partial(ours, way=matrix.TILES)), inputs, pos, "float32")
    assert_near(got, expected, TOLERANCE["float32"], name)


# Decoding

DECODED = ENCODINGS | {"path": PaTH(rank=3), "path-forget": PaTH(rank=3, forget=True)}
TOKENS, KEY_HEADS = 8, 2


def decoded(name, *, prefill=0, chunk=1, window=None, capacity=TOKENS, way="dense"):
    """Compares the output for all tokens at once, and through a cache: a first chunk of `prefill` tokens, then of `chunk`.

    Positions from content are computed from x, and go on from those in the cache. With a window every head has a sink.
    """
    encoding, sizes, random = DECODED[name], Sizes(N * H, N, KEY_HEADS, H), np.random.default_rng(0)
    dtype = "float64" if "path" in name else "float32"
    options = {"encoding": encoding, "mask": Mask(causal=True, window=window)}
    options |= {"sink": np.linspace(-1, 2, N)} if window else {}
    index = np.arange(TOKENS, dtype=np.int32)

    def positions(params, x, index, before=None):
        if encoding.has("context"):
            return context_positions(encoding, params, x, index, sizes, before)
        return index[:, None].repeat(AXES[name], 1) if name in AXES else index

    def step(params, cache, now):
        x, q, k, v, index = now
        before = cache.last_positions() if encoding.has("context") else None
        cache = cache.append(k, v, positions(params, x, index, before), params=params)
        return cache, attend(q, cache=cache, params=params, implementation=way, **options)

    def both(params, tokens, _):
        pos = positions(params, tokens[0], index)
        full = attend(*tokens[1:], params=params, q_pos=pos, k_pos=pos, implementation="dense", **options)
        create = functools.partial(KVCache.create, B, capacity, KEY_HEADS, H, dtype, heads=N, length=TOKENS)
        cache, outs = create(encoding=encoding, window=window), []
        if prefill:
            cache, out = step(params, cache, (*(x[:, :prefill] for x in tokens), index[:prefill]))
            outs.append(out)
        steps = (TOKENS - prefill) // chunk
        split = lambda x: jnp.moveaxis(x[:, prefill:].reshape(B, steps, chunk, *x.shape[2:]), 1, 0)
        rest = (*map(split, tokens), index[prefill:].reshape(steps, chunk))
        _, out = jax.lax.scan(functools.partial(step, params), cache, rest)
        outs.append(jnp.moveaxis(out, 0, 1).reshape(B, steps * chunk, N, H))
        return jnp.concatenate(outs, 1), full

    shapes = ((N * H,), (N, H), (KEY_HEADS, H), (KEY_HEADS, H))
    tokens = tuple(random.normal(size=(B, TOKENS, *shape)) for shape in shapes)
    got, expected = outcome(both, (matrix.learned(encoding, sizes, random), tokens), (), dtype)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-12 if dtype == "float64" else 3e-6, err_msg=name)


REGIMES = {
    "token by token": {},
    "a first chunk, and a slot to spare": {"prefill": 3, "capacity": TOKENS + 1},
    "a ring, in chunks around its end": {"chunk": 2, "window": 3, "capacity": 5, "way": Tiling(2, 3)},
}
TOKENWISE, CHUNK, RING = REGIMES
DECODED_BY_DAY = [
    *((name, TOKENWISE) for name in ("rope-dynamic", "dape", "mrope", "fox", "path", "self_extend")),
    *((name, CHUNK) for name in ("xpos", "transformer_xl", "rope+stick", "ssmax", "rope+fox")),
    *((name, RING) for name in ("rope", "t5", "selective_rope")),
]
RINGED = [name for name, encoding in DECODED.items() if not any(part.whole_table for part in parts_of(encoding))]
ALL_DECODED = [*itertools.product(DECODED, (TOKENWISE, CHUNK)), *((name, RING) for name in RINGED)]


@pytest.mark.parametrize(("name", "regime"), slow_except(ALL_DECODED, *DECODED_BY_DAY))
def test_decoding_equals_the_full_forward(name, regime):
    decoded(name, **REGIMES[regime])
