"""What attention weights say of a head: statistics of their rows, and the keys that a head may look for.

    entropy         -sum_j a_ij ln a_ij, in nats
    mean distance   sum_j a_ij |i - j|
    sink mass       a_i0, the attention on the first key

are pure functions of weights [..., T, S], any axes in front: rows are queries i, columns keys j, both counted by index. The
keys that a query should attend to are masks [T, S], made from the tokens alone (`token_targets`):

    previous_token   j = i - 1                                     next_token   j = i + 1 (encoders)
    first_token      j = 0 < i
    same_token       j < i with token j = token i                  the query itself is no target
    separator        j < i with token j in a given set             newline and space unless given
    induction        0 < j <= i with token j-1 = token i           what followed an earlier occurrence: Olsson et al. 2022
                     and j - 1 < i                                 (arXiv:2209.11895)

Patterns that need a parser come with their targets, see `counts.count_heads`. A row without a target counts nowhere.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import Array, ArrayLike, Bool, Float, Int

SEPARATORS = (ord("\n"), ord(" "))
POSITIONAL = ("previous_token", "next_token", "first_token")
"""Patterns that do not depend on the tokens: an offset alone finds their target."""


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


def sink_mass(weights: Float[Array, "*axes T S"], visible: Bool[ArrayLike, "T S"]) -> Float[Array, "*axes T"]:
    """Returns the attention on the first key, the attention sink of Xiao et al. 2024 (arXiv:2309.17453).

    NaN for rows that see no other key. Raises ValueError unless `visible` are booleans [T, S].
    """
    _check(weights)
    if visible.dtype != bool or visible.shape != weights.shape[-2:]:
        raise ValueError(
            f"visible must be booleans {list(weights.shape[-2:])}, got {visible.dtype}{list(visible.shape)}"
        )
    return jnp.where(jnp.any(jnp.asarray(visible)[:, 1:], axis=-1), weights[..., 0], jnp.nan)


def token_targets(
    tokens: Int[np.ndarray, "B T"], separators: tuple[int, ...] = SEPARATORS
) -> dict[str, Bool[np.ndarray, "B T T"]]:
    """Returns the targets of every pattern by name. Raises ValueError unless tokens are integers [B, T]."""
    tokens = np.asarray(tokens)
    if tokens.ndim != 2 or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"token_targets: tokens must be integers [B, T], got {tokens.dtype}{list(tokens.shape)}")
    places = np.arange(tokens.shape[1])
    i, j = places[None, :, None], places[None, None, :]
    query, key, before_key = tokens[:, :, None], tokens[:, None, :], np.roll(tokens, 1, axis=1)[:, None, :]
    found = {
        "previous_token": j == i - 1,
        "next_token": j == i + 1,
        "first_token": (j == 0) & (i > 0),
        "same_token": (query == key) & (j < i),
        "separator": np.isin(key, separators) & (j < i),
        "induction": (before_key == query) & (j > 0) & (j <= i),
    }
    shape = (*tokens.shape, tokens.shape[1])
    return {name: np.broadcast_to(targets, shape) for name, targets in found.items()}


def _check(weights: Float[Array, "*axes T S"]) -> None:
    if weights.ndim < 2:
        raise ValueError(f"weights must be [..., T, S], got shape {weights.shape}")
