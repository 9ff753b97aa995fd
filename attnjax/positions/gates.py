"""FoX and Cable: a bias that sums what the tokens between the key and the query cost.

    FoX      c_t = -log sigmoid(w_h . x_t + b_h)     what the forget gate of token t forgets, in head h
    Cable    c_t = softplus(w_h . x_t + b_h)
    p_t         = sum_{u <= t} c_u                   position
    score[i, j] = scale * q_i . k_j - (p_i - p_j)
                = scale * q_i . k_j - sum_{j < t <= i} c_t

The token of the query counts, that of the key does not, and the bias is not scaled. The two are one family: softplus(z) =
-log sigmoid(-z). The code of Cable does not divide logits by sqrt(H): `scale=1` in `attend` gives the numbers of its authors.

Acts through `context`, x[T,D] -> [T], and `bias`, with n = p_i - p_j. Positions are one number per token and query head, so
memory stays linear.

Learned: w [N, D] ~ N(0, 0.02^2) and b [N]: 0, so that every gate starts at 1/2, or `gate_bias`; with 5, as in x-transformers
(`DataDependentAlibi`), hardly anything is forgotten at first.

References: Lin, Nikishin, He, Courville 2025, arXiv:2503.02130 (FoX, "forgetting attention"); Veisi, Amirzadeh, Mansourian
2025, arXiv:2503.08067 (Cable). Initial values are those of the authors' code.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.contextual import Past
from attnjax.positions.projection import project
from attnjax.typing import Array, ArrayLike, Float, Num


class _SummedCosts(PositionEncoding):
    """What both share; a subclass says what a token costs."""

    per_head = ("w", "b")
    causal_only = "rewards keys in the future for the cost of the tokens between"

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns w [N, D] and b [N]."""
        w = 0.02 * jax.random.normal(key, (sizes.heads, sizes.model), jnp.float32)
        return {"w": w, "b": jnp.full((sizes.heads,), getattr(self, "gate_bias", 0.0), jnp.float32)}

    def cost(self, gate: Float[Array, " T"]) -> Float[Array, " T"]:
        """Returns c_t of tokens with w . x_t + b = gate."""
        raise NotImplementedError

    def context(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], past: Past) -> Float[Array, " T"]:
        """Returns the sums of costs."""
        return past.sums(self.cost(project(x, p["w"]) + p["b"]), past.state)

    def bias(self, p: Params, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns -n, the cost of the tokens between the key and the query."""
        return -n

    def slope(self, p: Params) -> Float[Array, ""]:
        """Returns -1, with `bias(p, n) == -n`."""
        return jnp.float32(-1.0)


@dataclasses.dataclass(frozen=True)
class FoX(_SummedCosts):
    """Forget gates computed from the tokens; needs a causal mask. `gate_bias`: the initial bias of the gates.

    Example:
        >>> gates, start = {"w": jnp.zeros(4), "b": jnp.zeros(())}, Past(jnp.zeros(()), jnp.arange(3))
        >>> sums = FoX().context(gates, jnp.ones((3, 4)), jnp.arange(3), start)  # log 2, 2 log 2, 3 log 2
        >>> [round(float(one), 4) for one in sums]
        [0.6931, 1.3863, 2.0794]
    """

    gate_bias: float = 0.0

    def cost(self, gate: Float[Array, " T"]) -> Float[Array, " T"]:
        return jax.nn.softplus(-gate)


@dataclasses.dataclass(frozen=True)
class Cable(_SummedCosts):
    """Costs computed from the tokens, summed along the row; needs a causal mask.

    Example:
        >>> costs, start = {"w": jnp.ones(1), "b": jnp.zeros(())}, Past(jnp.zeros(()), jnp.arange(2))
        >>> Cable().context(costs, jnp.array([[-50.0], [50.0]]), jnp.arange(2), start).tolist()  # 0, then 50
        [1.9287498933537385e-22, 50.0]
    """

    def cost(self, gate: Float[Array, " T"]) -> Float[Array, " T"]:
        return jax.nn.softplus(gate)
