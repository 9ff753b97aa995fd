"""The cases of the agreement of all encodings: layouts of heads, masks, positions, inputs, and the programs that are compared.

Compiling is what costs time, so one program serves all masks: its window of `BAND` indices to each side is static, but
indices are data. With q_index = stretch * i + shift and k_index = stretch * j that window is a causal mask, a full one or a
narrow band. `stacked` has the data of all cases, over which a program maps.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

import attnjax as aj
from attnjax.positions.compose import parts_of
from tests.oracle import oracle

B, N, H = 2, 8, 8
LAYOUTS = {"mha": (8, 13, 13), "gqa": (2, 13, 21), "mqa": (1, 21, 13), "ring": (2, 48, 48)}
"""Key heads, T and S: odd lengths, equal and unequal, and a length to spread over devices."""
FARTHEST = 200
"""Random positions are below: far enough for the last bucket of T5."""

ENCODINGS = {
    "nope": aj.NoPE(),
    "rope": aj.RoPE(),
    "rope-interleaved": aj.RoPE(layout="interleaved"),
    "rope-fraction": aj.RoPE(fraction=0.5, theta=100.0),
    "rope-keep": aj.RoPE(keep=0.75),
    "rope-pi": aj.RoPE(scaling=aj.PositionInterpolation(4.0)),
    "rope-ntk": aj.RoPE(scaling=aj.NTKAware(4.0)),
    "rope-dynamic": aj.RoPE(scaling=aj.DynamicNTK(2.0, 16)),
    "rope-yarn": aj.RoPE(scaling=aj.YaRN(4.0, 64)),
    "rope-llama3": aj.RoPE(scaling=aj.Llama3(8.0, 64)),
    "rope-longrope": aj.RoPE(scaling=aj.LongRoPE((1.0, 1.5, 2.0, 3.0), (1.0, 3.0, 6.0, 9.0), 20, factor=4.0)),
    "rope-resonance": aj.RoPE(scaling=aj.Resonance(aj.YaRN(4.0, 64))),
    "xpos": aj.XPos(),
    "alibi": aj.ALiBi(),
    "alibi-symmetric": aj.ALiBi(symmetric=True),
    "t5": aj.T5Bias(),
    "t5-bidirectional": aj.T5Bias(bidirectional=True),
    "kerple": aj.Kerple(),
    "kerple-power": aj.Kerple("power"),
    "fire": aj.FIRE(hidden=6, threshold=30.0),
    "transformer_xl": aj.TransformerXL(),
    "cope": aj.CoPE(max_position=8),
    "cope-short": aj.CoPE(max_position=3),
    "sandwich": aj.Sandwich(),
    "pope": aj.PoPE(),
    "rope+alibi": aj.compose(aj.RoPE(), aj.ALiBi()),
    "rope+t5": aj.compose(aj.RoPE(layout="interleaved", fraction=0.5), aj.T5Bias()),
    "alibi+cope": aj.compose(aj.ALiBi(symmetric=True), aj.CoPE(max_position=4)),
    "ssmax": aj.SSMax(biased=True),
    "llama4_temperature": aj.Llama4Temperature(3, 0.4),
    "stick": aj.StickBreaking(),
    "rope+stick": aj.compose(aj.RoPE(), aj.StickBreaking(attend_current=False)),
    "dape": aj.DAPE(aj.ALiBi(symmetric=True), width=5),
    "rope+dape": aj.compose(aj.RoPE(), aj.DAPE(aj.T5Bias(), width=3)),
    "axial": aj.AxialRoPE(),
    "mixed": aj.MixedRoPE(),
    "mrope": aj.MRoPE(theta=500.0, sections=(2, 0, 2), layout="interleaved"),
    "fox": aj.FoX(),
    "cable": aj.Cable(),
    "repo": aj.RePo(theta=100.0),
    "selective_rope": aj.SelectiveRoPE(rank=6),
    "rope+fox": aj.compose(aj.RoPE(), aj.FoX()),
    "self_extend": aj.SelfExtend(group=3, window=5),
    "self_extend-dynamic": aj.SelfExtend(layout="interleaved", scaling=aj.DynamicNTK(2.0, 16), group=2, window=7),
    "rerope": aj.ReRoPE(layout="interleaved", fraction=0.5, window=6),
    "leaky_rerope": aj.LeakyReRoPE(scaling=aj.YaRN(4.0, 64), window=4, factor=2.5),
    "dual_chunk": aj.DualChunk(chunk=8, local=3),
    "lm_infinite": aj.LMInfinite(keep=0.75, first=4, window=6, limit=9),
    "streaming_llm": aj.StreamingLLM(first=4, window=6),
    "log_n": aj.LogN(length=6),
    "log_n+rerope": aj.compose(aj.LogN(length=6), aj.ReRoPE(window=5)),
    "nape": aj.NAPE(biased=3),
    "bam": aj.BAM(location=True),
    "grape": aj.GRAPE(theta=100.0, shared=False, layout="interleaved"),
    "fope": aj.FoPE(length=64, theta=100.0),
    "wall": aj.WallAttention(),
    "inkling": aj.Inkling(curves=3, reach=6),
    "tra": aj.TRA(),
    "asentmax": aj.ASEntmax(),
    "nape+asentmax": aj.compose(aj.NAPE(kind="exp"), aj.ASEntmax(unscaled=4)),
}
"""All that act inside attention, but PaTH, which has a reference of its own."""
CAUSAL_ONLY = {name for name, encoding in ENCODINGS.items() if any(part.causal_only for part in parts_of(encoding))}
PER_HEAD = {"fox": True, "cable": True, "repo": True, "selective_rope": True, "rope+fox": (False, True)}
PER_HEAD |= dict.fromkeys(("wall", "inkling", "tra", "asentmax"), True) | {"nape+asentmax": (False, True)}
"""Encodings whose positions are computed from content: any numbers per head are positions here."""
AXES = {"axial": 2, "mixed": 2, "mrope": 3, "selective_rope": 2 * H, "wall": H, "inkling": 4}
"""Coordinates or channels of a position."""

EVERY_DAY = {"nope", "rope", "alibi", "t5", "fire", "cope", "fox", "selective_rope"}
"""By day in float64, with all gradients."""
STRETCHED = {name for name in ENCODINGS if name.startswith("rope-")}
"""They are RoPE at other frequencies, which alone are compared by day."""
VARIANTS = {
    *("kerple-power", "log_n", "mixed", "rope+dape", "xpos", "sandwich", "llama4_temperature", "axial", "mrope"),
    *("rerope", "leaky_rerope", "dual_chunk", "lm_infinite", "streaming_llm", "nape"),
}
"""They learn nothing, or share most of the code of another encoding: by day their output alone is compared, in float32."""
COMBINED = {
    *("rope+alibi", "rope+stick", "rope+fox", "rope+t5", "alibi+cope", "log_n+rerope", "alibi-symmetric"),
    *("t5-bidirectional", "cope-short", "cable", "self_extend-dynamic", "nape+asentmax"),
}
"""Their parts and options are those of other encodings, which stand for them by day."""

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
ROUNDING = {"kerple-power": 1750 * 2**-24, "grape": 4 * FARTHEST * 2**-24}
"""Of gradients. Kerple: the largest logit is 1.12 * 220^1.364, which float32 rounds by so much, and each weight with it. The
oracle in float32 is as far from the oracle in float64 as the package is: 2.1e-5 in the gradient of k, 6.8e-5 in that of r2.
GRAPE: frequencies and angles, up to `FARTHEST`, of queries and keys are rounded."""
GRADIENTS = ("q", "k", "v", "params", "scale", "sink")
TILES = aj.Tiling(5, 7)
"""Several tiles in both directions, and padding of both."""


def learned(encoding, sizes, random):
    """Parameters of the shapes that `init` makes, no number of them trivial. Nothing is compiled for them."""
    shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes))
    return jax.tree.map(lambda leaf: (0.1 + 0.3 * random.normal(size=leaf.shape)).astype(np.float32), shapes)


def draw(encoding, layout):
    """q, k, v, parameters and scale as float32 NumPy."""
    kv_heads, T, S = LAYOUTS[layout]
    random = np.random.default_rng(0)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    arrays = normal(B, T, N, H), normal(B, S, kv_heads, H), normal(B, S, kv_heads, H)
    return *arrays, learned(encoding, aj.Sizes(N * H, N, kv_heads, H), random), np.float32(0.4)


def positions_of(name, kind, layout, seed=1):
    """q_pos and k_pos; the same where queries and keys are of one sequence, unless they are disordered."""
    (K, T, S), random, ordered = LAYOUTS[layout], np.random.default_rng(seed), kind != "disordered"
    if kind == "arange":
        return tuple(np.broadcast_to(np.arange(n, dtype=np.int32), (B, n)) for n in (T, S))
    sort = np.sort if ordered else lambda x, axis: x
    distinct = lambda n: np.stack([random.choice(FARTHEST, n, replace=False) for _ in range(B)])
    rows = lambda n: sort(distinct(n) if ordered else random.integers(-20, FARTHEST, (B, n)), axis=1).astype(np.int32)
    k_pos = rows(S)
    q_pos = k_pos if T == S and ordered else rows(T)
    if name in PER_HEAD:
        heads = N if parts_of(ENCODINGS[name])[-1].per_head else K
        last = (AXES[name],) if name in AXES else ()
        floats = lambda n: sort(random.uniform(0, 9, (B, heads, n, *last)), axis=2).astype(np.float32)
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
    """The mask of the program, [B, T, S]."""
    near = abs(k_index[None] - q_index[:, None]) <= BAND
    return near[None] & (q_segments[:, :, None] == k_segments[:, None]) & k_valid[:, None]


def disordered(name, layout, seed):
    """The data of a case without order: any positions, indices, documents and padding, different in both examples."""
    (_, T, S), random = LAYOUTS[layout], np.random.default_rng([seed, 1])
    index = lambda n: random.integers(-BAND, BAND, n).astype(np.int32)
    ids = lambda n: random.integers(0, random.integers(1, 4), (B, n)).astype(np.int32)
    rules = index(T), index(S), ids(T), ids(S), random.random((B, S)) < random.uniform(0.3, 1)
    return *positions_of(name, "disordered", layout, seed), *rules


def cases_of(name, layout, disorder=0):
    """(mask, rule, positions) and the arrays that go with them, and so many cases without order."""
    _, T, S = LAYOUTS[layout]
    reaches = [reach for reach in REACHES if name not in CAUSAL_ONLY or "causal" in reach]
    kinds = ("random",) if name in PER_HEAD or name in AXES else POSITIONS
    for reach, rule, kind in itertools.product(reaches, RULES, kinds):
        yield (reach, rule, kind), (*positions_of(name, kind, layout), *index_of(reach, T, S), *rules_of(rule, T, S))
    for seed in range(disorder):
        yield ("disordered", seed), disordered(name, layout, seed)


def stacked(trees):
    """Arrays of several cases with a first axis of cases."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def attention(name, implementation, axis_name=None):
    """The output of `attend`, as a function of what is drawn and of the data of a case."""
    causal = name in CAUSAL_ONLY

    def run(q, k, v, params, scale, q_pos, k_pos, q_index, k_index, q_segments, k_segments, k_valid):
        # What is declared causal may look no index ahead, and looks back twice as far from an index shifted by as much.
        window, q_index = (2 * BAND, q_index + BAND) if causal else (BAND, q_index)
        mask = aj.Mask(causal, window, q_segments, k_segments, k_valid, q_index, k_index)
        options = {"encoding": ENCODINGS[name], "params": params, "q_pos": q_pos, "k_pos": k_pos, "scale": scale}
        options |= {"implementation": implementation, "axis_name": axis_name}
        devices = jax.lax.axis_size(axis_name) if axis_name else 1
        return aj.attend(q, k, v, mask=mask, length=k.shape[1] * devices, **options)

    return run


