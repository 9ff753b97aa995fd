"""The big agreement: every encoding, implementation, mask, head layout and choice of positions against the oracle.

Outputs, and the gradients of q, k, v, the scale and every learned number, are compared in float64 to 1e-9 and in float32
to 2e-5 (see `assert_near`).

Compiling is what costs time here, so one program serves all masks: its window of `BAND` indices to each side is static,
but indices are data. With q_index = stretch * i + shift and k_index = stretch * j that window is a causal mask, a full one
or a narrow band. Masks as users write them are tested in `test_masks_as_written`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import (
    FIRE,
    ALiBi,
    CoPE,
    DynamicNTK,
    Kerple,
    Learned,
    Llama3,
    LongRoPE,
    Mask,
    NoPE,
    NTKAware,
    PoPE,
    PositionInterpolation,
    RoPE,
    Sandwich,
    Sinusoidal,
    Sizes,
    T5Bias,
    TransformerXL,
    XPos,
    YaRN,
    compose,
)
from attnjax.attention import dispatch
from attnjax.attention.chunked import chunked
from attnjax.attention.tiling import Tiling
from tests.cases import FAST, once_except
from tests.oracle import oracle

B, N, H = 2, 8, 8
LAYOUTS = {"mha": (8, 13, 13), "gqa": (2, 13, 21), "mqa": (1, 21, 13)}
"""Key heads, T and S: odd lengths, equal and unequal."""

TILE = Tiling(5, 7, heads=1)
FARTHEST = 200
"""Random positions are below: far enough for the last bucket of T5 and for both lists of LongRoPE."""

ENCODINGS = {
    "nope": NoPE(),
    "rope": RoPE(),
    "rope-interleaved": RoPE(layout="interleaved"),
    "rope-fraction": RoPE(fraction=0.5, theta=100.0),
    "rope-keep": RoPE(keep=0.75),
    "rope-pi": RoPE(scaling=PositionInterpolation(4.0)),
    "rope-ntk": RoPE(scaling=NTKAware(4.0)),
    "rope-dynamic": RoPE(scaling=DynamicNTK(2.0, 16)),
    "rope-yarn": RoPE(scaling=YaRN(4.0, 64)),
    "rope-llama3": RoPE(scaling=Llama3(8.0, 64)),
    "rope-longrope": RoPE(scaling=LongRoPE((1.0, 1.5, 2.0, 3.0), (1.0, 3.0, 6.0, 9.0), 20, factor=4.0)),
    "xpos": XPos(),
    "alibi": ALiBi(),
    "alibi-symmetric": ALiBi(symmetric=True),
    "t5": T5Bias(),
    "t5-bidirectional": T5Bias(bidirectional=True),
    "kerple": Kerple(),
    "kerple-power": Kerple("power"),
    "fire": FIRE(threshold=30.0),
    "transformer_xl": TransformerXL(),
    "cope": CoPE(),
    "cope-short": CoPE(max_position=3),
    "sandwich": Sandwich(),
    "pope": PoPE(),
    "rope+alibi": compose(RoPE(), ALiBi()),
    "rope+t5": compose(RoPE(layout="interleaved", fraction=0.5), T5Bias()),
    "alibi+cope": compose(ALiBi(symmetric=True), CoPE(max_position=4)),
}
EMBEDDINGS = {
    "sinusoidal": Sinusoidal(),
    "concatenated": Sinusoidal("concatenated", theta=500.0),
    "learned": Learned(FARTHEST),
}
"""They act before attention, whose program is that of NoPE."""
CAUSAL_ONLY = {"xpos", "alibi", "rope+alibi"}
WITHOUT_XLA = {
    *("alibi-symmetric", "t5", "t5-bidirectional", "kerple", "kerple-power", "fire", "cope", "cope-short"),
    *("rope+t5", "alibi+cope"),
}

BAND = 100
REACHES = {
    "causal": (1, -BAND),
    "full": (1, 0),
    "window": (BAND // 2, 0),
    "causal window": (BAND // 2, -BAND),
}
"""Stretch and shift of the index: j <= i; all j; |i - j| <= 2; i - 4 <= j <= i."""
RULES = ("all keys", "segments", "left padding", "empty rows")
POSITIONS = ("arange", "random")

TOLERANCE = {"float64": 1e-9, "float32": 2e-5}
PROGRAMS = (
    ("dense", "float64"),
    ("chunked", "float64"),
    ("dense", "float32"),
    ("chunked", "float32"),
    ("xla", "float32"),
)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles in both directions, and padding of both."""
    monkeypatch.setitem(dispatch.WITH_LSE, "chunked", functools.partial(chunked, tiling=TILE))


