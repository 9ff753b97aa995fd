"""SSMax, scalable softmax: queries grow with the logarithm of the number of keys, so that attention stays sharp at length.

    score[i, j] = s_h * log n_i * scale * q_i . k_j             n_i = pos_i + 1, the keys that a causal query sees
    score[i, j] = (s_h * log n_i + b_h) * scale * q_i . k_j     biased=True

softmax(s log n * z) = n^(s z_j) / sum_j n^(s z_j), which the paper writes. The first query, n = 1, sees one key: a factor of 0
changes nothing there.

Acts on queries (`map_q`): q[T,H], pos[T] -> [T,H], so biases of other encodings in a composition are not multiplied. n is a
function of the position: between whole positions it is pos + 1 too, before position 0 it is 1, and a window or padding that
hides keys does not lower it. A mask that is not causal is refused.

Learned: head = {"s": [N]}, `initial` at first, and "b": [N], 0 at first, where `biased`. 0.43 is the value of the paper's
figure 1; for replacing the softmax of a trained model it takes 0.168, about 1 / mean(log n) for n = 1..1024. It finds that b
helps in training and hurts length generalization.

Reference: Nakanishi 2025, arXiv:2501.19399. The author published no code.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.checks import validate
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class SSMax(PositionEncoding):
    """Queries times s * log(pos + 1); needs a causal mask. `initial`: s at first; `biased`: with a learned summand b.

    Example:
        >>> import jax.numpy as jnp
        >>> p = EncodingParams(head={"s": jnp.float32(0.5)})
        >>> [round(float(x), 4) for x in SSMax().map_q(p, jnp.ones((3, 1)), jnp.array([0, 1, 7]))[:, 0]]  # log(n) / 2
        [0.0, 0.3466, 1.0397]
    """

    initial: float = 0.43
    biased: bool = False

    needs_causal = "takes pos + 1 for the number of keys that a query sees"

    def __post_init__(self) -> None:
        validate("SSMax", initial=self.initial)
        if not isinstance(self.biased, bool):
            raise ValueError(f"SSMax: biased must be True or False, got {self.biased!r}")

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """head={"s": [N]}, and "b": [N] where `biased`."""
        del key
        head = {"s": jnp.full((sizes.heads,), self.initial, jnp.float32)}
        return EncodingParams(head=head | {"b": jnp.zeros((sizes.heads,), jnp.float32)} if self.biased else head)

    def map_q(self, p: EncodingParams, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """(s * log n + b) q with n = max(pos, 0) + 1."""
        dtype = compute_dtype(q)
        factor = jnp.asarray(p.head["s"], dtype) * jnp.log1p(jnp.maximum(jnp.asarray(pos).astype(dtype), 0))
        if self.biased:
            factor = factor + jnp.asarray(p.head["b"], dtype)
        return (factor[:, None] * q.astype(dtype)).astype(q.dtype)
