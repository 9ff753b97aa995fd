"""The readable reference: the whole [T, S] table of every head at once, differentiated by JAX.

    weights = softmax(score(scale * q @ k.T))      over the visible keys, 0 elsewhere
    out     = weights @ v
    lse     = log sum exp(score)                   -inf where a row sees nothing

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1, eq. 1.
"""

from typing import Any

import jax
import jax.numpy as jnp

from attnjax.attention.distances import by_distance
from attnjax.attention.problem import Problem
from attnjax.attention.products import queries_keys, weights_values
from attnjax.attention.tile import head_keys, initial_carry, keep, poison, scores, visibility
from attnjax.typing import Array, Float


def dense(problem: Problem) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Output and log-sum-exp of every head. Takes T x S memory per head."""
    weights, lse = dense_weights(problem)
    if problem.dropout is not None:
        weights = weights * _keep(problem)
    return weights_values(weights, problem.cols.v), lse


def dense_weights(problem: Problem) -> tuple[Float[Array, "B K G T S"], Float[Array, "B K G T"]]:
    """Attention weights, before dropout, and the log-sum-exp of every row."""
    rows, cols = problem.rows, problem.cols
    problem = by_distance(problem, (1, 1))
    encoding, scale = problem.encoding, problem.scale
    seen = visibility(problem.span, rows, cols, problem.allowed)
    carry = initial_carry(encoding, rows.q)
    products, position = queries_keys(rows.q, cols.k), (rows.pos, cols.pos)
    logits, _ = scores(encoding, problem.head, problem.shared, scale, products, rows.q, cols.k, position, seen, carry)
    return softmax(poison(logits, rows, cols), seen)


@jax.custom_jvp
def softmax(
    logits: Float[Array, "B K G T S"], seen: Array
) -> tuple[Float[Array, "B K G T S"], Float[Array, "B K G T"]]:
    """Softmax over what is seen, and log-sum-exp. A row that sees nothing is 0, not a mean and not NaN."""
    infinity = jnp.asarray(jnp.inf, logits.dtype)
    logits = jnp.where(seen, logits, -infinity)
    top = logits.max(-1, keepdims=True, initial=jnp.finfo(logits.dtype).min)
    unnormalised = jnp.exp(logits - top)
    total = unnormalised.sum(-1, keepdims=True)
    empty = total == 0
    total = jnp.where(empty, jnp.ones_like(total), total)
    lse = jnp.where(empty, -infinity, top + jnp.log(total))
    return jnp.where(seen, unnormalised / total, jnp.zeros_like(total)), lse[..., 0]


@softmax.defjvp
def _softmax_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[tuple, tuple]:
    """d weights = weights (d logits - mean),  d lse = mean,  with mean = sum weights d logits."""
    logits, seen = primals
    weights, lse = softmax(logits, seen)
    # Hidden values may be huge: the gradient they send back must meet a constant here, not a product 0 * inf.
    change = jnp.where(seen, tangents[0], jnp.zeros((), logits.dtype))
    mean = (weights * change).sum(-1, keepdims=True)
    return (weights, lse), (jnp.where(seen, weights * (change - mean), jnp.zeros((), logits.dtype)), mean[..., 0])


def _keep(problem: Problem) -> Float[Array, "B K G T S"]:
    T, S = problem.rows.q.shape[3], problem.cols.k.shape[2]
    dropout, dtype = problem.dropout, problem.rows.q.dtype
    keys = head_keys(dropout, problem.rows.q.shape[:3])
    return keep(keys, jax.random.key_impl(dropout.key), dropout.rate, jnp.arange(T), jnp.arange(S), dtype)
