"""The temperature of Llama 4: queries grow slowly with their position, in steps, past the length of the training.

    score[i, j] = t_i * scale * q_i . k_j,    t_i = 1 + a * ln(1 + floor((pos_i + 1) / L))

Acts on queries (`map_q`): q[T,H], pos[T] -> [T,H], so biases of other encodings in a composition are not multiplied. t is 1
below position L - 1, and before position 0 too. The steps of whole positions are exact below 2^24 - 1.

Llama 4 has it in the layers without RoPE alone, every fourth one, with a = 0.1 and L = 8,192. Nothing is learned.

Reference: Meta 2025, Llama 4, after SSMax (Nakanishi 2025, arXiv:2501.19399); the formula is that of Hugging Face transformers
(`Llama4TextAttention`, `attn_temperature_tuning`).
"""

import dataclasses

import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding
from attnjax.positions.checks import validate
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class Llama4Temperature(PositionEncoding):
    """Queries times 1 + attn_scale * ln(1 + floor((pos + 1) / floor_scale)).

    Example:
        >>> import jax.numpy as jnp
        >>> q, pos = jnp.ones((3, 1)), jnp.array([8190, 8191, 16383])
        >>> [round(float(x), 4) for x in Llama4Temperature().map_q(EncodingParams(), q, pos)[:, 0]]
        [1.0, 1.0693, 1.1099]
    """

    floor_scale: float = 8192.0
    attn_scale: float = 0.1

    def __post_init__(self) -> None:
        validate("Llama4Temperature", floor_scale=self.floor_scale, attn_scale=self.attn_scale)

    def map_q(self, p: EncodingParams, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """(1 + attn_scale * ln(1 + floor((pos + 1) / floor_scale))) q."""
        del p
        dtype = compute_dtype(q)
        number = lambda x: jnp.asarray(x, dtype)
        x, scale = number(pos) + 1, number(self.floor_scale)
        # XLA multiplies by 1 / scale, which may round a whole number of steps down: put right by what the steps amount to.
        steps = jnp.floor(x / scale)
        steps = steps + ((steps + 1) * scale <= x).astype(dtype)
        steps = steps - (steps * scale > x).astype(dtype)
        factor = 1 + number(self.attn_scale) * jnp.log1p(jnp.maximum(steps, 0))
        return (factor[:, None] * q.astype(dtype)).astype(q.dtype)