def draw(encoding, layout):
    """q, k, v, parameters and scale as float32 NumPy, no number of them trivial."""
    kv_heads, T, S = LAYOUTS[layout]
    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, kv_heads, H))
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.3 * normal(*leaf.shape), params)
    return normal(B, T, N, H), normal(B, S, kv_heads, H), normal(B, S, kv_heads, H), params, np.float32(0.4)


def positions_of(kind, T, S):
    """q_pos and k_pos; the same where queries and keys are of one sequence."""
    if kind == "arange":
        return tuple(np.broadcast_to(np.arange(n, dtype=np.int32), (B, n)) for n in (T, S))
    random = np.random.default_rng(1)
    rows = lambda n: np.stack([np.sort(random.choice(FARTHEST, n, replace=False)) for _ in range(B)]).astype(np.int32)
    k_pos = rows(S)
    return (k_pos if T == S else rows(T)), k_pos


def index_of(reach, T, S):
    stretch, shift = REACHES[reach]
    return (stretch * np.arange(T) + shift).astype(np.int32), (stretch * np.arange(S)).astype(np.int32)


def rules_of(rule, T, S):
    """q_segments, k_segments and k_valid, different in the two examples."""
    q_segments, k_segments, valid = np.zeros((B, T), np.int32), np.zeros((B, S), np.int32), np.ones((B, S), bool)
    if rule == "segments":
        for row, cut in ((0, 4), (1, 3), (1, 9)):
            q_segments[row, cut:] += 1
            k_segments[row, cut:] += 1
    if rule == "left padding":
        valid = np.arange(S)[None] >= np.array([[3], [8]])
    if rule == "empty rows":
        q_segments[0, [2, 7]] = 9
        valid[1] = False
    return q_segments, k_segments, valid


def allowed_by(q_index, k_index, q_segments, k_segments, k_valid):
    """The mask of the program, entry by entry."""
    (examples, T), S = q_segments.shape, k_segments.shape[1]
    allowed = np.zeros((examples, T, S), bool)
    for b, i, j in itertools.product(range(examples), range(T), range(S)):
        near = -BAND <= k_index[j] - q_index[i] <= BAND
        allowed[b, i, j] = near and q_segments[b, i] == k_segments[b, j] and k_valid[b, j]
    return allowed


def cases_of(name, layout):
    """(mask, rule, positions) and the arrays that go with them."""
    _, T, S = LAYOUTS[layout]
    reaches = [reach for reach in REACHES if name not in CAUSAL_ONLY or "causal" in reach]
    for reach, rule, kind in itertools.product(reaches, RULES, POSITIONS):
        yield (reach, rule, kind), (*positions_of(kind, T, S), *index_of(reach, T, S), *rules_of(rule, T, S))


WAYS = (("mha", "float64"), ("mqa", "float64"), ("gqa", "float64"), ("gqa", "float32"))
"""Layouts and types. One layout is enough in single precision, since rounding is the same in each."""


def programs_of(name, *dtypes):
    """All of these types that can serve the encoding."""
    able = [program for program in PROGRAMS if program[0] != "xla" or name not in WITHOUT_XLA]
    return [program for program in able if program[1] in dtypes]


