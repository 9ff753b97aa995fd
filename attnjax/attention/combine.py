"""Joining results: blocks of keys by their log-sum-exp, and gating heads for pruning."""

import jax.numpy as jnp

from attnjax.typing import Array, Float, compute_dtype


def combine(
    outs: Float[Array, "blocks B T N H"], lses: Float[Array, "blocks B T N"]
) -> tuple[Float[Array, "B T N H"], Float[Array, "B T N"]]:
    """Attention over the union of disjoint blocks of keys, from the results of each block:

        lse = log sum_b e^(lse_b),    out = sum_b e^(lse_b - lse) out_b

    A block in which a row sees nothing (lse = -inf) does not count; a row that sees nothing in any block stays 0.
    Raises ValueError where the shapes do not fit. Reference: Dao et al. 2022 (arXiv:2205.14135), section 3.1.
    """
    if outs.ndim != 5 or lses.shape != outs.shape[:-1]:
        raise ValueError(
            f"combine needs outs [blocks, B, T, N, H] and lses [blocks, B, T, N], got {outs.shape}, {lses.shape}"
        )
    infinity = jnp.asarray(jnp.inf, lses.dtype)
    top = lses.max(0)
    top = jnp.where(top == -infinity, jnp.zeros_like(top), top)
    weights = jnp.exp(lses - top[None])
    total = weights.sum(0)
    empty = total == 0
    total = jnp.where(empty, jnp.ones_like(total), total)
    out = (weights[..., None] * outs.astype(lses.dtype)).sum(0) / total[..., None]
    return out.astype(outs.dtype), jnp.where(empty, -infinity, top + jnp.log(total))


def gate_heads(out: Float[Array, "B T N H"], gate: Float[Array, "*B N"]) -> Float[Array, "B T N H"]:
    """Each head's output times its gate: [N], or [B, N] per example. 0 removes a head; the gradient at 1 is importance.

    Raises ValueError where the shapes do not fit. Reference: Michel et al. 2019 (arXiv:1905.10650), eq. 1.
    """
    if out.ndim != 4:
        raise ValueError(f"out must have 4 axes [batch, length, heads, head], got shape {out.shape}")
    B, _, N, _ = out.shape
    if gate.shape not in ((N,), (B, N)):
        raise ValueError(f"gate must have shape ({N},) or ({B}, {N}), got {gate.shape}")
    gate = gate[None] if gate.ndim == 1 else gate
    # Multiplied before rounding: the gradient of a gate is a sum over all tokens and channels, which 16 bits cannot hold.
    wide = compute_dtype(out)
    return (out.astype(wide) * gate[:, None, :, None].astype(wide)).astype(out.dtype)
