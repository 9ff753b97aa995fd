"""The cases of the big agreement and the programs that are compared: encodings, layouts of heads, masks, positions, inputs.

Compiling is what costs time, so one program serves all masks: its window of `BAND` indices to each side is static, but
indices are data. With q_index = stretch * i + shift and k_index = stretch * j that window is a causal mask, a full one or a
narrow band.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

import attnjax
from attnjax import (
    DAPE,
    FIRE,
    ALiBi,
    AxialRoPE,
    Cable,
    CoPE,
    DualChunk,
    DynamicNTK,
    EncodingParams,
    FoX,
    Kerple,
    LeakyReRoPE,
    Learned,
    Llama3,
    Llama4Temperature,
    LMInfinite,
    LogN,
    LongRoPE,
    Mask,
    MixedRoPE,
    MRoPE,
    NoPE,
    NTKAware,
    PoPE,
    PositionInterpolation,
    RePo,
    ReRoPE,
    Resonance,
    RoPE,
    Sandwich,
    SelectiveRoPE,
    SelfExtend,
    Sinusoidal,
    Sizes,
    SSMax,
    StickBreaking,
    StreamingLLM,
    T5Bias,
    Tiling,
    Trait,
    TransformerXL,
    XPos,
    YaRN,
    compose,
)
from attnjax.attention import reference_attention
from attnjax.positions.base import resolve
from tests.cases import FAST
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
    "rope-resonance": RoPE(scaling=Resonance(YaRN(4.0, 64))),
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
    "ssmax": SSMax(biased=True),
    "llama4_temperature": Llama4Temperature(3, 0.4),
    "stick": StickBreaking(),
    "rope+stick": compose(RoPE(), StickBreaking(attend_current=False)),
    "dape": DAPE(ALiBi(symmetric=True), width=5),
    "rope+dape": compose(RoPE(), DAPE(T5Bias(), width=3)),
    "axial": AxialRoPE(),
    "mixed": MixedRoPE(),
    "mrope": MRoPE(theta=500.0, sections=(2, 0, 2), layout="interleaved"),
    "fox": FoX(),
    "cable": Cable(),
    "repo": RePo(theta=100.0),
    "selective_rope": SelectiveRoPE(rank=6),
    "rope+fox": compose(RoPE(), FoX()),
    "self_extend": SelfExtend(group=3, window=5),
    "self_extend-dynamic": SelfExtend(layout="interleaved", scaling=DynamicNTK(2.0, 16), group=2, window=7),
    "rerope": ReRoPE(layout="interleaved", fraction=0.5, window=6),
    "leaky_rerope": LeakyReRoPE(scaling=YaRN(4.0, 64), window=4, factor=2.5),
    "dual_chunk": DualChunk(chunk=8, local=3),
    "lm_infinite": LMInfinite(keep=0.75, first=4, window=6, limit=9),
    "streaming_llm": StreamingLLM(first=4, window=6),
    "log_n": LogN(length=6),
    "log_n+rerope": compose(LogN(length=6), ReRoPE(window=5)),
}
EMBEDDINGS = {
    "sinusoidal": Sinusoidal(),
    "concatenated": Sinusoidal("concatenated", theta=500.0),
    "learned": Learned(FARTHEST),
}
"""They act before attention, which refuses them."""
UNTRAINED = {
    *("self_extend", "self_extend-dynamic", "rerope", "leaky_rerope", "dual_chunk", "lm_infinite", "streaming_llm"),
    *("log_n", "log_n+rerope"),
}
"""Methods that read past the trained length without training; those that remap positions serve distances to the past."""
CAUSAL_ONLY = {"xpos", "alibi", "rope+alibi", "ssmax", "fox", "cable", "rope+fox", *UNTRAINED}
PER_HEAD = {"fox": True, "cable": True, "repo": True, "selective_rope": True, "rope+fox": (False, True)}
"""Encodings whose positions are computed from content: any numbers per head are positions here."""
AXES = {"axial": 2, "mixed": 2, "mrope": 3, "selective_rope": 2 * H}
"""Coordinates or channels of a position."""
EVERY_DAY = {"nope", "rope", "alibi", "t5", "fire", "cope", "dape", "fox", "selective_rope"}
"""Quick in all layouts of heads, in float32. The others are quick in grouped heads."""
VARIANTS = {
    *(
        "rope-interleaved",
        "rope-fraction",
        "rope-keep",
        "rope-pi",
        "rope-ntk",
        "rope-yarn",
        "rope-llama3",
        "rope-longrope",
        "rope-resonance",
    ),
    *("alibi-symmetric", "t5", "kerple", "kerple-power", "cope-short", "sandwich", "axial", "mrope", "cable"),
    *("llama4_temperature", "rope+alibi", "rope+t5", "rope+stick", "rope+dape", "rope+fox"),
    *(UNTRAINED - {"self_extend"}),
}
"""Slow, because others of their kind are quick: options of encodings, compositions, maps and biases of one formula."""

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


def draw(encoding, layout):
    """q, k, v, parameters and scale as float32 NumPy, no number of them trivial."""
    kv_heads, T, S = LAYOUTS[layout]
    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, kv_heads, H))
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.3 * normal(*leaf.shape), params)
    return normal(B, T, N, H), normal(B, S, kv_heads, H), normal(B, S, kv_heads, H), params, np.float32(0.4)


def positions_of(name, kind, layout):
    """q_pos and k_pos; the same where queries and keys are of one sequence."""
    K, T, S = LAYOUTS[layout]
    if kind == "arange":
        return tuple(np.broadcast_to(np.arange(n, dtype=np.int32), (B, n)) for n in (T, S))
    random = np.random.default_rng(1)
    rows = lambda n: np.stack([np.sort(random.choice(FARTHEST, n, replace=False)) for _ in range(B)]).astype(np.int32)
    k_pos = rows(S)
    q_pos = k_pos if T == S else rows(T)
    if name in PER_HEAD:
        heads = K if Trait.MAP_K in ENCODINGS[name].traits and name != "rope+fox" else N
        last = (AXES[name],) if name in AXES else ()
        floats = lambda n: np.sort(random.uniform(0, 9, (B, heads, n, *last)), axis=2).astype(np.float32)
        own = floats(T), floats(S)
        return own if PER_HEAD[name] is True else ((q_pos, own[0]), (k_pos, own[1]))
    if name in AXES:
        grid = lambda pos: np.stack([pos, *(random.permuted(pos, axis=1) for _ in range(AXES[name] - 1))], -1)
        return grid(q_pos), grid(k_pos)
    return q_pos, k_pos


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
    kinds = ("random",) if name in PER_HEAD or name in AXES else POSITIONS
    for reach, rule, kind in itertools.product(reaches, RULES, kinds):
        yield (reach, rule, kind), (*positions_of(name, kind, layout), *index_of(reach, T, S), *rules_of(rule, T, S))


WAYS = (("mha", "float64"), ("mqa", "float64"), ("gqa", "float64"), ("gqa", "float32"))
"""Layouts and types. One layout is enough in single precision, since rounding is the same in each."""


def programs_of(name, *dtypes):
    """All of these types that can serve the encoding."""
    able = [program for program in PROGRAMS if program[0] != "xla" or Trait.SCORE not in ENCODINGS[name].traits]
    return [program for program in able if program[1] in dtypes]


def attention(name, implementation, options=FAST):
    causal = name in CAUSAL_ONLY

    def run(q, k, v, params, scale, q_pos, k_pos, q_index, k_index, q_segments, k_segments, k_valid):
        # What is declared causal may look no index ahead, and looks back twice as far from an index shifted by as much.
        window, q_index = (2 * BAND, q_index + BAND) if causal else (BAND, q_index)
        mask = Mask(causal, window, q_segments, k_segments, k_valid, q_index, k_index)
        given = {"encoding": ENCODINGS[name], "params": params, "q_pos": q_pos, "k_pos": k_pos, "scale": scale}
        return attnjax.attend(q, k, v, mask=mask, implementation=implementation, **given)

    return with_gradients(run, options)


def truth(name):
    def run(q, k, v, params, scale, q_pos, k_pos, allowed, valid):
        rows = PER_HEAD.get(name, False)
        return oracle(ENCODINGS[name], params, q, k, v, q_pos, k_pos, allowed, scale, valid, per_head=rows)

    return with_gradients(run)


def read_beside_the_paper(name):
    """`reference_attention` of every head of every example."""
    encoding, rows = ENCODINGS[name], PER_HEAD.get(name, False)

    def run(q, k, v, params, scale, q_pos, k_pos, allowed, valid):
        group, K = N // k.shape[2], k.shape[2]
        sizes = Sizes(N * H, N, K, H)
        k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
        q_pos, k_pos = over_parts(lambda pos, own: spread(pos) if own else pos, q_pos, k_pos, rows)
        plain = not isinstance(k_pos, tuple) and k_pos.shape == valid.shape
        length = jnp.where(valid, k_pos, 0).max(1) + 1 if plain else jnp.zeros(B)
        at = over_parts(lambda pos, own: 0 if own else None, q_pos, q_pos, rows)[0]

        def example(q, k, v, q_pos, k_pos, allowed, length):
            p = resolve(encoding, params, sizes, length)
            kv_head = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf), group, axis=0), p.kv_head)
            one = lambda head, kv_head, q, k, v, q_pos, k_pos: reference_attention(
                encoding, EncodingParams(head, kv_head, p.shared), q, k, v, q_pos, k_pos, allowed, scale
            )
            heads = jax.vmap(one, in_axes=(0, 0, 1, 1, 1, at, at), out_axes=1)
            return heads(jax.tree.map(jnp.asarray, p.head), kv_head, q, k, v, q_pos, k_pos)

        return jax.vmap(example)(q, k, v, q_pos, k_pos, allowed, length)

    return jax.jit(run, compiler_options=FAST)


def spread(pos):
    """Rows of key heads as rows of query heads."""
    return jnp.repeat(pos, N // pos.shape[1], axis=1)


def over_parts(f, q_pos, k_pos, rows):
    """f(positions, per head) of queries and keys, of an encoding or of each part of a composition."""
    if not isinstance(q_pos, tuple):
        return f(q_pos, rows), f(k_pos, rows)
    each = [(f(q, own), f(k, own)) for q, k, own in zip(q_pos, k_pos, rows, strict=True)]
    return tuple(zip(*each, strict=True))


def with_gradients(function, options=FAST):
    """Output and gradients of a random sum of it, of order 1, with respect to q, k, v, parameters and scale, compiled with
    these options."""

    def loss(*arguments):
        out = function(*arguments)
        weight = np.random.default_rng(2).normal(size=out.shape) / np.sqrt(out.size)
        return (jnp.asarray(weight, out.dtype) * out).sum(), out

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True), compiler_options=options)


def outcome(program, inputs, data, dtype):
    with jax.enable_x64(dtype == "float64"):
        inputs = jax.tree.map(lambda x: jnp.asarray(x, dtype), inputs)
        (_, out), gradients = program(*inputs, *as_precise(data, dtype))
        gradients = dict(zip(("q", "k", "v", "params", "scale"), gradients, strict=True))
        return jax.tree.map(np.asarray, {"out": out} | gradients)


def as_precise(data, dtype):
    """Fractional positions in the type of the rest."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if np.issubdtype(x.dtype, np.floating) else x, data)


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