def attention(name, implementation):
    causal = name in CAUSAL_ONLY

    def run(q, k, v, params, scale, q_pos, k_pos, q_index, k_index, q_segments, k_segments, k_valid):
        # What is declared causal may look no index ahead, and looks back twice as far from an index shifted by as much.
        window, q_index = (2 * BAND, q_index + BAND) if causal else (BAND, q_index)
        mask = Mask(causal, window, q_segments, k_segments, k_valid, q_index, k_index)
        options = {"encoding": ENCODINGS[name], "params": params, "q_pos": q_pos, "k_pos": k_pos, "scale": scale}
        return attnjax.attend(q, k, v, mask=mask, implementation=implementation, **options)

    return with_gradients(run)


def truth(name):
    def run(q, k, v, params, scale, q_pos, k_pos, allowed, valid):
        return oracle(ENCODINGS[name], params, q, k, v, q_pos, k_pos, allowed, scale, valid)

    return with_gradients(run)


def with_gradients(function):
    """Output and gradients of a random sum of it, of order 1, with respect to q, k, v, parameters and scale."""

    def loss(*arguments):
        out = function(*arguments)
        weight = np.random.default_rng(2).normal(size=out.shape) / np.sqrt(out.size)
        return (jnp.asarray(weight, out.dtype) * out).sum(), out

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True), compiler_options=FAST)


def outcome(program, inputs, data, dtype):
    with jax.enable_x64(dtype == "float64"):
        inputs = jax.tree.map(lambda x: jnp.asarray(x, dtype), inputs)
        (_, out), gradients = program(*inputs, *data)
        gradients = dict(zip(("q", "k", "v", "params", "scale"), gradients, strict=True))
        return jax.tree.map(np.asarray, {"out": out} | gradients)


