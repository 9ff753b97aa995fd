"""RePo: rotary positions that are predicted from the tokens instead of counted.

    p_t         = w_h . (silu(x_t G) * (x_t C))                 position of token t for head h, any real number
    score(i, j) = scale * q_i . R(p_j - p_i) k_j                pair k turned by p * theta_k,  theta_k = theta^(-2k/H)

Acts through `context`, x[T,D] -> [T], and as RoPE does on queries and keys (`angle`). Positions are predicted per key head,
neither ordered nor accumulated, in float32 whatever the type of x, or in float64 where x is. In the release every query head
has a key head of its own; here the queries of a group share the positions of their key head.

The release keeps plain RoPE in its first layers (5 of 16) and predicts positions in the others; theta is 500,000 there.

Learned: gate [D, W] (G), content [D, W] (C) and out [K, W] (w) with W = D // 8, all drawn from N(0, 0.02^2) cut off at three
standard deviations: positions are about 0 at first, as without an encoding. Constants: frequencies of every pair.

Reference: Li, Zhao, Sproat 2025, arXiv:2512.14391; formula, sizes and initial values are those of the authors' released model
(SakanaAI/repo, mode "sexmh").
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.config.kinds import Positive
from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.contextual import Past
from attnjax.positions.projection import project
from attnjax.positions.rotary import Layout, pairs_of
from attnjax.typing import Array, ArrayLike, Float, Num

SHARE = 8
"""The predictor has a hidden unit for this many channels of x."""
STD, CUTOFF = 0.02, 3.0
"""Standard deviation of initial weights, and where it is cut off, in standard deviations."""


@dataclasses.dataclass(frozen=True)
class RePo(PositionEncoding):
    """RoPE at positions that each head predicts from the tokens. `theta`: base of the frequencies; `layout`: see `rotary.py`.

    Example:
        >>> p = {"out": jnp.ones(1), "gate": jnp.ones((2, 1)), "content": jnp.ones((2, 1))}
        >>> x, start = jnp.array([[0.0, 0.0], [1.0, 1.0]]), Past(jnp.zeros(()), jnp.arange(2))
        >>> RePo().context(p, x, jnp.arange(2), start).round(4).tolist()  # 0, 2 * 2 * sigmoid(2)
        [0.0, 3.5231997966766357]
    """

    theta: Positive = 10_000.0
    layout: Layout = "half"

    per_kv_head = ("out",)

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns gate, content [D, W] and out [K, W]."""
        width = max(1, sizes.model // SHARE)
        gate, content, out = jax.random.split(key, 3)
        draw = lambda key, rows: STD * jax.random.truncated_normal(key, -CUTOFF, CUTOFF, (rows, width), jnp.float32)
        return {
            "gate": draw(gate, sizes.model),
            "content": draw(content, sizes.model),
            "out": draw(out, sizes.kv_heads),
        }

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns frequencies, radians per position of every pair. Raises ValueError for an odd head dimension."""
        return {"frequencies": exact(geometric(pairs_of("RePo", sizes.head_dim), self.theta))}

    def context(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], past: Past) -> Float[Array, " T"]:
        """Returns w . (silu(x G) * (x C)); the past does not count."""
        return project(jax.nn.silu(project(x, p["gate"])) * project(x, p["content"]), p["out"])

    def angle(self, p: Params, pos: Num[ArrayLike, " T"]) -> Float[Array, "T pairs"]:
        """Returns pos * theta_k."""
        return angles(pos, p["frequencies"])
