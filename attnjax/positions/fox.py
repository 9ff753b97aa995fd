"""FoX, the forgetting transformer: a bias that is a sum of learned forget gates between the key and the query.

    log f_t = log sigmoid(w_h . x_t + b_h)                      forget gate of token t and head h
    p_t     = -sum_{u <= t} log f_u                             position: how much is forgotten up to t
    score[i, j] = scale * q_i . k_j - (p_i - p_j)
                = scale * q_i . k_j + sum_{j < t <= i} log f_t

The gate of the query counts, that of the key does not, and the bias is not scaled.

Acts through `context`, x[T,D] -> [T], and `bias`, n[...] -> [...] with n = p_i - p_j. Positions are one number per token and
query head, so that memory stays linear and kernels with extra columns can serve (`slope`). They are summed in float32
whatever the type of x, or in float64 where x is.

Learned: head = {"w": [N, D], "b": [N]}, w ~ N(0, 0.02^2) and b = `gate_bias`: 0 in the authors' code, where every gate starts
at 1/2; 5 in x-transformers, where all but nothing is forgotten at first.

Reference: Lin, Nikishin, He, Courville 2025, arXiv:2503.02130 ("forgetting attention"); initial values from the authors' code
(zhixuan-lin/forgetting-transformer) and from x-transformers (`DataDependentAlibi`).
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.checks import is_number
from attnjax.positions.projection import project
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree, compute_dtype

STD = 0.02
"""Standard deviation of the initial weights of the gates."""


class SummedCosts(PositionEncoding):
    """What FoX and Cable share: positions that are sums of costs of the tokens, and a bias of what lies between two.

    A subclass says what a token costs (`cost`) and why it needs a causal mask: the farther in the future, the higher the score.

    Example:
        >>> from attnjax.positions import Cable
        >>> isinstance(Cable(), SummedCosts), float(Cable().slope(EncodingParams()))
        (True, -1.0)
    """

    def initial_bias(self) -> float:
        """The bias b of every head at first."""
        return 0.0

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """head={"w": [N, D], "b": [N]}."""
        w = STD * jax.random.normal(key, (sizes.heads, sizes.model), jnp.float32)
        return EncodingParams(head={"w": w, "b": jnp.full((sizes.heads,), self.initial_bias(), jnp.float32)})

    def cost(self, gate: Float[Array, " T"]) -> Float[Array, " T"]:
        """What tokens with these gates, before any function, add to the position."""
        raise NotImplementedError

    def context(
        self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], before: Float[Array, ""]
    ) -> Float[Array, " T"]:
        """before + sum_{u <= t} cost(w . x_u + b)."""
        del pos
        cost = self.cost(gate_logits(p.head, x))
        return before.astype(cost.dtype) + jnp.cumsum(cost)

    def bias(self, p: EncodingParams, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """-n: the cost of the way from the key to the query."""
        del p
        return -n.astype(compute_dtype(n))

    def slope(self, p: EncodingParams) -> Float[Array, ""]:
        """The number -1 with `bias(p, n) == -n`."""
        del p
        return jnp.float32(-1.0)


@dataclasses.dataclass(frozen=True)
class FoX(SummedCosts):
    """Forget gates computed from the tokens; needs a causal mask. `gate_bias`: the initial bias of the gates.

    Example:
        >>> import jax.numpy as jnp
        >>> gates = EncodingParams(head={"w": jnp.zeros(4), "b": jnp.zeros(())})
        >>> positions = FoX().context(gates, jnp.ones((3, 4)), jnp.arange(3), jnp.zeros(()))
        >>> [round(float(p), 4) for p in positions]  # log 2, 2 log 2, 3 log 2
        [0.6931, 1.3863, 2.0794]
    """

    gate_bias: float = 0.0

    needs_causal = "rewards keys in the future for all that is forgotten up to them"

    def __post_init__(self) -> None:
        if not is_number(self.gate_bias) or not math.isfinite(self.gate_bias):
            raise ValueError(f"FoX: gate_bias must be a finite number, got {self.gate_bias!r}")

    def initial_bias(self) -> float:
        return self.gate_bias

    def cost(self, gate: Float[Array, " T"]) -> Float[Array, " T"]:
        """-log sigmoid(gate): what is forgotten."""
        return jax.nn.softplus(-gate)


def gate_logits(head: PyTree, x: Float[Array, "T D"]) -> Float[Array, " T"]:
    """w . x_t + b of every token for one head, in float32, or in float64 where x is; w is rounded to an x of 16 bits.

    Example:
        >>> gate_logits({"w": jnp.ones(2), "b": jnp.ones(())}, jnp.array([[1.0, 2.0]])).tolist()
        [4.0]
    """
    return project(x, head["w"]) + jnp.asarray(head["b"], compute_dtype(x))