def assert_near(got, expected, tolerance, case):
    """Errors relative to the largest entry of the same array. Gradients that sum over the batch (parameters, scale) may
    cancel; their error is relative to at least 1, the order of the loss."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        smallest = 1.0 if path[0].key in ("params", "scale") else 0.0
        error, unit = np.abs(a.astype(np.float64) - b).max(), max(smallest, np.abs(b).max())
        where = jax.tree_util.keystr(path)
        assert error <= tolerance * unit, f"{case}: {where} is wrong by {error:.2g} where entries reach {unit:.2g}"


def tolerance(name, implementation, dtype):
    # Sandwich has no parameter that could be float64, so its bias is float32 by the contract of `bias`.
    single = name == "sandwich" and implementation != "xla"
    return TOLERANCE["float32" if single else dtype]


@functools.lru_cache(maxsize=1)
def truths(name, layout):
    """What every case of `cases_of` gives, for all types."""
    inputs, program = draw(ENCODINGS[name], layout), truth(name)
    arguments = ((*data[:2], allowed_by(*data[2:]), data[-1]) for _, data in cases_of(name, layout))
    return [outcome(program, inputs, given, "float64") for given in arguments]


@pytest.mark.parametrize(
    ("layout", "dtype"), [pytest.param(*way, marks=pytest.mark.once if "float64" in way else ()) for way in WAYS]
)
@pytest.mark.parametrize("name", ENCODINGS)
def test_agrees_with_the_oracle(name, layout, dtype):
    inputs = draw(ENCODINGS[name], layout)
    programs = {way: attention(name, way) for way, _ in programs_of(name, dtype)}
    for (case, data), expected in zip(cases_of(name, layout), truths(name, layout), strict=True):
        for implementation, program in programs.items():
            got = outcome(program, inputs, data, dtype)
            assert_near(got, expected, tolerance(name, implementation, dtype), (implementation, dtype, *case))


def test_the_matrix_is_whole():
    """27 encodings, of all 13 kinds but the 2 embeddings; 3 layouts; 4 masks (2 for what must be causal), each with 4
    rules; 2 positions; dense and chunked in double precision, and for grouped heads in single precision too, with xla."""
    kinds = {type(part) for encoding in ENCODINGS.values() for part in getattr(encoding, "parts", (encoding,))}
    assert kinds | {type(encoding) for encoding in EMBEDDINGS.values()} == set(attnjax.ENCODINGS.values())
    programs = lambda name, layout, dtype: len([*cases_of(name, layout)]) * len(programs_of(name, dtype))
    count = sum(programs(name, *way) for name in ENCODINGS for way in WAYS)
    grouped, others = (24 * 4 + 14, 3 * 4 + 3), (24 * 2, 3 * 2)
    assert count == sum(n * (4 * 4 * 2 * a + 2 * 4 * 2 * b) for n, (a, b) in ((1, grouped), (2, others))) == 7_024


@functools.cache
def operations(encoding, implementation):
    """The program of the gradients of q, k and v."""
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, N, H))
    options = {"encoding": encoding, "params": params, "mask": Mask(causal=True), "implementation": implementation}
    loss = lambda q, k, v: attnjax.attend(q, k, v, **options).sum()
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*[jnp.ones((B, 13, N, H))] * 3).as_text()


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_attention_of_embeddings_is_that_of_nope(name):
    """Not one operation differs, so the matrix above serves them too."""
    for implementation in ("dense", "chunked", "xla"):
        assert operations(EMBEDDINGS[name], implementation) == operations(NoPE(), implementation)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("reach", REACHES)
def test_masks_of_the_matrix_are_what_they_are_called(reach, rule):
    """The affine change of indices, against the mask drawn from its name."""
    T, S = 13, 21
    q_segments, k_segments, valid = rules_of(rule, T, S)
    i, j = np.arange(T)[:, None], np.arange(S)[None]
    named = {
        "causal": j <= i,
        "full": j == j + 0 * i,
        "window": abs(i - j) <= 2,
        "causal window": (i - 4 <= j) & (j <= i),
    }
    expected = named[reach][None] & (q_segments[:, :, None] == k_segments[:, None]) & valid[:, None]
    found = allowed_by(*index_of(reach, T, S), q_segments, k_segments, valid)
    np.testing.assert_array_equal(found, expected)
    assert rule != "empty rows" or not expected.any(-1).all()


@pytest.mark.parametrize("name", once_except("nope rope-dynamic alibi t5-bidirectional sandwich cope".split(), "alibi"))
def test_masks_as_written(name):
    """The masks of a user, with positions by default or [T] instead of [B, T]: output and gradients, float32."""
    inputs = draw(ENCODINGS[name], "mha")
    T = inputs[0].shape[1]
    i, j = np.arange(T)[:, None], np.arange(T)[None]
    causal, window, ids = j <= i, (i - 3 <= j) & (j <= i + 2), np.arange(T) // 5
    masks = [
        (Mask(causal=True), None, causal),
        (Mask(causal=True, window=4, k_valid=np.arange(T) > 1), 3 * np.arange(T), causal & (i - 4 <= j) & (j > 1)),
        (Mask(), np.arange(T), causal | True),
        (Mask(window=(3, 2), q_segments=ids, k_segments=ids), None, window & (ids[:, None] == ids[None])),
    ]
    expected_of = truth(name)
    for mask, pos, allowed in masks[: 2 if name in CAUSAL_ONLY else 4]:
        options = {"encoding": ENCODINGS[name], "mask": mask, "q_pos": pos, "k_pos": pos, "implementation": "chunked"}
        attend = lambda q, k, v, params, scale, options=options: attnjax.attend(
            q, k, v, params=params, scale=scale, **options
        )
        pos = np.broadcast_to(np.arange(T) if pos is None else pos, (B, T)).astype(np.int32)
        valid = np.broadcast_to(True if mask.k_valid is None else mask.k_valid, (B, T))
        expected = outcome(expected_of, inputs, (pos, pos, np.broadcast_to(allowed, (B, T, T)), valid), "float64")
        assert_near(outcome(with_gradients(attend), inputs, (), "float32"), expected, TOLERANCE["float32"], mask)


@pytest.mark.parametrize("implementation", ["dense", "chunked"])
@pytest.mark.parametrize("name", once_except("rope xpos kerple-power fire transformer_xl".split(), "rope", "fire"))
def test_fractional_positions_and_their_gradients(name, implementation):
    """Positions may lie anywhere between whole numbers, and get the gradient of a smooth function of them."""
    inputs = draw(ENCODINGS[name], "gqa")
    (T, S), uniform = (inputs[0].shape[1], inputs[1].shape[1]), np.random.default_rng(5).uniform
    pos = [np.sort(uniform(0, 40, (B, n)), axis=1).astype(np.float32) for n in (T, S)]
    allowed = np.broadcast_to(np.arange(S)[None] <= np.arange(T)[:, None], (B, T, S))

    def outcome(attention, dtype):
        q, k, v, params, scale = jax.tree.map(lambda x: jnp.asarray(x, dtype), inputs)

        def loss(q_pos, k_pos):
            out = attention(q, k, v, params, scale, q_pos, k_pos)
            return jnp.sin(out).sum(), out

        run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), compiler_options=FAST)
        (_, out), (q_pos, k_pos) = run(*(jnp.asarray(x, dtype) for x in pos))
        return {"out": np.asarray(out), "q_pos": np.asarray(q_pos), "k_pos": np.asarray(k_pos)}

    def ours(q, k, v, params, scale, q_pos, k_pos):
        options = {"encoding": ENCODINGS[name], "params": params, "scale": scale, "implementation": implementation}
        return attnjax.attend(q, k, v, q_pos=q_pos, k_pos=k_pos, mask=Mask(causal=True), **options)

    with jax.enable_x64(True):
        true = lambda q, k, v, params, scale, *pos: oracle(ENCODINGS[name], params, q, k, v, *pos, allowed, scale)
        expected = outcome(true, "float64")
    assert_near(outcome(ours, "float32"), expected, TOLERANCE["float32"], name)


@pytest.mark.parametrize(
    ("name", "dtype", "bits"),
    [
        *((name, "bfloat16", 8) for name in ("rope", "xpos", "pope", "alibi", "t5", "transformer_xl", "cope")),
        *((name, "float16", 11) for name in ("nope", "rope-dynamic", "fire", "sandwich")),
    ],
)
def test_sixteen_bit_inputs(name, dtype, bits):
    """Computed in float32 and rounded once: the result is the oracle's of the rounded inputs, to half a unit in the last
    place, whatever the implementation."""
    q, k, v, params, scale = draw(ENCODINGS[name], "gqa")
    q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
    data = next(data for case, data in cases_of(name, "gqa") if case == ("causal", "left padding", "random"))
    with jax.enable_x64(True):
        arguments = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), "float64"), (params, q, k, v, scale))
        allowed = allowed_by(*data[2:])
        true = lambda *args: oracle(ENCODINGS[name], *args[:4], *data[:2], allowed, args[4], data[-1])
        expected = jax.jit(true)(*arguments)
    for implementation in {key[0] for key in programs_of(name, "float64", "float32")}:
        mask = Mask(causal=True, k_valid=data[-1])
        options = {"encoding": ENCODINGS[name], "params": params, "q_pos": data[0], "k_pos": data[1], "scale": scale}
        attend = lambda q, k, v, options=options | {"mask": mask, "implementation": implementation}: attnjax.attend(
            q, k, v, **options
        )
        out = jax.jit(attend, compiler_options=FAST)(q, k, v)
        assert out.dtype == dtype
        np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=1.01 * 2**-bits, atol=1e-5)
