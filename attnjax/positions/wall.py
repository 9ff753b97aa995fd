"""Wall attention: every channel of the product of a query and a key forgets at its own rate.

    score(i, j) = scale * sum_n q_in k_jn exp(P_in - P_jn),    P_tn = sum_{u <= t} log sigmoid(w_hn . x_u + b_hn)

The token of the query counts, that of the key does not. Acts through `context`, x[T,D] -> [T,H], whose positions are -P, and
`score`, which computes the logits from queries and keys: the factor of each channel is at most 1, and nothing overflows, which
the product of exp(P_i) q_i and exp(-P_j) k_j would. The gate for the whole head that the authors add to it on demand is FoX:
`compose(WallAttention(), FoX(gate_bias=8.0))`.

Learned: w [N, H, D] ~ N(0, 0.02^2) and b [N, H], `gate_bias` at first: with 8 hardly anything is forgotten.

Reference: Averbuch and Pai (Tilde Research) 2026, in flash-linear-attention (`fla/layers/wall_attn.py`); we know of no paper.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import Params, PositionEncoding, Sizes, Tile
from attnjax.positions.contextual import Past
from attnjax.positions.projection import project
from attnjax.typing import Array, ArrayLike, Float, Num


@dataclasses.dataclass(frozen=True)
class WallAttention(PositionEncoding):
    """Forget gates per channel, computed from the tokens; needs a causal mask. `gate_bias`: the initial bias of the gates.

    Example:
        >>> from attnjax import Sizes, context_positions
        >>> encoding, sizes = WallAttention(), Sizes(model=8, heads=2, kv_heads=1, head_dim=4)
        >>> params = encoding.init(jax.random.key(0), sizes)
        >>> context_positions(encoding, params, jnp.ones((1, 5, 8)), jnp.arange(5), sizes).shape  # B, N, T, H
        (1, 2, 5, 4)
    """

    gate_bias: float = 8.0

    per_head = ("w", "b")
    causal_only = "rewards keys in the future for the cost of the tokens between"
    replaces_logits = True

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns w [N, H, D] and b [N, H]."""
        shape = (sizes.heads, sizes.head_dim)
        w = 0.02 * jax.random.normal(key, (*shape, sizes.model), jnp.float32)
        return {"w": w, "b": jnp.full(shape, self.gate_bias, jnp.float32)}

    def features(self, sizes: Sizes) -> tuple[int, ...]:
        """Returns (H,)."""
        return (sizes.head_dim,)

    def context(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], past: Past) -> Float[Array, "T H"]:
        """Returns -P."""
        return past.sums(jax.nn.softplus(-(project(x, p["w"].T) + p["b"][None])), past.state)

    def score(self, p: Params, tile: Tile) -> Float[Array, "t s"]:
        """Returns scale * sum_n q_n k_n exp(P_i - P_j)."""
        q_pos, k_pos = (pos.astype(tile.logits.dtype) for pos in (tile.q_pos, tile.k_pos))
        # Keys of the future, which the mask hides, have the factor 1.
        kept = jnp.exp(-jnp.maximum(q_pos[:, None] - k_pos[None], 0))
        return tile.scale * (tile.q[:, None] * tile.k[None] * kept).sum(-1)
