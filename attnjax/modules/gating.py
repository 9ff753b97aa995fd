"""Gated attention: a sigmoid of the layer's input on the output of the heads, before they are projected.

    out = W_o (sigmoid(x W_g) * heads)          heads[B,T,N,H] = softmax(score) v

with one gate per query head, W_g [D,N], or one per channel of each, W_g [D,N,H]. x is what the queries are made from. A gate
lets a head say nothing where it finds nothing, so that no key needs to serve as a sink.

Reference: Qiu et al. 2025 (arXiv:2505.06708), gates after the attention of each head, in their code "headwise" and
"elementwise".
"""

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from attnjax.config.architecture import Gated
from attnjax.modules.parameters import linear
from attnjax.typing import Array, Float, compute_dtype

SPREAD = 0.02
"""Standard deviation of the first kernel, as published: gates are then about a half."""


def gate_kernel(model: int, heads: int, head_dim: int, gated: Gated, *, dtype: str, rngs: nnx.Rngs) -> nnx.Param:
    """The kernel W_g, [D,N] for "head" and [D,N,H] for "channel", of small normal numbers. There is no bias.

    Example:
        >>> gate_kernel(16, 4, 8, "channel", dtype="float32", rngs=nnx.Rngs(0)).shape
        (16, 4, 8)
    """
    shape = (model, heads) if gated == "head" else (model, heads, head_dim)
    return nnx.Param(jax.nn.initializers.normal(SPREAD)(rngs.params(), shape, jnp.dtype(dtype)))


def apply_gate(
    out: Float[Array, "B T N H"], x: Float[Array, "B T D"], kernel: Float[Array, "D N *H"]
) -> Float[Array, "B T N H"]:
    """sigmoid(x W_g) times the output of every head, or of every channel, in the type of `out`.

    Example:
        >>> apply_gate(jnp.ones((1, 1, 2, 1)), jnp.zeros((1, 1, 3)), jnp.ones((3, 2))).ravel().tolist()
        [0.5, 0.5]
    """
    B, T, N, H = out.shape
    chex.assert_shape(x, (B, T, None))
    chex.assert_shape(kernel, (x.shape[2], N) if kernel.ndim == 2 else (x.shape[2], N, H))
    logits = linear(x, kernel)
    wide = compute_dtype(logits, out)
    gates = jax.nn.sigmoid(logits.astype(wide))
    # Multiplied before rounding, so that the gradient of a head's gate, a sum over its channels, is not summed in 16 bits.
    return (out.astype(wide) * (gates[..., None] if kernel.ndim == 2 else gates)).astype(out.dtype)
