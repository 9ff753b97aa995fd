"""Cable: a bias that is a sum of learned costs of the tokens between the key and the query.

    c_t         = softplus(w_h . x_t + b_h)                     cost of token t for head h
    p_t         = sum_{u <= t} c_u                              position
    score[i, j] = scale * q_i . k_j - (p_i - p_j)
                = scale * q_i . k_j - sum_{j < t <= i} c_t

The family is that of FoX (`fox.py`): softplus(z) = -log sigmoid(-z), so weights of the other sign give the same bias.

The published code does not divide logits by sqrt(H). An encoding does not choose the scale: pass `scale=1` to `attend` to
compute what the authors computed.

Acts through `context`, x[T,D] -> [T], and `bias`, n[...] -> [...] with n = p_i - p_j. Positions are one number per token and
query head, summed in float32 whatever the type of x, or in float64 where x is.

Learned: head = {"w": [N, D], "b": [N]}, w ~ N(0, 0.02^2) and b = 0, so that every token costs log 2 at first.

Reference: Veisi, Amirzadeh, Mansourian 2025, arXiv:2503.08067; formula, initial values and scale are those of the authors'
code (axiomlab/Cable).
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.fox import STD, gate_logits
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class Cable(PositionEncoding):
    """Costs computed from the tokens, summed along the row; needs a causal mask.

    Example:
        >>> import jax.numpy as jnp
        >>> costs = EncodingParams(head={"w": jnp.zeros(4), "b": jnp.zeros(())})
        >>> positions = Cable().context(costs, jnp.ones((3, 4)), jnp.arange(3), jnp.zeros(()))
        >>> [round(float(p), 4) for p in positions]  # log 2, 2 log 2, 3 log 2
        [0.6931, 1.3863, 2.0794]
    """

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """head={"w": [N, D], "b": [N]}."""
        w = STD * jax.random.normal(key, (sizes.heads, sizes.model), jnp.float32)
        return EncodingParams(head={"w": w, "b": jnp.zeros((sizes.heads,), jnp.float32)})

    def context(
        self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], before: Float[Array, ""]
    ) -> Float[Array, " T"]:
        """before + sum_{u <= t} softplus(w . x_u + b)."""
        del pos
        cost = jax.nn.softplus(gate_logits(p.head, x))
        return before.astype(cost.dtype) + jnp.cumsum(cost)

    def bias(self, p: EncodingParams, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """-n: the cost of the way from the key to the query."""
        del p
        return -n.astype(compute_dtype(n))

    def slope(self, p: EncodingParams) -> Float[Array, ""]:
        """The number -1 with `bias(p, n) == -n`."""
        del p
        return jnp.float32(-1.0)

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses a mask that is not causal: the farther in the future, the higher the score."""
        del sizes, pos
        if causal is False:
            raise ValueError(
                "Cable rewards keys in the future for the cost of the way to them, so it needs a causal mask; pass "
                "Mask(causal=True)"
            )
