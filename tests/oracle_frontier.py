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


def through_network(network, read):
    """Zheng et al. 2024: what the network adds to each head of a pair, from all that it reads there, [T,S,c] -> [T,S,N]."""
    x = read @ network["hidden"] + network["hidden_bias"][None, None]
    return jnp.where(x > 0, x, 0.01 * x) @ network["out"] + network["out_bias"][None, None]


def running(x):
    """Sums over the rows up to each, as a product with a triangle of ones."""
    return jnp.asarray(np.tril(np.ones((len(x), len(x))))) @ x


def fox_positions(encoding, head, kv_head, shared, x, kv_heads):
    """Lin et al. 2025: what the gates 1 / (1 + e^-z) leave of a logit's exponential, as minus its logarithm."""
    return running(jnp.log(1 + jnp.exp(-(x @ head["w"] + head["b"]))))


def cable_positions(encoding, head, kv_head, shared, x, kv_heads):
    """Veisi et al. 2025."""
    return running(jnp.log(1 + jnp.exp(x @ head["w"] + head["b"])))


def repo_positions(encoding, head, kv_head, shared, x, kv_heads):
    """Li et al. 2025."""
    gate = x @ shared["gate"]
    return (gate / (1 + jnp.exp(-gate)) * (x @ shared["content"])) @ kv_head["out"]


def selective_rope_positions(encoding, head, kv_head, shared, x, kv_heads):
    """Movahedi et al. 2025: angles per pair (before the temperature), then phi of the last three tokens, oldest first."""
    (T, D), w = x.shape, x.shape[1] // kv_heads
    chunks = [x[:, i : i + w] / jnp.sqrt((x[:, i : i + w] ** 2).sum(1, keepdims=True) + 1e-6) for i in range(0, D, w)]
    phi = jnp.concatenate(chunks, 1) @ shared["down"] @ kv_head["up"]
    ago = lambda n: jnp.asarray(np.eye(T, k=-n)) @ phi
    angle = running(sum(kv_head["convolution"][3 - n][None] * ago(n) for n in range(4)))
    return jnp.concatenate([angle, ago(2), ago(1), phi], 1)


POSITIONS = {
    "FoX": fox_positions,
    "Cable": cable_positions,
    "RePo": repo_positions,
    "SelectiveRoPE": selective_rope_positions,
}
"""Positions of one head of one example, from its tokens x[T,D]."""
