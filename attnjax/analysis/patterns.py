"""What a head may look for: the keys that each query should attend to, as masks [T, S] made from the tokens alone.

    previous_token   j = i - 1                                     next_token   j = i + 1 (encoders)
    first_token      j = 0 < i
    same_token       j < i with token j = token i                  the query itself is no target
    separator        j < i with token j in a given set             newline and space unless given
    induction        0 < j <= i with token j-1 = token i           what followed an earlier occurrence: Olsson et al. 2022
                     and j - 1 < i                                 (arXiv:2209.11895)

Patterns that need a parser come with their targets, see `count_heads`. A row without a target counts nowhere.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from attnjax.typing import Array, Bool, Int

SEPARATORS = (ord("\n"), ord(" "))
POSITIONAL = ("previous_token", "next_token", "first_token")
"""Patterns that do not depend on the tokens: an offset alone finds their target."""


def previous_token(tokens: Int[Array, " T"]) -> Bool[Array, "T T"]:
    """j = i - 1."""
    return _behind(tokens) == 1


def next_token(tokens: Int[Array, " T"]) -> Bool[Array, "T T"]:
    """j = i + 1."""
    return _behind(tokens) == -1


def first_token(tokens: Int[Array, " T"]) -> Bool[Array, "T T"]:
    """j = 0, for all queries but the first."""
    i, j = _indices(tokens)
    return (j == 0) & (i > 0)


def same_token(tokens: Int[Array, " T"]) -> Bool[Array, "T T"]:
    """The earlier occurrences of the query's own token."""
    return (tokens[:, None] == tokens[None, :]) & (_behind(tokens) > 0)


def separator(tokens: Int[Array, " T"], separators: tuple[int, ...] = SEPARATORS) -> Bool[Array, "T T"]:
    """Earlier tokens that are separators."""
    one_of = jnp.any(tokens[:, None] == jnp.asarray(separators, tokens.dtype)[None, :], axis=-1)
    return one_of[None, :] & (_behind(tokens) > 0)


def induction(tokens: Int[Array, " T"]) -> Bool[Array, "T T"]:
    """The tokens that followed earlier occurrences of the query's own token; the query itself may be one (in "aa")."""
    before = jnp.roll(tokens, 1)
    i, j = _indices(tokens)
    return (before[None, :] == tokens[:, None]) & (j > 0) & (j <= i)


PATTERNS: tuple[tuple[str, Callable[..., Bool[Array, "T T"]]], ...] = (
    ("previous_token", previous_token),
    ("next_token", next_token),
    ("first_token", first_token),
    ("same_token", same_token),
    ("separator", separator),
    ("induction", induction),
)
"""The patterns of this file, by name."""


def token_targets(
    tokens: Int[Array, "B T"], separators: tuple[int, ...] = SEPARATORS
) -> dict[str, Bool[Array, "B T T"]]:
    """The targets of every pattern. Raises ValueError unless tokens are integers [B, T]."""
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(f"token_targets: tokens must be integers [B, T], got {tokens.dtype}{list(tokens.shape)}")
    options = {"separator": {"separators": separators}}
    one = lambda name, function: jax.vmap(lambda row: function(row, **options.get(name, {})))(tokens)
    return {name: one(name, function) for name, function in PATTERNS}


def _indices(tokens: Int[Array, " T"]) -> tuple[Int[Array, "T T"], Int[Array, "T T"]]:
    """Query index and key index of every entry."""
    places = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    i, j = jnp.meshgrid(places, places, indexing="ij")
    return i, j


def _behind(tokens: Int[Array, " T"]) -> Int[Array, "T T"]:
    """i - j: positive for keys in the past."""
    i, j = _indices(tokens)
    return i - j
