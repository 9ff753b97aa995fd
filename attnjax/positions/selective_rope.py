"""Selective RoPE: rotations by angles that the tokens add up, one angle per head and pair of channels.

    u_t         = x_t in K chunks of D/K channels, each divided by sqrt(sum of squares + 1e-6)
    phi_t       = (u_t A) B_h                                   F = H/2 numbers per token and key head, of rank r
    psi_t,k     = sum_{j < 4} c_h,k,j phi_{t-3+j},k             causal convolution of every channel, zeros before the start
    P_t,k       = sum_{u <= t} psi_u,k                          the token's own psi counts
    score(i, j) = scale * q_i . R(P_j - P_i) k_j                pair k turned by P_k * theta_k,  theta_k = m * theta^(-2k/H)

Acts through `context`, x[T,D] -> [T,4F], and on queries and keys (`angle`). The convolution needs the last three phi of the
past, so a position carries them: it is (P_t, phi_{t-2}, phi_{t-1}, phi_t), and `angle` reads P_t. A decoder goes on from the
position of the token before; a document that is packed into a row starts with zeros. Positions are float32 whatever the type
of x, or float64 where x is.

The release has one key head per query head; here the queries of a group share the angles of their key head. Of its options,
this is the configuration of its language models: low rank, convolution, no gate, no phase bias, fixed temperatures.

Learned: down [D, r] (A), up [K, r, F] (B) and convolution [K, 4, F] (c), all ~ N(0, 0.02^2), so that all angles are about 0 at
first. Constants: temperature [F] (theta_k), and chunks, as many numbers as there are chunks.

Reference: Movahedi, Carstensen, Afzal, Hutter, Orvieto, Cevher 2025, arXiv:2511.17388; the formula and initial values are those
of the authors' code (timurcarstensen/selective-rope, `SelectiveRoPE`), whose input is that of the layer, not the queries.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Positive
from attnjax.positions.angles import geometric
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.checks import Rows
from attnjax.positions.contextual import Past
from attnjax.positions.projection import project
from attnjax.positions.rotary import Layout, pairs_of
from attnjax.typing import Array, ArrayLike, Float, Num

TAPS = 4
"""Width of the convolution."""
STD, EPSILON = 0.02, 1e-6


@dataclasses.dataclass(frozen=True)
class SelectiveRoPE(PositionEncoding):
    """Rotations by sums of angles computed from the tokens.

    Hyper-parameters: `rank` of the projection; `theta`, base of the temperatures; `temperature`, the highest of them (m);
    `layout`, see `rotary.py`.

    Example:
        >>> from attnjax import Sizes, context_positions
        >>> encoding, sizes = SelectiveRoPE(rank=2), Sizes(model=8, heads=2, kv_heads=2, head_dim=4)
        >>> params = encoding.init(jax.random.key(0), sizes)
        >>> context_positions(encoding, params, jnp.ones((1, 5, 8)), jnp.arange(5), sizes).shape  # B, K, T, 4 * H / 2
        (1, 2, 5, 8)
    """

    rank: Rows = 32
    theta: Positive = 500_000.0
    temperature: Positive = 1.0
    layout: Layout = "half"

    per_kv_head = ("up", "convolution")

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns down [D, r], up [K, r, F] and convolution [K, 4, F]."""
        K, F = sizes.kv_heads, sizes.head_dim // 2
        down, up, taps = jax.random.split(key, 3)
        draw = lambda key, *shape: STD * jax.random.normal(key, shape, jnp.float32)
        return {
            "down": draw(down, sizes.model, self.rank),
            "up": draw(up, K, self.rank, F),
            "convolution": draw(taps, K, TAPS, F),
        }

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns temperature [F] and chunks [K]. Raises ValueError for an odd head dimension."""
        temperature = self.temperature * geometric(pairs_of("SelectiveRoPE", sizes.head_dim), self.theta)
        return {"temperature": temperature, "chunks": np.arange(sizes.kv_heads)}

    def features(self, sizes: Sizes) -> tuple[int, ...]:
        """Returns (4F,)."""
        return (TAPS * (sizes.head_dim // 2),)

    def context(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], past: Past) -> Float[Array, "T 4F"]:
        """Returns (P_t, phi_{t-2}, phi_{t-1}, phi_t) of every token. Raises ValueError where K chunks do not divide D."""
        (T, D), K = x.shape, len(p["chunks"])
        if D % K:
            raise ValueError(
                f"SelectiveRoPE cuts x into a chunk for each of {K} key heads, which do not divide D = {D}"
            )
        chunks = x.astype(p["down"].dtype).reshape(T, K, D // K)
        units = chunks * jax.lax.rsqrt((chunks**2).sum(-1, keepdims=True) + EPSILON)
        # The product of the width of the model is one of 16 bits where x is; the narrow one after it is in float32.
        phi = project(project(units.reshape(T, D).astype(x.dtype), p["down"]), p["up"])
        state = past.state.reshape(TAPS, -1)
        windows = past.windows(phi, state[1:])
        sums = past.sums((windows * p["convolution"][:, None]).sum(0), state[0])
        return jnp.concatenate([sums, *windows[1:]], axis=1)

    def angle(self, p: Params, pos: Num[ArrayLike, "T 4F"]) -> Float[Array, "T F"]:
        """Returns P * theta_k."""
        temperature = p["temperature"][None]
        return pos[:, : temperature.shape[1]].astype(temperature.dtype) * temperature
