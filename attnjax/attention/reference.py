"""Attention of one head of one example, as in the papers: the page to read first, which no implementation calls.

    logits  = score(scale * map_q(q) map_k(k)^T)         the hooks of the encoding, see `positions/base.py`
    weights = exp(logits) / (e^sink + sum exp(logits))   over the visible keys
    out     = weights v

The test matrix compares every implementation with it, and it with an independent oracle.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1, eq. 1.
"""

import jax.numpy as jnp

from attnjax.positions.base import Params, PositionEncoding, Tile
from attnjax.typing import Array, Bool, Float, PyTree


def reference_attention(
    encoding: PositionEncoding,
    p: Params,
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    q_pos: PyTree,
    k_pos: PyTree,
    visible: Bool[Array, "T S"],
    scale: Float[Array, ""],
    sink: Float[Array, ""] | None = None,
) -> Float[Array, "T H"]:
    """Output of one head. `p` are the parameters of that head, constants included; a row that sees no key is 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from attnjax import NoPE
        >>> x, pos = jnp.eye(2), jnp.arange(2)
        >>> causal = jnp.tril(jnp.ones((2, 2), bool))
        >>> reference_attention(NoPE(), {}, x, x, x, pos, pos, causal, jnp.float32(0.0)).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    q, k = encoding.map_q(p, q, q_pos), encoding.map_k(p, k, k_pos)
    tile = Tile(scale * (q @ k.T), q, k, q_pos, k_pos, visible, scale)
    if encoding.whole_table:
        leads = lambda x: x[None]
        one_head = Tile(*map(leads, tile[:5]), visible, scale)
        p = {name: leads(x) if name in encoding.per_head + encoding.per_kv_head else x for name, x in p.items()}
        logits = encoding.score(p, one_head)[0]
    else:
        logits = encoding.score(p, tile)
    if encoding.log_weights:
        return jnp.where(visible, jnp.exp(jnp.where(visible, logits, 0)), 0) @ v
    logits = jnp.where(visible, logits, -jnp.inf)
    top = jnp.maximum(
        logits.max(1, keepdims=True, initial=jnp.finfo(logits.dtype).min), -jnp.inf if sink is None else sink
    )
    weights = jnp.exp(logits - top)
    total = weights.sum(1, keepdims=True) + (0 if sink is None else jnp.exp(sink - top))
    return weights / jnp.where(total == 0, 1, total) @ v
