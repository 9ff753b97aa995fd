"""Our encodings inside other people's modules: `attention_fn=` of Flax (Linen and NNX), `process_heads=` of Equinox."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnjax.attention.attend import Options, attend
from attnjax.attention.call import prepare
from attnjax.attention.masks import Mask, check_mask
from attnjax.attention.record import Dropout
from attnjax.positions.base import PositionEncoding, validate_encoding
from attnjax.typing import Array, ArrayLike, Float, PyTree

WITHOUT_EFFECT = frozenset({"broadcast_dropout", "dtype", "precision", "promote_dtype"})
"""Options of Flax that change the rounding or the pattern of dropout, and that `attend` has its own answer to."""


def attention_fn(
    encoding: PositionEncoding,
    params: PyTree = None,
    *,
    mask: Mask = Mask(),
    q_pos: ArrayLike | None = None,
    k_pos: ArrayLike | None = None,
    implementation: str | None = None,
) -> Callable[..., Array]:
    """A function for `attention_fn=` of `flax.linen.MultiHeadDotProductAttention` and `flax.nnx.MultiHeadAttention`:

        nnx.MultiHeadAttention(..., attention_fn=attention_fn(ALiBi(), mask=Mask(causal=True)))

    Positions and structured masks are given here. What Flax passes on is applied too: a mask [*batch, 1, T, S],
    `is_causal`, `input_positions`, and dropout, drawn for each query, key and head. A query that sees no key gets 0,
    where Flax takes a mean.

    Raises ValueError for what has no place here: a bias array, a mask that differs between heads, sown weights, an
    unknown option, and a step of Flax's own decoding unless q_pos and Mask(q_index=...) say where it is.
    """

    def fn(
        query, key, value, bias=None, mask=None, dropout_rng=None, dropout_rate=0.0, deterministic=False, **options: Any
    ):
        """Attention of query [*batch, T, N, H] over key and value [*batch, S, N, H], as Flax calls its `attention_fn`."""
        _check_options(bias, options)
        lead, one_batch = query.shape[:-3], lambda x: x.reshape(-1, *x.shape[-3:])
        rules = dataclasses.replace(structured, causal=structured.causal or bool(options.get("is_causal", False)))
        rules = _with_flax_mask(rules, mask, (*lead, 1, query.shape[-3], key.shape[-3]))
        of_q, of_k = _positions(q_pos, k_pos, options.get("input_positions"), query, key)
        if mask is not None and query.shape[-3] == 1 < key.shape[-3]:
            _check_decoding(encoding, rules, of_q)
        out = attend(
            *map(one_batch, (query, key, value)),
            encoding=encoding,
            params=params,
            q_pos=of_q,
            k_pos=of_k,
            mask=rules,
            implementation=implementation,
            dropout=_dropout(dropout_rng, dropout_rate) if dropout_rate > 0 and not deterministic else None,
        )
        return out.reshape(*lead, *out.shape[1:])

    validate_encoding("attention_fn: encoding", encoding)
    check_mask(mask)
    structured = mask
    return fn


def _check_options(bias: Array | None, options: dict[str, Any]) -> None:
    if bias is not None:
        raise ValueError("attention_fn takes no bias array: the encoding is the bias")
    if options.get("module") is not None:
        raise ValueError("attention_fn cannot sow weights: call attnjax.attention_weights for them")
    unknown = options.keys() - WITHOUT_EFFECT - {"module", "is_causal", "input_positions"}
    if unknown:
        raise ValueError(f"attention_fn does not know the option {min(unknown)!r}")


def _with_flax_mask(mask: Mask, flax_mask: Array | None, full: tuple[int, ...]) -> Mask:
    if flax_mask is None:
        return mask
    shape = jnp.shape(flax_mask)
    # The axes are compared from the last: leading ones may lack.
    if len(shape) > len(full) or any(m not in (1, n) for m, n in zip(shape[::-1], full[::-1], strict=False)):
        raise ValueError(
            f"attention_fn takes a mask [*batch, 1, T, S], the same for all heads, here {full}; got {shape}"
        )
    allowed = jnp.broadcast_to(jnp.asarray(flax_mask).astype(bool), full).reshape(-1, *full[-2:])
    if mask.allowed is not None:
        allowed &= jnp.broadcast_to(jnp.asarray(mask.allowed), allowed.shape)
    return dataclasses.replace(mask, allowed=allowed)


def _positions(
    q_pos: ArrayLike | None, k_pos: ArrayLike | None, passed: ArrayLike | None, query: Array, key: Array
) -> tuple[ArrayLike | None, ArrayLike | None]:
    """Positions of queries and keys; those passed by Flax are the keys' as well where there are as many keys."""
    if passed is None:
        return q_pos, k_pos
    if q_pos is not None or k_pos is not None:
        raise ValueError("attention_fn got q_pos or k_pos, and input_positions from Flax: pass either")
    passed = passed if passed.ndim == 1 else passed.reshape(-1, passed.shape[-1])
    return passed, passed if query.shape[-3] == key.shape[-3] else None