def truth(name, length=None):
    """The output of the oracle, as a function of what is drawn, positions and the whole mask."""

    def run(q, k, v, params, scale, q_pos, k_pos, allowed):
        rows = PER_HEAD.get(name, False)
        return oracle(ENCODINGS[name], params, q, k, v, q_pos, k_pos, allowed, scale, length, per_head=rows)

    return run


def differentiated(function):
    """Outputs, and the gradients of a random sum of what is finite in them, of order 1, by all arguments."""

    def loss(*arguments):
        out, random = function(*arguments), np.random.default_rng(2)
        weight = lambda x: jnp.asarray(random.normal(size=x.shape) / np.sqrt(x.size), x.dtype)
        finite = lambda x: jnp.where(jnp.isfinite(x), x, jnp.zeros((), x.dtype))
        return sum((weight(x) * finite(x)).sum() for x in jax.tree.leaves(out)), out

    def run(*arguments):
        gradients, out = jax.grad(loss, tuple(range(len(arguments))), has_aux=True)(*arguments)
        return out, gradients

    return run


def with_gradients(function, inputs=5):
    """Output and gradients of a function of q, k, v, parameters, scale and a sink, by the first of these."""

    def run(*given):
        out, gradients = differentiated(lambda *x: function(*x, *given[inputs:]))(*given[:inputs])
        return {"out": out} | dict(zip(GRADIENTS, gradients, strict=False))

    return run


