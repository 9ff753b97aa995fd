"""Statistics of attention weights: entropy, distance, attention on the first tokens, and divergence between heads.

    entropy             -sum_j a_ij ln a_ij, in nats
    mean distance       sum_j a_ij |i - j|
    sink mass           sum of a_ij over the first keys
    divergence          Jensen-Shannon, row by row; of two heads its mean over rows

All are pure functions of weights [..., T, S], any axes in front: rows are queries i, columns keys j, both counted by index.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import Array, ArrayLike, Bool, Float


def entropy(weights: Float[Array, "*axes T S"]) -> Float[Array, "*axes T"]:
    """Returns -sum_j a_ij ln a_ij of every row, in nats: 0 where all is on one key, ln(n) where n keys have the same."""
    _check(weights)
    return jnp.sum(jax.scipy.special.entr(weights), axis=-1)


def mean_distance(weights: Float[Array, "*axes T S"]) -> Float[Array, "*axes T"]:
    """Returns sum_j a_ij |i - j| of every row, in tokens."""
    _check(weights)
    T, S = weights.shape[-2:]
    away = np.abs(np.arange(T)[:, None] - np.arange(S)[None, :])
    return jnp.einsum("...ts,ts->...t", weights, away.astype(weights.dtype))


def sink_mass(
    weights: Float[Array, "*axes T S"], visible: Bool[ArrayLike, "T S"], first: int = 1
) -> Float[Array, "*axes T"]:
    """Returns the attention on the first `first` keys. NaN for rows that see no other key.

    Xiao et al. 2024 (arXiv:2309.17453) name these keys attention sinks. Raises ValueError unless 1 <= first < S.
    """
    _check(weights)
    if not 1 <= first < weights.shape[-1]:
        raise ValueError(f"sink_mass: first must be in 1..{weights.shape[-1] - 1}, got {first}")
    if visible.dtype != bool or visible.shape != weights.shape[-2:]:
        raise ValueError(
            f"visible must be booleans {list(weights.shape[-2:])}, got {visible.dtype}{list(visible.shape)}"
        )
    others = jnp.any(jnp.asarray(visible)[:, first:], axis=-1)
    return jnp.where(others, jnp.sum(weights[..., :first], axis=-1), jnp.nan)


def jensen_shannon(p: Float[Array, "*axes T S"], q: Float[Array, "*axes T S"]) -> Float[Array, "*axes T"]:
    """Returns (KL(p || m) + KL(q || m)) / 2 of every row with m = (p + q) / 2, in nats: 0 where equal, ln 2 where disjoint."""
    if p.shape != q.shape:
        raise ValueError(f"jensen_shannon: weights must have the same shape, got {p.shape} and {q.shape}")
    m = (p + q) / 2
    return jnp.sum(jax.scipy.special.rel_entr(p, m) + jax.scipy.special.rel_entr(q, m), axis=-1) / 2


def head_divergence(a: Float[Array, "L B N T S"], b: Float[Array, "L B M T S"]) -> Float[Array, "L N M"]:
    """Returns the Jensen-Shannon divergence of head n of `a` and head m of `b` in the same layer, mean over rows and examples.

    Both models have read the same tokens. Its minimum over both heads, layer by layer, is the measure of Kazemnejad et al. 2023
    (arXiv:2305.19466, section 5). Raises ValueError where shapes differ in anything but the number of heads.
    """
    if a.ndim != 5 or b.ndim != 5 or (*a.shape[:2], *a.shape[3:]) != (*b.shape[:2], *b.shape[3:]):
        raise ValueError(f"head_divergence: weights must be [L, B, heads, T, S] alike, got {a.shape} and {b.shape}")
    pair = lambda p, q: jnp.mean(jensen_shannon(p, q))
    against_all = lambda p, others: jax.vmap(lambda q: pair(p, q))(others)
    # One head of `a` at a time, because all pairs at once would hold N times the weights.
    layer = lambda ours, theirs: jax.lax.map(lambda p: against_all(p, theirs), ours)
    return jax.vmap(layer)(jnp.swapaxes(a, 1, 2), jnp.swapaxes(b, 1, 2))


def _check(weights: Float[Array, "*axes T S"]) -> None:
    if weights.ndim < 2:
        raise ValueError(f"weights must be [..., T, S], got shape {weights.shape}")