def _check_decoding(encoding: PositionEncoding, mask: Mask, q_pos: ArrayLike | None) -> None:
    """Flax's `decode=True` hands over one query and the whole cache, and does not say which key is the query's."""
    placed = encoding.has("angle", "map_q", "map_k", "bias", "score")
    if mask.q_index is None and (not mask.span.unlimited or (placed and q_pos is None)):
        raise ValueError(
            "attention_fn got one query, several keys and a mask, as from decode=True of Flax, where the position of "
            "the query is not known: give q_pos and Mask(q_index=...), or decode with attnjax.KVCache"
        )


def _dropout(key: Array | None, rate: float) -> Dropout:
    if key is None:
        raise ValueError(f"attention_fn needs dropout_rng for dropout_rate={rate}, got None")
    return Dropout(key, rate)


def process_heads(
    encoding: PositionEncoding,
    params: PyTree = None,
    *,
    q_pos: ArrayLike | None = None,
    k_pos: ArrayLike | None = None,
) -> Callable[..., tuple[Array, Array, Array]]:
    """A function for `process_heads=` of `equinox.nn.MultiheadAttention`: query, key and value heads [T, N, H] with the
    encoding's maps applied. Positions are [T] and [S]. The mask is Equinox's: an encoding that needs a causal one, such
    as XPos, cannot check it here.

    Raises ValueError for an encoding that acts on scores, which Equinox computes itself, or on embeddings alone, or that makes
    heads wider.
    """
    validate_encoding("process_heads: encoding", encoding)
    if encoding.has("context", "bias", "score"):
        raise ValueError(f"process_heads can only map queries and keys; {encoding} acts on scores: use attend")
    if not encoding.has("angle", "map_q", "map_k"):
        raise ValueError(f"{encoding} maps neither queries nor keys: leave process_heads out, or use attnjax.embed")

    def process(q: Float[Array, "T N H"], k: Float[Array, "S N H"], v: Float[Array, "S N H"]):
        """Queries and keys after the maps of the encoding, and values as they are, as Equinox calls its `process_heads`."""
        # Equinox applies the mask: this one lets encodings through that need a causal mask.
        mask = Mask(causal=True, q_index=np.arange(q.shape[0], dtype=np.int32))
        given: Options = {"encoding": encoding, "params": params, "q_pos": q_pos, "k_pos": k_pos, "mask": mask}
        call = prepare(q[None], k[None], k[None], **given)
        of_q, of_k = (x[0].reshape(-1, *x.shape[3:]).swapaxes(0, 1) for x in (call.rows.q, call.cols.k))
        if of_q.shape != q.shape:
            raise ValueError(
                f"process_heads must keep the width of heads, {encoding} makes {q.shape[-1]} channels {of_q.shape[-1]}: use "
                "attend"
            )
        return of_q, of_k, v

    return process