def over_cases(function):
    """The results for all cases, which are stacked."""
    return lambda *given: jax.lax.map(lambda case: function(*given[:-1], *case), given[-1])


def compiled(function, *arguments):
    """The result of one compiled program, as NumPy."""
    return jax.tree.map(np.asarray, jax.jit(function)(*arguments))


def outcome(function, inputs, data, dtype):
    """The result of function(*inputs, data) in one compiled program, in this precision, as NumPy."""
    with jax.enable_x64(dtype == "float64"):
        precise = lambda x: jnp.asarray(x, dtype) if np.issubdtype(x.dtype, np.floating) else x
        return compiled(function, *jax.tree.map(precise, inputs), jax.tree.map(precise, data))


class Witness(aj.PositionEncoding):
    """Changes no score, and tells `seen` the first positions of each tile on which it is called. None is equal to another."""

    __eq__, __hash__ = object.__eq__, object.__hash__

    def score(self, p, tile):
        jax.debug.callback(lambda i, j: self.seen.append((int(i), int(j))), tile.q_pos[0], tile.k_pos[0])
        return tile.logits


def witness():
    one = Witness()
    object.__setattr__(one, "seen", [])
    return one


def errors(got, expected):
    """(error, path) of each array, relative to its largest entry. Gradients that sum over the batch (parameters, scale) may
    cancel; their error is relative to at least 1, the order of the loss."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        smallest = 1.0 if path[0].key in ("params", "scale", "sink") else np.finfo(float).tiny
        yield np.abs(a.astype(np.float64) - b).max() / max(smallest, np.abs(b).max()), jax.tree_util.keystr(path)


def assert_near(got, expected, tolerance, case):
    for error, where in errors(got, expected):
        assert error <= tolerance, f"{case}: {where} is wrong by {error:.2g} of its largest entry"
