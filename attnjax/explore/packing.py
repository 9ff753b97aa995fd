"""Attention weights as short text: whole numbers of 1/65535 in 16 bits, little-endian, in base64.

Of causal weights only the entries on and below the diagonal are stored, row by row: [L, N, T (T + 1) / 2], and [L, N, T, T]
otherwise. A stored weight differs from the true one by at most `ERROR`.
"""

import base64

import numpy as np
from jaxtyping import Float

STEPS = 65535
ERROR = 0.5 / STEPS
"""7.63e-6."""


def pack(weights: Float[np.ndarray, "L N T T"], *, causal: bool) -> str:
    """The text of all heads. Raises ValueError for weights that are not finite or lie outside 0 .. 1."""
    if not np.all((weights >= 0) & (weights <= 1 + 1e-5)):
        raise ValueError("attention weights must lie in 0 .. 1; those of this model do not, or are not finite")
    whole = np.rint(np.minimum(weights.astype(np.float64), 1) * STEPS).astype("<u2")
    rows, columns = np.tril_indices(whole.shape[-1]) if causal else np.indices(whole.shape[-2:]).reshape(2, -1)
    return base64.b64encode(whole[..., rows, columns].tobytes()).decode()


def packed_size(layers: int, heads: int, tokens: int, *, causal: bool) -> int:
    """Characters that `pack` needs."""
    entries = tokens * (tokens + 1) // 2 if causal else tokens**2
    return -(-2 * layers * heads * entries // 3) * 4
