"""RePo: rotary positions that are predicted from the tokens instead of counted.

    p_t         = w_h . (silu(x_t G) * (x_t C))                 position of token t for head h, any real number
    score(i, j) = scale * q_i . R(p_j - p_i) k_j                pair k turned by p * theta_k,  theta_k = theta^(-2k/H)

Acts through `context`, x[T,D] -> [T], and as RoPE does on queries and keys (`map_q`, `map_k`): q[T,H], p[T] -> [T,H].
Positions are predicted per key head, neither ordered nor accumulated, in float32 whatever the type of x, or in float64 where x
is. In the release every query head has a key head of its own; here the queries of a group share the positions of their key
head.

The release keeps plain RoPE in its first layers (5 of 16) and predicts positions in the others; theta is 500,000 there.

Learned: shared = {"gate": [D, W], "content": [D, W]} and kv_head = {"out": [K, W]} with W = D // 8, all drawn from
N(0, 0.02^2) cut off at three standard deviations: positions are about 0 at first, as without an encoding.
Constants: shared = {"frequencies": of every pair}.

Reference: Li, Zhao, Sproat 2025, arXiv:2512.14391; formula, sizes and initial values are those of the authors' released model
(SakanaAI/repo, mode "sexmh").
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.base import EncodingParams, Sizes
from attnjax.positions.checks import validate
from attnjax.positions.projection import project
from attnjax.positions.rotary import Layout, Rotation, check_even, check_layout, rotate
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype

SHARE = 8
"""The predictor has a hidden unit for this many channels of x."""
STD, CUTOFF = 0.02, 3.0
"""Standard deviation of initial weights, and where it is cut off, in standard deviations."""


@dataclasses.dataclass(frozen=True)
class RePo(Rotation):
    """RoPE at positions that each head predicts from the tokens. `theta`: base of the frequencies; `layout`: see `rotary.py`.

    Example:
        >>> import jax.numpy as jnp
        >>> p = EncodingParams(kv_head={"out": jnp.ones(1)}, shared={"gate": jnp.ones((2, 1)), "content": jnp.ones((2, 1))})
        >>> x = jnp.array([[0.0, 0.0], [1.0, 1.0]])
        >>> [round(float(p), 4) for p in RePo().context(p, x, jnp.arange(2), jnp.zeros(()))]  # 0, 2 * 2 * sigmoid(2)
        [0.0, 3.5232]
    """

    theta: float = 10_000.0
    layout: Layout = "half"

    def __post_init__(self) -> None:
        validate("RePo", theta=self.theta)
        check_layout(self.layout)

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """shared={"gate", "content": [D, W]} and kv_head={"out": [K, W]}."""
        width = max(1, sizes.model // SHARE)
        gate, content, out = jax.random.split(key, 3)
        draw = lambda key, *shape: STD * jax.random.truncated_normal(key, -CUTOFF, CUTOFF, shape, jnp.float32)
        shared = {"gate": draw(gate, sizes.model, width), "content": draw(content, sizes.model, width)}
        return EncodingParams(kv_head={"out": draw(out, sizes.kv_heads, width)}, shared=shared)

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """shared={"frequencies"}: radians per position of every pair."""
        del length
        check_even("RePo", sizes.head_dim)
        return EncodingParams(shared={"frequencies": exact(geometric(sizes.head_dim // 2, self.theta))})

    def context(
        self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], before: Float[Array, ""]
    ) -> Float[Array, " T"]:
        """w . (silu(x G) * (x C)); nothing is accumulated, so `before` does not count."""
        del pos, before
        hidden = jax.nn.silu(project(x, p.shared["gate"])) * project(x, p.shared["content"])
        return project(hidden, p.kv_head["out"])

    def turn(self, p: EncodingParams, x: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """R(pos) x."""
        return rotate(x, angles(pos, p.shared["frequencies"], compute_dtype(x)), self.layout)
