"""Selective RoPE: rotations by angles that the tokens add up, one angle per head and pair of channels.

    u_t         = x_t in K chunks of D/K channels, each divided by sqrt(sum of squares + 1e-6)
    phi_t       = (u_t A) B_h                                   F = H/2 numbers per token and key head, of rank r
    psi_t,k     = sum_{j < 4} c_h,k,j phi_{t-3+j},k             causal convolution of every channel, zeros before the start
    P_t,k       = sum_{u <= t} psi_u,k                          the token's own psi counts
    score(i, j) = scale * q_i . R(P_j - P_i) k_j                pair k turned by P_k * theta_k,  theta_k = m * theta^(-2k/H)

Acts through `context`, x[T,D] -> [T,4F], and on queries and keys (`map_q`, `map_k`): q[T,H], pos[T,4F] -> [T,H]. The
convolution needs the last three phi of the past, so a position carries them: it is (P_t, phi_{t-2}, phi_{t-1}, phi_t), of
which the maps read P_t, and a decoder goes on from the position of the token before. Positions are float32 whatever the type
of x, or float64 where x is.

Where several documents are packed into one row, the first three tokens of a document see phi of the one before it.

The release has one key head per query head; here the queries of a group share the angles of their key head. Of its options,
this is the configuration of its language models: low rank, convolution, no gate, no phase bias, fixed temperatures.

Learned: shared = {"down": [D, r]} (A), kv_head = {"up": [K, r, F], "convolution": [K, 4, F]} (B, c), all ~ N(0, 0.02^2), so
that all angles are about 0 at first. Constants: shared = {"temperature": [F] (theta_k), "heads": [K], whose length is the
number of chunks}.

Reference: Movahedi, Carstensen, Afzal, Hutter, Orvieto, Cevher 2025, arXiv:2511.17388; the formula and initial values are those
of the authors' code (timurcarstensen/selective-rope, `SelectiveRoPE`), whose input is that of the layer, not the queries.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.angles import geometric
from attnjax.positions.base import EncodingParams, Sizes, Trait
from attnjax.positions.checks import MOST, validate, validate_integer
from attnjax.positions.projection import project
from attnjax.positions.rotary import Layout, Rotation, check_even, check_layout, rotate
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype

TAPS = 4
"""Width of the convolution."""
STD, EPSILON = 0.02, 1e-6


@dataclasses.dataclass(frozen=True)
class SelectiveRoPE(Rotation):
    """Rotations by sums of angles computed from the tokens.

    Hyper-parameters: `rank` of the projection; `theta`, base of the temperatures; `temperature`, the highest of them (m);
    `layout`, see `rotary.py`.

    Example:
        >>> import jax
        >>> from attnjax import Sizes, context_positions
        >>> encoding, sizes = SelectiveRoPE(rank=2), Sizes(model=8, heads=2, kv_heads=2, head_dim=4)
        >>> params = encoding.init(jax.random.key(0), sizes)
        >>> context_positions(encoding, params, jnp.ones((1, 5, 8)), jnp.arange(5), sizes).shape  # B, K, T, 4 * H / 2
        (1, 2, 5, 8)
    """

    rank: int = 32
    theta: float = 500_000.0
    temperature: float = 1.0
    layout: Layout = "half"

    def __post_init__(self) -> None:
        validate_integer("SelectiveRoPE", most=MOST, rank=self.rank)
        validate("SelectiveRoPE", theta=self.theta, temperature=self.temperature)
        check_layout(self.layout)

    @property
    def traits(self) -> Trait:
        """The hooks that are overridden, and positions with an axis of channels."""
        return super().traits | Trait.AXES

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """shared={"down": [D, r]} and kv_head={"up": [K, r, F], "convolution": [K, 4, F]}."""
        K, F = sizes.kv_heads, sizes.head_dim // 2
        down, up, taps = jax.random.split(key, 3)
        draw = lambda key, *shape: STD * jax.random.normal(key, shape, jnp.float32)
        kv_head = {"up": draw(up, K, self.rank, F), "convolution": draw(taps, K, TAPS, F)}
        return EncodingParams(kv_head=kv_head, shared={"down": draw(down, sizes.model, self.rank)})

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """shared={"temperature": [F], "heads": [K]}."""
        del length
        check_even("SelectiveRoPE", sizes.head_dim)
        temperature = self.temperature * geometric(sizes.head_dim // 2, self.theta)
        return EncodingParams(shared={"temperature": temperature, "heads": np.arange(sizes.kv_heads)})

    def context(
        self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], before: Float[Array, "*F"]
    ) -> Float[Array, "T F"]:
        """(P_t, phi_{t-2}, phi_{t-1}, phi_t) of every token. Raises ValueError where K chunks do not divide D."""
        del pos
        (T, D), K, dtype = x.shape, p.shared["heads"].shape[0], compute_dtype(x)
        if D % K:
            raise ValueError(
                f"SelectiveRoPE cuts x into a chunk for each of {K} key heads, which do not divide D = {D}"
            )
        weight = lambda leaf: jnp.asarray(leaf, dtype)
        chunks = x.astype(dtype).reshape(T, K, D // K)
        units = chunks * jax.lax.rsqrt((chunks**2).sum(-1, keepdims=True) + EPSILON)
        # The product of the width of the model is one of 16 bits where x is; the narrow one after it is in float32.
        phi = project(project(units.reshape(T, D).astype(x.dtype), p.shared["down"]), p.kv_head["up"])
        state = jnp.broadcast_to(before.astype(dtype), (TAPS * phi.shape[1],)).reshape(TAPS, -1)
        row = jnp.concatenate([state[1:], phi])
        psi = sum(tap[None] * row[j : j + T] for j, tap in enumerate(weight(p.kv_head["convolution"])))
        last = [row[j : j + T] for j in range(1, TAPS)]
        return jnp.concatenate([state[:1] + jnp.cumsum(psi, 0), *last], 1)

    def turn(self, p: EncodingParams, x: Float[Array, "T H"], pos: Num[ArrayLike, "T A"]) -> Float[Array, "T H"]:
        """R(P) x."""
        dtype = compute_dtype(x)
        temperature = jnp.asarray(p.shared["temperature"], dtype)[None]
        angle = jnp.asarray(pos)[:, : temperature.shape[1]].astype(dtype) * temperature
        return rotate(x, angle, self.layout)
