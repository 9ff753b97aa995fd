"""Our encodings inside other people's modules: `attention_fn=` of Flax (Linen and NNX), `process_heads=` of Equinox."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.attention.dispatch import attend
from attnjax.attention.masks import Mask
from attnjax.attention.problem import check_params
from attnjax.attention.tile import Dropout
from attnjax.positions.base import EncodingParams, PositionEncoding
from attnjax.positions.indices import arange
from attnjax.typing import Array, ArrayLike, Float


def attention_fn(
    encoding: PositionEncoding,
    params: EncodingParams | None = None,
    *,
    mask: Mask = Mask(),
    q_pos: ArrayLike | None = None,
    k_pos: ArrayLike | None = None,
    implementation: str | None = None,
) -> Callable[..., Array]:
    """A function for `attention_fn=` of `flax.linen.MultiHeadDotProductAttention` and `flax.nnx.MultiHeadAttention`:

        nnx.MultiHeadAttention(..., attention_fn=attention_fn(ALiBi(), mask=Mask(causal=True)))

    Positions and structured masks are given here; a boolean mask that Flax passes on ([B, 1, T, S]) is applied too, and so is
    its dropout. A bias array, a mask that differs between heads, or sown weights are a ValueError: they have no place here.
    """

    def fn(
        query, key, value, bias=None, mask=None, dropout_rng=None, dropout_rate=0.0, deterministic=False, **options: Any
    ):
        if bias is not None:
            raise ValueError("attention_fn takes no bias array: the encoding is the bias")
        if options.get("module") is not None:
            raise ValueError("attention_fn cannot sow weights; call attnjax.attention_weights for them")
        rules = _with_flax_mask(structured, mask, causal=bool(options.get("is_causal", False)))
        dropping = dropout_rate > 0 and not deterministic
        return attend(
            query,
            key,
            value,
            encoding=encoding,
            params=params,
            q_pos=q_pos,
            k_pos=k_pos,
            mask=rules,
            implementation=implementation,
            dropout=Dropout(dropout_rng, dropout_rate) if dropping else None,
        )

    structured = mask
    return fn


def _with_flax_mask(mask: Mask, flax_mask: Array | None, *, causal: bool) -> Mask:
    if flax_mask is not None:
        if flax_mask.ndim != 4 or flax_mask.shape[1] != 1:
            raise ValueError(
                f"attention_fn takes a mask [B, 1, T, S], the same for all heads, got shape {flax_mask.shape}"
            )
        allowed = flax_mask[:, 0] != 0
        allowed = allowed if mask.allowed is None else allowed & mask.allowed
        mask = _replace(mask, allowed=allowed)
    return _replace(mask, causal=True) if causal else mask


def _replace(mask: Mask, **changes: Any) -> Mask:
    import dataclasses

    return dataclasses.replace(mask, **changes)


def process_heads(
    encoding: PositionEncoding, params: EncodingParams | None = None, *, pos: ArrayLike | None = None
) -> Callable[..., tuple[Array, Array, Array]]:
    """A function for `process_heads=` of `equinox.nn.MultiheadAttention`: query, key and value heads [T, N, H] with the
    encoding's maps applied. Raises ValueError for an encoding that acts on scores, which Equinox computes itself.
    """
    if encoding.has("bias", "score", "carry"):
        raise ValueError(f"process_heads can only map queries and keys; {encoding} acts on scores: use attend")

    def process(q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H"]):
        q_pos, k_pos = (arange(x.shape[0]) if pos is None else jnp.asarray(pos) for x in (q, k))
        length = jnp.max(jnp.asarray(k_pos)) + 1 if encoding.length_dependent else None
        bound = encoding.bind(check_params(encoding, params, q.shape[1]), q.shape[1], length)
        of_q = jax.vmap(lambda head, q: encoding.map_q(head, bound.shared, q, q_pos), in_axes=(0, 1), out_axes=1)
        of_k = jax.vmap(lambda k: encoding.map_k(bound.shared, k, k_pos), in_axes=1, out_axes=1)
        return of_q(bound.head, q), of_k(k), v

    return process
