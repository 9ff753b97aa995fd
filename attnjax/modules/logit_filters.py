"""Which tokens may be drawn: pure functions of logits [B, V] that set those of all other tokens to -inf.

    keep_top_k   the k likeliest tokens, and those that tie with the last of them
    keep_top_p   the smallest set of likeliest tokens whose probability exceeds p (nucleus sampling)
    keep_min_p   tokens at least m times as likely as the likeliest

Each keeps one token at least, and equals the function of that purpose in Hugging Face transformers. The numbers p and m may be
traced. Probabilities are computed in float32, or in float64 where logits have 64 bits.

References: Fan et al. 2018, arXiv:1805.04833 (top k); Holtzman et al. 2020, arXiv:1904.09751 (top p); Nguyen et al. 2024,
arXiv:2407.01082 (min p).
"""

import chex
import jax
import jax.numpy as jnp

from attnjax.typing import Array, ArrayLike, Bool, Float, compute_dtype


def scale(logits: Float[Array, "B V"], temperature: Float[ArrayLike, ""] | float) -> Float[Array, "B V"]:
    """Returns logits / temperature, in the type of the logits.

    Example:
      >>> scale(jnp.array([[2.0, 1.0]]), 0.5).tolist()
      [[4.0, 2.0]]
    """
    chex.assert_rank(logits, 2)
    return logits / jnp.asarray(temperature, logits.dtype)


def keep_top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """Returns the logits that are at least the k-th largest of their row, and -inf for the others; all V if k > V.

    Example:
      >>> keep_top_k(jnp.array([[1.0, 3.0, 2.0, 2.0]]), 2).tolist()
      [[-inf, 3.0, 2.0, 2.0]]
    """
    chex.assert_rank(logits, 2)
    best, _ = jax.lax.top_k(logits, min(k, logits.shape[-1]))
    return _keep(logits, logits >= best[:, -1:])


def keep_top_p(logits: Float[Array, "B V"], p: Float[ArrayLike, ""] | float) -> Float[Array, "B V"]:
    """Returns the logits of the tokens without which the likelier ones would not reach probability p; -inf for the others.

    Tokens are dropped from the least likely on, as long as the dropped ones have probability 1 - p at most together; among
    equally likely ones, that with the smallest id first.

    Example:
      >>> keep_top_p(jnp.log(jnp.array([[0.5, 0.125, 0.375]])), 0.75).tolist()[0][1]
      -inf
    """
    chex.assert_rank(logits, 2)
    order = jnp.argsort(logits, axis=-1, stable=True)
    ascending = jnp.take_along_axis(_probabilities(logits), order, axis=-1)
    kept = jnp.cumsum(ascending, axis=-1) > jnp.asarray(1 - p, ascending.dtype)
    kept = kept.at[:, -1].set(True)
    return _keep(logits, jnp.take_along_axis(kept, jnp.argsort(order, axis=-1), axis=-1))


def keep_min_p(logits: Float[Array, "B V"], m: Float[ArrayLike, ""] | float) -> Float[Array, "B V"]:
    """Returns the logits of tokens whose probability is at least m times the largest, and -inf for the others.

    Example:
      >>> keep_min_p(jnp.log(jnp.array([[0.5, 0.125, 0.375]])), 0.5).tolist()[0][1]
      -inf
    """
    chex.assert_rank(logits, 2)
    probabilities = _probabilities(logits)
    largest = probabilities.max(-1, keepdims=True)
    # The likeliest token stays even if rounding makes m a little more than 1.
    return _keep(logits, (probabilities >= jnp.asarray(m, largest.dtype) * largest) | (probabilities == largest))


def _probabilities(logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
    return jax.nn.softmax(logits.astype(compute_dtype(logits)), axis=-1)


def _keep(logits: Float[Array, "B V"], kept: Bool[Array, "B V"]) -> Float[Array, "B V"]:
    return jnp.where(kept, logits, jnp.asarray(-jnp.inf, logits.dtype))
