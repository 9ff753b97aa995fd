"""The whole [T, S] table of every head at once, differentiated by JAX. `reference.py` is the page to read first.

    weights = softmax(score(scale * q @ k.T))      over the visible keys, 0 elsewhere
    out     = weights @ v
    lse     = log sum exp(score)                   -inf where a row sees nothing

With a sink of logit s_h, e^(s_h) joins the sum of each row. Where the encoding's scores are the logarithms of weights
(`Trait.UNNORMALIZED`), weights = exp(score).

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1, eq. 1.
"""

from typing import Any

import jax
import jax.numpy as jnp

from attnjax.attention.dropout import head_keys, kept
from attnjax.attention.hooks import initial_carry, scores
from attnjax.attention.inputs import AttentionInputs
from attnjax.attention.masks import visibility
from attnjax.attention.products import queries_keys, weights_values
from attnjax.attention.relative_bias import per_distance
from attnjax.positions.base import Trait
from attnjax.typing import Array, Float


def dense(inputs: AttentionInputs) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Output and log-sum-exp of every head. Takes T x S memory per head."""
    weights, lse = dense_weights(inputs)
    if inputs.dropout is not None:
        weights = weights * _kept(inputs)
    return weights_values(weights, inputs.keys.v), lse


def dense_weights(inputs: AttentionInputs) -> tuple[Float[Array, "B K G T S"], Float[Array, "B K G T"]]:
    """Attention weights, before dropout, and the log-sum-exp of every row."""
    queries, keys = inputs.queries, inputs.keys
    inputs = per_distance(inputs, (1, 1))
    encoding, p = inputs.encoding, inputs.params
    seen = visibility(inputs.span, queries, keys, inputs.allowed)
    carry = initial_carry(encoding, p, queries.q)
    products, pos = queries_keys(queries.q, keys.k), (queries.pos, keys.pos)
    logits, _ = scores(encoding, p, inputs.scale, products, queries.q, keys.k, pos, seen, carry)
    if Trait.UNNORMALIZED in encoding.traits:
        return _weights_of_logarithms(logits, seen)
    return softmax(logits, seen, None if inputs.sink is None else inputs.sink[None, :, :, None])


def _weights_of_logarithms(logits: Float[Array, "B K G T S"], seen: Array) -> tuple[Array, Array]:
    safe = jnp.where(seen, logits, jnp.zeros((), logits.dtype))
    weights = jnp.where(seen, jnp.exp(safe), jnp.zeros((), logits.dtype))
    return weights, jnp.log(weights.sum(-1))


@jax.custom_jvp
def softmax(
    logits: Float[Array, "B K G T S"], seen: Array, sink: Float[Array, "1 K G 1"] | None
) -> tuple[Float[Array, "B K G T S"], Float[Array, "B K G T"]]:
    """Softmax over what is seen and the sink, and log-sum-exp. A row that sees nothing is 0, not a mean and not NaN."""
    weights, lse, _ = _softmax(logits, seen, sink)
    return weights, lse


def _softmax(logits: Array, seen: Array, sink: Array | None) -> tuple[Array, Array, Array | None]:
    """Weights, log-sum-exp, and the weight of the sink."""
    infinity = jnp.asarray(jnp.inf, logits.dtype)
    logits = jnp.where(seen, logits, -infinity)
    top = logits.max(-1, keepdims=True, initial=jnp.finfo(logits.dtype).min)
    top = top if sink is None else jnp.maximum(top, sink[..., None])
    # Nothing depends on what is subtracted. JAX finds the place of a maximum by comparing with scores that the compiler may
    # have computed again and rounded otherwise, and then divides by a count of none.
    top = jax.lax.stop_gradient(top)
    unnormalized = jnp.exp(logits - top)
    total = unnormalized.sum(-1, keepdims=True)
    of_sink = None if sink is None else jnp.exp(sink[..., None] - top)
    total = total if of_sink is None else total + of_sink
    empty = total == 0
    total = jnp.where(empty, jnp.ones_like(total), total)
    lse = jnp.where(empty, -infinity, top + jnp.log(total))
    weights = jnp.where(seen, unnormalized / total, jnp.zeros_like(total))
    return weights, lse[..., 0], None if of_sink is None else (of_sink / total)[..., 0]


@softmax.defjvp
def _softmax_jvp(primals: tuple, tangents: tuple[Array, Any, Any]) -> tuple[tuple, tuple]:
    """d weights = weights (d logits - mean),  d lse = mean,  with mean = sum weights d logits, the sink included."""
    logits, seen, sink = primals
    weights, lse, of_sink = _softmax(logits, seen, sink)
    # Hidden logits may be huge: the gradient they send back must meet a constant here, not a product 0 * inf.
    change = jnp.where(seen, tangents[0], jnp.zeros((), logits.dtype))
    mean = (weights * change).sum(-1)
    mean = mean if of_sink is None else mean + of_sink * tangents[2]
    change = jnp.where(seen, weights * (change - mean[..., None]), jnp.zeros((), logits.dtype))
    return (weights, lse), (change, mean)


def _kept(inputs: AttentionInputs) -> Float[Array, "B K G T S"]:
    T, S = inputs.queries.q.shape[3], inputs.keys.k.shape[2]
    dropout, dtype = inputs.dropout, inputs.compute_dtype
    keys = head_keys(dropout, inputs.queries.q.shape[:3])
    return kept(keys, dropout.rate, jnp.arange(T), jnp.arange(S), dtype)
