"""Statistics of attention weights: entropy, distance, attention on the first tokens, and divergence between heads.

    entropy             -sum_j a_ij ln a_ij, in nats; normalised: over ln(number of visible keys)
    mean distance       sum_j a_ij |i - j|
    histogram           the share of a head's mass at distances n = i - j within each bin
    sink mass           sum of a_ij over the first keys
    divergence          Jensen-Shannon, row by row; of two heads its mean over rows; of two layers its minimum over heads

All are pure functions of weights [..., T, S], any axes in front: rows are queries i, columns keys j, both counted by index.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import Array, ArrayLike, Bool, Float


def causal(length: int) -> Bool[np.ndarray, "T T"]:
    """Which keys each query of a decoder sees: j <= i."""
    return np.tri(length, dtype=bool)


def entropy(weights: Float[Array, "*axes T S"]) -> Float[Array, "*axes T"]:
    """-sum_j a_ij ln a_ij of every row, in nats: 0 where all is on one key, ln(n) where n keys have the same."""
    return jnp.sum(jax.scipy.special.entr(_checked(weights)), axis=-1)


def normalised_entropy(
    weights: Float[Array, "*axes T S"], visible: Bool[ArrayLike, "*axes T S"]
) -> Float[Array, "*axes T"]:
    """The entropy over that of a uniform row, ln(number of visible keys): 0 .. 1. NaN for rows that see fewer than two."""
    count = jnp.sum(_seen(weights, visible), axis=-1)
    most = jnp.log(jnp.maximum(count, 2).astype(weights.dtype))
    return jnp.where(count > 1, entropy(weights) / most, jnp.nan)


def mean_distance(weights: Float[Array, "*axes T S"]) -> Float[Array, "*axes T"]:
    """sum_j a_ij |i - j| of every row, in tokens."""
    away = np.abs(_distances(weights)).astype(weights.dtype)
    return jnp.einsum("...ts,ts->...t", weights, away)


def distance_histogram(weights: Float[Array, "*axes T S"], edges: tuple[int, ...]) -> Float[Array, "*axes X"]:
    """The mass at distances edges[x] <= i - j < edges[x + 1], mean over rows: bins that hold every distance sum to 1.

    Positive distances lie in the past; see `past_edges` and `signed_edges`. Raises ValueError for edges that do not ascend.
    """
    if len(edges) < 2 or list(edges) != sorted(set(edges)):
        raise ValueError(f"distance_histogram: edges must ascend, at least two, got {edges}")
    place = np.digitize(_distances(weights), edges) - 1
    inside = (place == np.arange(len(edges) - 1)[:, None, None]).astype(weights.dtype)
    return jnp.einsum("...ts,xts->...x", weights, inside) / weights.shape[-2]


def past_edges(length: int) -> tuple[int, ...]:
    """Bins of a causal row, each twice as wide as the one before: 0; 1; 2, 3; 4 .. 7; up to distance length - 1."""
    doubling = (2**power for power in range(max(length - 1, 1).bit_length()))
    return (0, *(edge for edge in doubling if edge < length), length)


def signed_edges(length: int) -> tuple[int, ...]:
    """The bins of `past_edges` and the same for keys in the future: -3, -2; -1; 0; 1; 2, 3."""
    past = past_edges(length)
    return (*(1 - edge for edge in reversed(past[1:])), *past[1:])


def sink_mass(
    weights: Float[Array, "*axes T S"], visible: Bool[ArrayLike, "*axes T S"], first: int = 1
) -> Float[Array, "*axes T"]:
    """The attention on the first `first` keys. NaN for rows that see no other key.

    Xiao et al. 2024 (arXiv:2309.17453) name these keys attention sinks. Raises ValueError unless 1 <= first < S.
    """
    if not 1 <= first < weights.shape[-1]:
        raise ValueError(f"sink_mass: first must be in 1..{weights.shape[-1] - 1}, got {first}")
    others = jnp.any(_seen(weights, visible)[..., first:], axis=-1)
    return jnp.where(others, jnp.sum(weights[..., :first], axis=-1), jnp.nan)


def jensen_shannon(p: Float[Array, "*axes T S"], q: Float[Array, "*axes T S"]) -> Float[Array, "*axes T"]:
    """(KL(p || m) + KL(q || m)) / 2 of every row with m = (p + q) / 2, in nats: 0 where equal, ln 2 where disjoint."""
    if p.shape != q.shape:
        raise ValueError(f"jensen_shannon: weights must have the same shape, got {p.shape} and {q.shape}")
    m = (p + q) / 2
    return jnp.sum(jax.scipy.special.rel_entr(p, m) + jax.scipy.special.rel_entr(q, m), axis=-1) / 2


def head_divergence(a: Float[Array, "L B N T S"], b: Float[Array, "L B M T S"]) -> Float[Array, "L N M"]:
    """Jensen-Shannon divergence of head n of `a` and head m of `b` in the same layer, mean over rows and examples.

    Both have seen the same tokens. Raises ValueError where shapes differ in anything but the number of heads.
    """
    if a.ndim != 5 or b.ndim != 5 or (*a.shape[:2], *a.shape[3:]) != (*b.shape[:2], *b.shape[3:]):
        raise ValueError(f"head_divergence: weights must be [L, B, heads, T, S] alike, got {a.shape} and {b.shape}")
    pair = lambda p, q: jnp.mean(jensen_shannon(p, q))
    against_all = lambda p, others: jax.vmap(lambda q: pair(p, q))(others)
    # One head of `a` at a time, because all pairs at once would hold N times the weights.
    layer = lambda ours, theirs: jax.lax.map(lambda p: against_all(p, theirs), ours)
    return jax.vmap(layer)(jnp.swapaxes(a, 1, 2), jnp.swapaxes(b, 1, 2))


def layer_divergence(a: Float[Array, "L B N T S"], b: Float[Array, "L B M T S"]) -> Float[Array, " L"]:
    """The divergence of two models in each layer: the smallest `head_divergence` over all pairs of heads of that layer.

    This is the measure by which Kazemnejad et al. 2023 (arXiv:2305.19466, section 5) compare models without positions to
    those with: mean over rows of the Jensen-Shannon divergence, minimum over pairs of heads. Theirs and ours may differ in
    the order of the arguments of KL, which their released code turns around.
    """
    return jnp.min(head_divergence(a, b), axis=(1, 2))


def _checked(weights: Float[Array, "*axes T S"]) -> Float[Array, "*axes T S"]:
    if weights.ndim < 2:
        raise ValueError(f"weights must be [..., T, S], got shape {weights.shape}")
    return weights


def _seen(weights: Float[Array, "*axes T S"], visible: Bool[ArrayLike, "*axes T S"]) -> Bool[Array, "*axes T S"]:
    if visible.dtype != bool or visible.shape not in (weights.shape, _checked(weights).shape[-2:]):
        came = f"{visible.dtype}{list(visible.shape)}"
        raise ValueError(f"visible must be booleans {list(weights.shape[-2:])} or as the weights, got {came}")
    return jnp.broadcast_to(visible, weights.shape)


def _distances(weights: Float[Array, "*axes T S"]) -> np.ndarray:
    T, S = _checked(weights).shape[-2:]
    return np.arange(T)[:, None] - np.arange(S)[None, :]
