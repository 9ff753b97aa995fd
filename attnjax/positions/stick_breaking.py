"""Stick-breaking attention: weights that no softmax makes, each a share of what the nearer keys have left.

    A_ij = sigmoid(s_ij) * prod_{j<k, k visible to i} (1 - sigmoid(s_ik)),    s_ij = scale * q_i . k_j
    log A_ij = log sigmoid(s_ij) + sum_{j<k} log sigmoid(-s_ik)
    out_i = sum_j A_ij v_j

Acts through `score`, which returns log A (`Trait.UNNORMALIZED`): logits[t,s] -> [t,s]. The sum runs over the visible keys to
the right of j, in the order of the keys, so key tiles are visited from the last to the first with that sum as the carry. It
needs no positions: of two equal keys the later one gets more. Nothing is learned.

The published code does not let a token see itself; here the mask decides, and `Mask(causal=True, q_index=arange(T) - 1)`, or
`attend_current=False`, hides the diagonal. The weights of a row sum to at most 1. What is left of the stick, 1 - sum_j A_ij =
prod_k (1 - sigmoid(s_ik)), is the caller's: a channel of ones beside the values brings the sum with the output.

Reference: Tan, Yang, Courville, Panda, Shen 2025 (arXiv:2410.17980); the sum of logarithms is that of the authors' code, which
leaves the rest of the stick to its caller too.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, SequentialScore, Tile, Trait
from attnjax.positions.cope import sums_from_the_right
from attnjax.typing import Array, Float

LOWEST = -1e5
"""What a logarithm of 1 - sigmoid is held to: e^LOWEST is 0 in float64, and sums of millions of them stay finite."""


@dataclasses.dataclass(frozen=True)
class StickBreaking(SequentialScore):
    """Weights by stick-breaking from the last visible key to the first.

    With `attend_current=False`, the default of the published code, no query sees the key at its own position.
    Raises ValueError where `attend_current` is not True or False.

    Example:
        >>> from attnjax import Mask, attend
        >>> x, v = jnp.zeros((1, 3, 1, 2)), jnp.arange(6.0).reshape(1, 3, 1, 2)
        >>> with_ones = jnp.concatenate([v, jnp.ones((1, 3, 1, 1))], -1)
        >>> out = attend(x, x, with_ones, encoding=StickBreaking(), mask=Mask(causal=True))
        >>> left = 1 - out[..., -1:]
        >>> left.ravel().tolist()
        [0.5, 0.25, 0.125]
        >>> (out[..., :-1] + left * v).shape
        (1, 3, 1, 2)
    """

    attend_current: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.attend_current, bool):
            raise ValueError(f"StickBreaking: attend_current must be True or False, got {self.attend_current!r}")

    @property
    def traits(self) -> Trait:
        """A score with a carry, of logarithms of weights."""
        return super().traits | Trait.UNNORMALIZED

    def score(
        self, p: EncodingParams, tile: Tile, carry: Float[Array, " t"] | None = None
    ) -> tuple[Float[Array, "t s"], Float[Array, " t"]]:
        """(log A, the logarithm of what this tile and all to its right leave of the stick).

        Without a carry the tile is taken to hold the last keys of the rows.
        """
        left = self.carry(p, tile.q) if carry is None else carry
        dtype = tile.logits.dtype
        visible = tile.visible if self.attend_current else tile.visible & (tile.distance != 0)
        lowest = jnp.asarray(LOWEST, dtype)
        broken = jnp.where(visible, jnp.maximum(jax.nn.log_sigmoid(-tile.logits), lowest), jnp.zeros((), dtype))
        inclusive = sums_from_the_right(broken)
        # The sum beyond j is that of the next column; to subtract the own entry instead would cancel where it is large.
        beyond = jnp.pad(inclusive[:, 1:], ((0, 0), (0, 1))) + left.astype(dtype)[:, None]
        weights = jnp.where(visible, jax.nn.log_sigmoid(tile.logits) + beyond, lowest)
        return weights, left + inclusive[:, 0].astype(left.dtype)
