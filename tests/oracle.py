"""What attention with each encoding must give, written once more from the papers, to be run in float64.

Nothing here calls the package: hyper-parameters are read from the encoding's fields and learned numbers from the
dictionary that `init` returns. Each formula works on whole [T, S] tables of one head of one example. Rotations are
products of complex numbers, buckets are logarithms, relative embeddings are gathered pair by pair, counted positions are
sums over a triangle: other ways than those of the package wherever there is another way.

The result is plain `jax.numpy`, so `jax.grad` of it gives the gradients that every implementation must reproduce.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from tests import oracle_frontier as frontier, oracle_rotary as rotary


def oracle(encoding, params, q, k, v, q_pos, k_pos, allowed, scale, length=None, per_head=False):
    """Output [B,T,N,H] for q[B,T,N,H], k, v[B,S,K,H], positions [B,T] and [B,S], allowed[B,T,S]; `length` is the number of
    positions of the sequence, S unless given. A row without allowed keys is 0. `per_head`: positions have an axis of query
    or key heads behind B; of a composition, positions and `per_head` may be tuples."""
    N, group = q.shape[2], q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
    to_heads = lambda pos, rows: jnp.repeat(pos, N // pos.shape[1], axis=1) if rows else pos
    known = lambda pos: over_parts(lambda one, rows: to_heads(one.astype(jnp.float64), rows), pos, per_head)
    q_pos, k_pos = known(q_pos), known(k_pos)
    length = k.shape[1] if length is None else length
    head, shared = sides_of(encoding, params, group)

    def example(q, k, v, q_pos, k_pos, allowed):
        context = {"q_pos": q_pos, "k_pos": k_pos, "allowed": allowed, "length": length, "scale": scale, "heads": N}
        if frontier.parts_of(encoding)[-1] == "DAPE":
            return dape(encoding, head, shared, q, k, v, context | {"per_head": per_head})
        one = lambda h, head, q, k, v, q_pos, k_pos: attention(
            encoding, head, shared, q, k, v, context | {"h": h, "q_pos": q_pos, "k_pos": k_pos}
        )
        rows = over_parts(lambda _, rows: 0 if rows else None, q_pos, per_head)
        heads = jax.vmap(one, in_axes=(0, 0, 1, 1, 1, rows, rows), out_axes=1)
        return heads(jnp.arange(N), head, q, k, v, q_pos, k_pos)

    return jax.vmap(example)(q, k, v, q_pos, k_pos, allowed)


def sides_of(encoding, params, group):
    """Of each part the parameters that lead with the query heads, key heads repeated for their groups, and those that all heads
    share."""
    parts = getattr(encoding, "parts", (encoding,))
    params = params if isinstance(params, tuple) else (params or {},)
    head, shared = [], []
    for part, p in zip(parts, params, strict=True):
        of_keys = {name: jnp.repeat(x, group, axis=0) for name, x in p.items() if name in part.per_kv_head}
        head.append({name: x for name, x in p.items() if name in part.per_head} | of_keys)
        shared.append({name: x for name, x in p.items() if name not in head[-1]})
    return tuple(head), tuple(shared)


def over_parts(f, pos, per_head):
    """f(positions, per_head) of the one encoding, or of each part of a composition."""
    if not isinstance(pos, tuple):
        return f(pos, per_head)
    return tuple(f(*part) for part in zip(pos, per_head, strict=True))


def attention(encoding, head, shared, q, k, v, context):
    """One head of one example: softmax over the allowed keys."""
    logits = logits_of(encoding, head, shared, q, k, context)
    return weighted(encoding, logits, v, context)


def weighted(encoding, logits, v, context):
    """What the weights of one head make of v."""
    allowed = context["allowed"]
    last = frontier.parts_of(encoding)[-1]
    if last in frontier.WEIGHTS:
        return frontier.WEIGHTS[last](frontier.encoding_of(encoding, last), logits, last_of(context)) @ v
    top = jnp.where(allowed, logits, -jnp.inf).max(1, keepdims=True)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    weights = jnp.where(allowed, jnp.exp(jnp.where(allowed, logits - top, 0)), 0)
    return weights @ v / jnp.maximum(weights.sum(1, keepdims=True), jnp.finfo(v.dtype).tiny)


def last_of(context):
    """The context of the last part."""
    if not isinstance(context["q_pos"], tuple):
        return context
    return context | {name: context[name][-1] for name in ("q_pos", "k_pos")}


def dape(encoding, head, shared, q, k, v, context):
    """Zheng et al. 2024: the tables of all heads [N,T,S] and those of the base, through one network."""
    parts, N = getattr(encoding, "parts", (encoding,)), context["heads"]
    own = frontier.encoding_of(encoding, "DAPE")
    base = lambda side: {name.removeprefix("base_"): x for name, x in side.items() if name.startswith("base_")}
    of_base, of_all, tables = base(head[-1]), base(shared[-1]), []

    def here(h, i):
        """The context of head h and part i."""
        at = {}
        for name in ("q_pos", "k_pos"):
            pos, rows = context[name], context["per_head"]
            pos, rows = (pos[i], rows[i]) if isinstance(pos, tuple) else (pos, rows)
            at[name] = pos[h] if rows else pos
        return context | at | {"h": h}

    for h in range(N):
        x, y = q[:, h], k[:, h]
        for i, part in enumerate(parts[:-1]):
            slice_of = jax.tree.map(lambda leaf, h=h: leaf[h], head[i])
            x, y = MAPS.get(type(part).__name__, unchanged)(part, slice_of, shared[i], x, y, here(h, i))
        tables.append(context["scale"] * jnp.real(x @ jnp.conj(y).T))
    biases = []
    for h in range(N if own.base is not None else 0):
        slice_of, zero = jax.tree.map(lambda leaf, h=h: leaf[h], of_base), jnp.zeros_like(tables[0])
        score = SCORES[type(own.base).__name__]
        biases.append(score(own.base, slice_of, of_all, zero, q[:, h], k[:, h], here(h, -1)))
    added = frontier.through_network(shared[-1], jnp.stack(tables + biases, -1))
    logits = [table + (biases[h] if biases else 0) + added[..., h] for h, table in enumerate(tables)]
    return jnp.stack([weighted(encoding, logits[h], v[:, h], context) for h in range(N)], 1)


def logits_of(encoding, head, shared, q, k, context):
    """The table [T, S] of one head before masking: first what changes queries and keys, then what changes scores."""
    parts = getattr(encoding, "parts", (encoding,))
    own = [context] * len(parts)
    if isinstance(context["q_pos"], tuple):
        own = [context | {"q_pos": i, "k_pos": j} for i, j in zip(context["q_pos"], context["k_pos"], strict=True)]
    parts = [*zip(parts, head, shared, own, strict=True)]
    for part, h, s, of_part in parts:
        q, k = MAPS.get(type(part).__name__, unchanged)(part, h, s, q, k, of_part)
    table = context["scale"] * jnp.real(q @ jnp.conj(k).T)
    for part, h, s, of_part in parts:
        table = SCORES.get(type(part).__name__, same)(part, h, s, table, q, k, of_part)
    return table


def unchanged(encoding, head, shared, q, k, context):
    return q, k


def same(encoding, head, shared, table, q, k, context):
    return table


def turned(x, pos, radians, layout):
    """Pairs of channels as complex numbers times e^(i pos w), and the channels that have no pair as they are."""
    c = len(radians)
    first, second = (range(c), range(c, 2 * c)) if layout == "half" else (range(0, 2 * c, 2), range(1, 2 * c, 2))
    z = jax.lax.complex(x[:, jnp.array(first)], x[:, jnp.array(second)])
    rest = jax.lax.complex(x[:, 2 * c :], jnp.zeros_like(x[:, 2 * c :]))
    return jnp.concatenate([z * unit(pos[:, None] * radians[None]), rest], 1)


def unit(angle):
    """e^(i angle)."""
    return jax.lax.complex(jnp.cos(angle), jnp.sin(angle))


def stretched(z, by):
    return jax.lax.complex(jnp.real(z) * by, jnp.imag(z) * by)


def rope(encoding, head, shared, q, k, context):
    """Su et al. 2021, equation 34."""
    radians, gains = turns_of(encoding, q.shape[1], context)
    turn = lambda x, pos: stretched(turned(x, context[pos], radians, encoding.layout), gains[None])
    return turn(q, "q_pos"), turn(k, "k_pos")


def turns_of(encoding, H, context):
    """Radians of every pair, and factors of pairs and of the channels behind them; a pair that p-RoPE drops does not turn."""
    width = 2 * int(encoding.fraction * H / 2)
    pairs = range(width // 2)
    scaling, theta = encoding.scaling, encoding.theta
    kind = type(scaling).__name__
    radians, gain = [theta ** (-2 * i / width) for i in pairs], 1.0
    if kind != "NoneType":
        radians, gain = rotary.STRETCHES[kind](scaling, radians, theta, width, context["length"])
    radians = jnp.array([w if i < int(encoding.keep * len(pairs)) else 0.0 for i, w in enumerate(radians)])
    return radians, jnp.where(jnp.arange(H - width // 2) < width // 2, gain, 1.0)


def xpos(encoding, head, shared, q, k, context):
    """Sun et al. 2022, algorithm 1: zeta_i = (i / (d/2) + gamma) / (1 + gamma) with gamma = 0.4."""
    d = q.shape[1]
    radians = jnp.array([encoding.theta ** (-2 * i / d) for i in range(d // 2)])
    zeta = jnp.array([(i / (d / 2) + 0.4) / 1.4 for i in range(d // 2)])[None]
    grow = lambda pos: zeta ** (pos[:, None] / encoding.scale_base)
    turn = lambda x, pos: turned(x, pos, radians, encoding.layout)
    q_pos, k_pos = context["q_pos"], context["k_pos"]
    return stretched(turn(q, q_pos), grow(q_pos)), stretched(turn(k, k_pos), 1 / grow(k_pos))


def pope(encoding, head, shared, q, k, context):
    """Length softplus(x), phase pos * theta^(-k/d), less delta for the query."""
    d = q.shape[1]
    radians = jnp.array([encoding.theta ** (-i / d) for i in range(d)])[None]
    polar = lambda x, angle: stretched(unit(angle), jnp.log(1 + jnp.exp(x)))
    return (
        polar(q, context["q_pos"][:, None] * radians - head["delta"][None]),
        polar(k, context["k_pos"][:, None] * radians),
    )


def distances(context):
    return context["q_pos"][:, None] - context["k_pos"][None, :]


def alibi(encoding, head, shared, table, q, k, context):
    """Press et al. 2022: the ratio 2^(-8/N), or the two interleaved series of powers of two around N."""

    def series(n):
        return [2 ** (-8 * (h + 1) / n) for h in range(n)]

    N = context["heads"]
    below = 2 ** int(math.log2(N))
    slopes = encoding.slopes or (series(N) if below == N else series(below) + series(2 * below)[::2][: N - below])
    n = distances(context)
    return table - jnp.array(slopes)[context["h"]] * (jnp.abs(n) if encoding.symmetric else n)


def nape(encoding, head, shared, table, q, k, context):
    """Vasylenko et al. 2026: slopes of the first heads."""
    N, h = context["heads"], jnp.asarray(context["h"]).astype(jnp.float64)
    biased = N // 2 if encoding.biased is None else encoding.biased
    slope = 1 / (h + 1) if encoding.kind == "linear" else 0.5**h
    return table - jnp.where(h < biased, slope, 0.0) * distances(context)


def bam(encoding, head, shared, table, q, k, context):
    """Bianchessi et al. 2026: the exponent of a generalized Gaussian, at the distance of the key from the query."""
    mu = head["mu"] if encoding.location else jnp.zeros(())
    away = jnp.abs(-distances(context) - (jnp.exp(mu) - jnp.exp(-mu))) + 1e-5
    return table - away ** head["beta"] * jnp.exp(head["alpha"])


def t5(encoding, head, shared, table, q, k, context):
    """Raffel et al. 2020. The margin of 1e-9 keeps exact powers from falling below their whole number."""
    each = encoding.buckets // 2 if encoding.bidirectional else encoding.buckets
    exact = each // 2
    n = distances(context)
    m = jnp.abs(n) if encoding.bidirectional else jnp.maximum(n, 0)
    share = jnp.log(jnp.maximum(m, exact) / exact) / math.log(encoding.max_distance / exact)
    far = jnp.minimum(exact + jnp.floor(share * (each - exact) + 1e-9), each - 1)
    bucket = jnp.where(m < exact, m, far) + jnp.where(encoding.bidirectional & (n < 0), each, 0.0)
    return table + head["table"][bucket.astype(int)]


def kerple(encoding, head, shared, table, q, k, context):
    """Chi et al. 2022, definition 2."""
    n = jnp.abs(distances(context))
    r1 = jnp.log(1 + jnp.exp(head["r1"]))
    if encoding.kind == "log":
        return table - r1 * jnp.log(1 + jnp.log(1 + jnp.exp(head["r2"])) * n)
    return table - jnp.where(n > 0, r1 * jnp.where(n > 0, n, 1.0) ** (2 / (1 + jnp.exp(-head["r2"]))), 0)


def fire(encoding, head, shared, table, q, k, context):
    """Li et al. 2024, equations 2 and 4."""
    psi = lambda y: jnp.log(jnp.abs(shared["c"]) * y + 1)
    floor = jnp.abs(shared["threshold"] * encoding.threshold)
    x = psi(jnp.abs(distances(context))) / (psi(jnp.maximum(context["q_pos"], floor)) + 1e-6)[:, None]
    units = zip(range(encoding.hidden), shared["hidden"], shared["hidden_bias"])
    return table + head["out_bias"] + sum(head["out"][u] * jnp.maximum(w * x + b, 0) for u, w, b in units)


def transformer_xl(encoding, head, shared, table, q, k, context):
    """Dai et al. 2019, section 3.3: terms b, c and d beside the content, with R gathered for each pair."""
    assert not jnp.iscomplexobj(q)
    D = head["w_r"].shape[0]
    angle = (
        distances(context)[:, :, None] * jnp.array([encoding.theta ** (-2 * c / D) for c in range(D // 2)])[None, None]
    )
    projected = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1) @ head["w_r"]
    b, c, d = jnp.einsum("th,tsh->ts", q, projected), (k @ head["u"])[None, :], projected @ head["v"]
    return table + context["scale"] * (b + c + d)


def cope(encoding, head, shared, table, q, k, context):
    """Golovneva et al. 2024: positions are sums of gates to the right; interpolation as a sum of hat functions."""
    assert not jnp.iscomplexobj(q)
    S = table.shape[1]
    gates = jnp.where(context["allowed"], 1 / (1 + jnp.exp(-table)), 0)
    position = gates @ jnp.asarray(np.tril(np.ones((S, S))))
    position = jnp.minimum(position, encoding.max_position - 1)
    for p in range(encoding.max_position):
        hat = jnp.maximum(0, 1 - jnp.abs(position - p))
        table = table + hat * (q @ shared["table"][p])[:, None]
    return table


def sandwich(encoding, head, shared, table, q, k, context):
    """Chi et al. 2023: inner products of sinusoids, divided by 8h/N."""
    n, half = distances(context), encoding.width // 2
    total = sum(jnp.cos(n * encoding.theta ** (-c / half)) for c in range(half))
    return table + total / (8 * (context["h"] + 1) / context["heads"])


def less_distance(encoding, head, shared, table, q, k, context):
    """FoX and Cable, whose positions are sums."""
    return table - distances(context)


def rope_at(encoding, head, shared, q, k, context):
    """RePo: RoPE on the whole head at any positions."""
    radians = jnp.array([encoding.theta ** (-2 * i / q.shape[1]) for i in range(q.shape[1] // 2)])
    return tuple(turned(x, context[pos], radians, encoding.layout) for x, pos in ((q, "q_pos"), (k, "k_pos")))


def selective_rope(encoding, head, shared, q, k, context):
    """Movahedi et al. 2025: a pair of channels turned by its own sum, times its temperature."""
    c = q.shape[1] // 2
    radians = jnp.array([encoding.temperature * encoding.theta ** (-i / c) for i in range(c)])[None]
    order = (range(c), range(c, 2 * c)) if encoding.layout == "half" else (range(0, 2 * c, 2), range(1, 2 * c, 2))
    turn = lambda x, pos: jax.lax.complex(*(x[:, jnp.array(one)] for one in order)) * unit(pos[:, :c] * radians)
    return turn(q, context["q_pos"]), turn(k, context["k_pos"])


def grape(encoding, head, shared, q, k, context):
    """Zhang et al. 2026: the planes of RoPE, at learned frequencies."""
    angle = lambda pos: pos[:, None] * jnp.exp((head | shared)["log_frequencies"] / encoding.rate)[None]
    return tuple(frontier.turned_by(x, angle(context[pos]), encoding.layout) for x, pos in ((q, "q_pos"), (k, "k_pos")))


def ssmax(encoding, head, shared, q, k, context):
    """Nakanishi 2025, with n = pos + 1 keys."""
    n = jnp.maximum(context["q_pos"], 0) + 1
    return (head["s"] * jnp.log(n) + (head["b"] if encoding.biased else 0))[:, None] * q, k


def llama4_temperature(encoding, head, shared, q, k, context):
    steps = jnp.maximum((context["q_pos"] + 1) // encoding.floor_scale, 0)
    return (1 + encoding.attn_scale * jnp.log(steps + 1))[:, None] * q, k


def log_n(encoding, head, shared, q, k, context):
    """Su 2021: log to the base of the trained length."""
    return jnp.maximum(jnp.log(jnp.maximum(context["q_pos"], 0) + 1) / math.log(encoding.length), 1)[:, None] * q, k


def at_distances(distance):
    """RoPE at a table of distances, pair by pair of tokens: no query and no key is turned for itself."""

    def score(encoding, head, shared, table, q, k, context):
        i, j = context["q_pos"][:, None], context["k_pos"][None, :]
        n = distance(encoding, i + 0 * j, j + 0 * i)
        radians, gains = turns_of(encoding, q.shape[1], context)
        q, k = (turned(x, jnp.zeros(len(x)), radians, encoding.layout) for x in (q, k))
        radians = jnp.concatenate([radians, jnp.zeros(len(gains) - len(radians))])
        pairs = (q[:, c, None] * jnp.conj(k)[None, :, c] * unit(n * radians[c]) for c in range(len(gains)))
        return context["scale"] * sum(jnp.real(pair) * gain**2 for pair, gain in zip(pairs, gains))

    return score


MAPS = {
    "RoPE": rope,
    "LogN": log_n,
    "XPos": xpos,
    "PoPE": pope,
    "RePo": rope_at,
    "SelectiveRoPE": selective_rope,
    "SSMax": ssmax,
    "Llama4Temperature": llama4_temperature,
    "AxialRoPE": frontier.axial_rope,
    "MixedRoPE": frontier.mixed_rope,
    "MRoPE": frontier.mrope,
    "GRAPE": grape,
    "FoPE": frontier.fope,
    "ASEntmax": frontier.scaled_queries,
}
SCORES = {
    "ALiBi": alibi,
    "T5Bias": t5,
    "Kerple": kerple,
    "FIRE": fire,
    "TransformerXL": transformer_xl,
    "CoPE": cope,
    "Sandwich": sandwich,
    "FoX": less_distance,
    "Cable": less_distance,
    "NAPE": nape,
    "BAM": bam,
    "WallAttention": frontier.wall,
    "Inkling": frontier.inkling,
    "SelfExtend": at_distances(rotary.grouped),
    "ReRoPE": at_distances(rotary.rectified),
    "LeakyReRoPE": at_distances(rotary.leaky),
    "DualChunk": at_distances(rotary.between_chunks),
    "LMInfinite": at_distances(rotary.lambda_shaped),
    "StreamingLLM": at_distances(rotary.in_the_cache),
}
