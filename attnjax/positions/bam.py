"""BAM, the Bayesian attention mechanism: the bias is the logarithm of a generalized Gaussian of the distance, learned.

    score[i, j] = scale * q_i . k_j - exp(a_h) * (|i - j + m_h| + 1e-5)^b_h,    m_h = exp(u_h) - exp(-u_h)

ALiBi is b = 1, m = 0 and NoPE b = 0, where every key has the same bias. A head may learn b < 0, which hides near keys and
leaves far ones alike. Acts through `bias`. The exponent a + b ln(...) is cut off at 80, so that no bias is infinite.

Learned: alpha [N] (a), beta [N] (b) and, with `location`, mu [N] (u). All are 0 at first, as in the authors' runs, which train
a and b alone: attention then starts without position. The authors' best models have SSMax beside it, which multiplies the bias
too; here `compose(SSMax(), BAM())` multiplies the products of queries and keys.

Reference: Bianchessi, Aguirre, Barros, Kupssinskü 2026 (arXiv:2505.22842); the form of the three numbers is that of the
authors' code (ArthurSBianchessi/BAM, `AttentionPrior`).
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.typing import Array, Float

EPSILON, LARGEST = 1e-5, 80.0


@dataclasses.dataclass(frozen=True)
class BAM(PositionEncoding):
    """Bias -exp(a) (|n + m| + 1e-5)^b with a scale, a shape and, with `location`, a place m of its top, learned per head.

    Example:
        >>> p = {"alpha": jnp.float32(0.0), "beta": jnp.float32(2.0)}
        >>> BAM().bias(p, jnp.array([0.0, 1.0, 3.0])).round(3).tolist()
        [-0.0, -1.0, -9.0]
    """

    location: bool = False

    @property
    def per_head(self) -> tuple[str, ...]:
        return ("alpha", "beta", "mu") if self.location else ("alpha", "beta")

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns zeros [N]."""
        return {name: jnp.zeros((sizes.heads,), jnp.float32) for name in self.per_head}

    def bias(self, p: Params, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns -exp(a + b ln(|n + m| + 1e-5))."""
        away = jnp.abs(n + 2 * jnp.sinh(p["mu"]) if self.location else n) + EPSILON
        return -jnp.exp(jnp.minimum(p["alpha"] + p["beta"] * jnp.log(away), LARGEST))
