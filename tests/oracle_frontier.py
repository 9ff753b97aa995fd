"""Formulas of `oracle.py` for positions with several axes or computed from tokens, for stick-breaking and DAPE's network.

As there, nothing calls the package, and whole tables [T, S] of one head of one example are computed in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np


def parts_of(encoding):
    """Names of the encoding, or of the parts of a composition."""
    return [type(part).__name__ for part in getattr(encoding, "parts", (encoding,))]


def encoding_of(encoding, name):
    """The encoding of this class, or the part of a composition that is."""
    return next(part for part in getattr(encoding, "parts", (encoding,)) if type(part).__name__ == name)


def axial_rope(encoding, head, shared, q, k, context):
    """Heo et al. 2024, equation 12 with any number of axes: block a of the pairs turns with coordinate a."""
    each = q.shape[1] // (2 * encoding.axes)
    radians = jnp.array([encoding.theta ** (-m / each) for m in range(each)])
    blocks = lambda pos: [pos if pos.ndim == 1 else pos[:, a] for a in range(encoding.axes)]
    angle = lambda pos: jnp.concatenate([at[:, None] * radians[None] for at in blocks(pos)], 1)
    turn = lambda x, pos: turned_by(x, angle(context[pos]), encoding.layout)
    return turn(q, "q_pos"), turn(k, "k_pos")


def mixed_rope(encoding, head, shared, q, k, context):
    """Heo et al. 2024, equation 13: the angle is a sum over coordinates."""
    f = head["frequencies"]
    coordinate = lambda pos, a: (pos if pos.ndim == 1 else pos[:, a])[:, None]
    angle = lambda pos: sum(coordinate(pos, a) * f[a][None] for a in range(encoding.axes))
    turn = lambda x, pos: turned_by(x, angle(context[pos]), encoding.layout)
    return turn(q, "q_pos"), turn(k, "k_pos")


def mrope(encoding, head, shared, q, k, context):
    """Wang et al. 2024: one series of frequencies, cut into three sections."""
    c = q.shape[1] // 2
    sections = encoding.sections or (c // 4, (c - c // 4) // 2, c - c // 4 - (c - c // 4) // 2)
    axis = [a for a, size in enumerate(sections) for _ in range(size)]
    column = lambda pos, i: pos if pos.ndim == 1 else pos[:, axis[i]]
    angle = lambda pos: jnp.stack([column(pos, i) * encoding.theta ** (-i / c) for i in range(c)], 1)
    turn = lambda x, pos: turned_by(x, angle(context[pos]), encoding.layout)
    return turn(q, "q_pos"), turn(k, "k_pos")


def turned_by(x, angle, layout):
    """`turned` by angles [T,c] that are known already, all channels in pairs."""
    c = angle.shape[1]
    first, second = (range(c), range(c, 2 * c)) if layout == "half" else (range(0, 2 * c, 2), range(1, 2 * c, 2))
    turn = jax.lax.complex(jnp.cos(angle), jnp.sin(angle))
    return jax.lax.complex(x[:, jnp.array(first)], x[:, jnp.array(second)]) * turn


def stick_breaking(encoding, table, context):
    """Tan et al. 2025: a product of what each nearer key leaves, as a product and not as a sum of logarithms. Without the own
    token: of as many queries as keys key i of query i, otherwise the last key that a query sees."""
    seen = context["allowed"]
    later = jnp.cumsum(seen[:, ::-1], 1)[:, ::-1]
    own = jnp.eye(len(table), dtype=bool) if table.shape[0] == table.shape[1] else seen & (later == 1)
    seen = seen & (~own | encoding.attend_current)
    share = jnp.where(seen, 1 / (1 + jnp.exp(-table)), 0)
    after = jnp.cumprod((1 - share)[:, ::-1], 1)[:, ::-1]
    return share * jnp.concatenate([after[:, 1:], jnp.ones_like(after[:, :1])], 1)


def fope(encoding, head, shared, q, k, context):
    """Hua et al. 2025, as released: series on a quarter of the channels' number of pairs, and 1 and 1 on the other pairs."""
    H = q.shape[1]
    radians = [encoding.theta ** (-2 * d / H) for d in range(H // 2)]
    radians = jnp.array([w for w in radians if w >= 2 * np.pi / encoding.length])[None]
    weights = {name: head[name] for name in ("cos", "sin")}

    def turn(x, pos):
        cos, sin = jnp.cos(pos[:, None] * radians) @ weights["cos"], jnp.sin(pos[:, None] * radians) @ weights["sin"]
        series = jax.lax.complex(cos, sin)
        constant = jnp.full((len(x), H // 2 - series.shape[1]), 1 + 1j, series.dtype)
        return jax.lax.complex(x[:, : H // 2], x[:, H // 2 :]) * jnp.concatenate([series, constant], 1)

    return turn(q, context["q_pos"]), turn(k, context["k_pos"])


def wall(encoding, head, shared, table, q, k, context):
    """Each channel of q . k times what its gates leave, which the positions are minus the logarithm of."""
    n = jnp.maximum(context["q_pos"][:, None] - context["k_pos"][None], 0)
    return context["scale"] * sum(q[:, None, c] * k[None, :, c] * jnp.exp(-n[..., c]) for c in range(q.shape[1]))


def inkling(encoding, head, shared, table, q, k, context):
    """x-transformers: curves read pair by pair, then mixed."""
    n = context["q_pos"][:, None, 0] - context["k_pos"][None, :, 0]
    curves = shared["curves"].T[jnp.clip(jnp.floor(n), 0, encoding.reach - 1).astype(int)]
    return table + jnp.where(
        (n >= 0) & (n < encoding.reach), jnp.einsum("tsc,tc->ts", curves, context["q_pos"][:, 1:]), 0
    )


def scaled_queries(encoding, head, shared, q, k, context):
    """Vasylenko et al. 2026: the position of a query is its factor."""
    return context["q_pos"][:, None] * q, k


def tra(encoding, table, context):
    """Opper et al. 2025: the softmax over keys above the threshold."""
    kept = context["allowed"] & (table > 0)
    between = kept.astype(table.dtype) @ jnp.asarray(np.tril(np.ones((table.shape[1],) * 2)))
    raw = jnp.where(kept, jnp.exp(jnp.where(kept, table - context["q_pos"][:, None] * between, 0)), 0)
    return raw / jnp.maximum(raw.sum(1, keepdims=True), jnp.finfo(table.dtype).tiny)


def entmax(encoding, table, context):
    """Peters et al. 2019: the threshold by bisection, and its slopes by one step of Newton from there."""
    seen, z = context["allowed"], table / 2
    weights = lambda z, tau: jnp.where(seen, jnp.maximum(z - tau, 0), 0)
    top = jnp.where(seen, jax.lax.stop_gradient(z), -jnp.inf).max(1, keepdims=True)
    high = jnp.where(jnp.isfinite(top), top, 0)
    low = high - 1
    for _ in range(60):
        middle = (low + high) / 2
        more = (weights(jax.lax.stop_gradient(z), middle) ** 2).sum(1, keepdims=True) > 1
        low, high = jnp.where(more, middle, low), jnp.where(more, high, middle)
    slope = jnp.maximum(2 * weights(jax.lax.stop_gradient(z), low).sum(1, keepdims=True), 1e-300)
    tau = low + ((weights(z, low) ** 2).sum(1, keepdims=True) - 1) / slope
    return weights(z, jnp.where(jnp.isfinite(top), tau, 0)) ** 2


def through_network(network, read):
    """Zheng et al. 2024: what the network adds to each head of a pair, from all that it reads there, [T,S,c] -> [T,S,N]."""
    x = read @ network["hidden"] + network["hidden_bias"][None, None]
    return jnp.where(x > 0, x, 0.01 * x) @ network["out"] + network["out_bias"][None, None]


WEIGHTS = {"StickBreaking": stick_breaking, "TRA": tra, "ASEntmax": entmax}
"""Weights of one head that no softmax makes, from its logits."""
