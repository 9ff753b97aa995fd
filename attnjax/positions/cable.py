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

from attnjax.positions.fox import SummedCosts
from attnjax.typing import Array, Float


@dataclasses.dataclass(frozen=True)
class Cable(SummedCosts):
    """Costs computed from the tokens, summed along the row; needs a causal mask.

    Example:
        >>> import jax.numpy as jnp
        >>> from attnjax import EncodingParams
        >>> costs = EncodingParams(head={"w": jnp.zeros(4), "b": jnp.zeros(())})
        >>> positions = Cable().context(costs, jnp.ones((3, 4)), jnp.arange(3), jnp.zeros(()))
        >>> [round(float(p), 4) for p in positions]  # log 2, 2 log 2, 3 log 2
        [0.6931, 1.3863, 2.0794]
    """

    needs_causal = "rewards keys in the future for the cost of the way to them"

    def cost(self, gate: Float[Array, " T"]) -> Float[Array, " T"]:
        """softplus(gate)."""
        return jax.nn.softplus(gate)
