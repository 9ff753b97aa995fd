"""What a head may look for: the keys that each query should attend to, as masks [T, S] made from the tokens alone.

    previous_token   j = i - 1                                     next_token   j = i + 1 (encoders)
    first_token      j = 0 < i
    same_token       j < i with token j = token i                  the query itself is no target
    separator        j < i with token j in a given set             newline and space unless given
    induction        0 < j <= i with token j-1 = token i           what followed an earlier occurrence: Olsson et al. 2022
                     and j - 1 < i                                 (arXiv:2209.11895)

Patterns that need a parser come with their targets, see `counts.count_heads`. A row without a target counts nowhere.
"""

import numpy as np

from attnjax.typing import Bool, Int

SEPARATORS = (ord("\n"), ord(" "))
POSITIONAL = ("previous_token", "next_token", "first_token")
"""Patterns that do not depend on the tokens: an offset alone finds their target."""


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
