"""The whole [T, S] table of every head at once, differentiated by JAX. `reference.py` is the page to read first.

    weights = softmax(score(scale * q @ k.T))      over the visible keys, 0 elsewhere
    out     = weights @ v
    lse     = log sum exp(score)                   -inf where a row sees nothing

With a sink of logit s_h, e^(s_h) joins the sum of each row. Where the encoding's scores are the logarithms of weights
(`log_weights`), weights = exp(score).

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1, eq. 1.
"""

from typing import Any

import jax
import jax.numpy as jnp

from attnjax.attention.hooks import scores
from attnjax.attention.masks import visibility
from attnjax.attention.products import queries_keys, weights_values
from attnjax.attention.record import Call
from attnjax.attention.relative_bias import per_distance
from attnjax.typing import Array, Float


def dense(call: Call) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Returns output and log-sum-exp of every head. Takes T x S memory per head."""
    weights, lse = dense_weights(call)
    if call.dropout is not None:
        kept = jax.random.bernoulli(call.dropout.key, 1 - call.dropout.rate, weights.shape)
        weights = jnp.where(kept, weights / (1 - call.dropout.rate), jnp.zeros((), weights.dtype))
    return weights_values(weights, call.cols.v), lse


def dense_weights(call: Call) -> tuple[Float[Array, "B K G T S"], Float[Array, "B K G T"]]:
    """Returns attention weights, before dropout, and the log-sum-exp of every row."""
    call = per_distance(call, (1, 1))
    rows, cols = call.rows, call.cols
    seen = visibility(call.span, rows.index, cols.index, rows.segments, cols.segments, cols.valid, call.allowed)
    logits = scores(call, rows, cols, queries_keys(rows.q, cols.k), seen)
    if any(part.log_weights for part in call.encodings):
        weights = jnp.where(seen, jnp.exp(jnp.where(seen, logits, -jnp.inf)), jnp.zeros((), logits.dtype))
        return weights, jnp.log(weights.sum(-1))
    return softmax(logits, seen, call.sink)


@jax.custom_jvp
def softmax(
    logits: Float[Array, "B K G T S"], seen: Array, sink: Float[Array, "1 K G 1"] | None
) -> tuple[Float[Array, "B K G T S"], Float[Array, "B K G T"]]:
    """Returns the softmax over the visible keys and the sink, and log-sum-exp. A row that sees nothing is 0, not NaN."""
    weights, lse, _ = _softmax(logits, seen, sink)
    return weights, lse


def _softmax(logits: Array, seen: Array, sink: Array | None) -> tuple[Array, Array, Array | None]:
    """Weights, log-sum-exp, and the weight of the sink."""
    infinity = jnp.asarray(jnp.inf, logits.dtype)
    logits = jnp.where(seen, logits, -infinity)
    top = logits.max(-1, keepdims=True, initial=jnp.finfo(logits.dtype).min)
    top = top if sink is None else jnp.maximum(top, sink[..., None])
    unnormalized = jnp.exp(logits - top)
    total = unnormalized.sum(-1, keepdims=True)
    of_sink = None if sink is None else jnp.exp(sink[..., None] - top)
    total = total if of_sink is None else total + of_sink
    empty = total == 0
    total = jnp.where(empty, jnp.ones_like(total), total)
    lse = jnp.where(empty, -infinity, top + jnp.log(total))
    return unnormalized / total, lse[..., 0], None if of_sink is None else (of_sink / total)[..., 0]


@softmax.defjvp
def _softmax_jvp(primals: tuple, tangents: tuple[Array, Any, Any]) -> tuple[tuple, tuple]:
    """d weights = weights (d logits - mean),  d lse = mean,  with mean = sum weights d logits, the sink included."""
    weights, lse, of_sink = _softmax(*primals)
    change = tangents[0]
    mean = (weights * change).sum(-1)
    mean = mean if of_sink is None else mean + of_sink * tangents[2]
    return (weights, lse), (weights * (change - mean[..., None]), mean)
