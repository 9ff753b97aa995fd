"""`attend`: one call for every encoding, mask and implementation. `explain`: which one runs, and why not the others.

| implementation | T x S memory | serves                                                                              |
|----------------|--------------|-------------------------------------------------------------------------------------|
| "dense"        | yes          | everything; also returns weights                                                    |
| "chunked"      | no           | everything; exact, repeatable gradients of learned biases                           |
| "xla"          | yes          | encodings without a score of their own, any mask                                    |
| "cudnn"        | no           | maps and linear biases on NVIDIA GPUs, 16-bit, causal or full, a window to the left |

`reference.py` has the same in 40 lines, for one head, to read and to compare with.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

import jax

from attnjax.attention.blockwise import blockwise
from attnjax.attention.blockwise.sizes import Tiling
from attnjax.attention.cache import KVCache
from attnjax.attention.dense import dense, dense_weights
from attnjax.attention.dropout import Dropout
from attnjax.attention.fused import cudnn, xla
from attnjax.attention.inputs import AttentionInputs, from_caller, nan_where, prepare
from attnjax.attention.masks import Mask, check_mask
from attnjax.attention.ring import ring
from attnjax.attention.support import Explanation, choose
from attnjax.positions.base import EncodingParams, NoPE, PositionEncoding, validate_encoding
from attnjax.typing import Array, Float, PyTree

WITH_LSE: dict[str, Callable[[AttentionInputs], tuple[Array, Array]]] = {"dense": dense, "chunked": blockwise}
OUTPUT_ONLY: dict[str, Callable[[AttentionInputs], Array]] = {"xla": xla, "cudnn": cudnn}


class Options(TypedDict, total=False):
    """The keywords that `attend_with_lse`, `attention_weights` and `explain` share with `attend`."""

    encoding: PositionEncoding
    params: EncodingParams | None
    q_pos: PyTree
    k_pos: PyTree
    mask: Mask
    scale: float | Array | None
    sink: Float[Array, " N"] | None
    implementation: str | Tiling | None
    cache: KVCache | None
    dropout: Dropout | None
    axis_name: str | None


def attend(  # noqa: PLR0913, every one is a keyword of its own meaning
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    *,
    encoding: PositionEncoding = NoPE(),
    params: EncodingParams | None = None,
    q_pos: PyTree = None,
    k_pos: PyTree = None,
    mask: Mask = Mask(),
    scale: float | Array | None = None,
    sink: Float[Array, " N"] | None = None,
    implementation: str | Tiling | None = None,
    cache: KVCache | None = None,
    dropout: Dropout | None = None,
    axis_name: str | None = None,
) -> Float[Array, "B T N H"]:
    """softmax(score(scale * q.k)) v, with the encoding's maps applied to the raw projections q and k.

    Args:
      q, k, v: raw projections; N a multiple of K (grouped queries). 16-bit arrays stay so in products, which are summed in
        float32; logits, softmax and sums are float32, or float64 where an input is. The result has the type of q.
      encoding, params: the positional encoding and what its `init` returned; `params=None` where nothing is learned. An array
        under the name of one of the encoding's constants replaces it.
      q_pos, k_pos: positions [T] or [B, T], [S] or [B, S], the indices unless given; [B, N, T] and [B, K, S] with a row per
        head; with a last axis of coordinates where the encoding has several. Of encodings that compute positions from
        content, and of compositions with one, what `context_positions` returned.
      mask: see `Mask`. A query that sees no key gets exactly 0. What is masked has no effect, whatever it holds; a query
        that sees a non-finite key or value, or is one, gets a row that is not finite.
      scale: 1/sqrt(H) unless given.
      sink: [N], logits of a key without value that every query of a head sees, -inf for none; see Xiao et al. 2023
        (arXiv:2309.17453).
      implementation: "dense", "chunked", "xla", "cudnn", or None to choose; see `explain`. A `Tiling` is "chunked" with tiles
        of these sizes. "chunked" has first derivatives in reverse mode alone: forward mode and second derivatives need "dense".
      cache: a `KVCache` in place of k and v. The queries are then the last T tokens appended.
      dropout: `Dropout(key, rate)` of attention weights, in dense and chunked.
      axis_name: inside `jax.shard_map`, the mesh axis over which the tokens are spread: each device holds T queries and S keys,
        and key blocks travel in a ring (`ring.py`). Indices and default positions then count over all devices, in their order;
        for another order give positions and `Mask(q_index=, k_index=)`, see `attnjax.indices.zigzag`. Always "chunked",
        with first derivatives only, in reverse mode.

    Returns:
      The output of every head, [B, T, N, H].

    Raises:
      ValueError: arguments that do not fit together, with what came and what is possible.
      NotImplementedError: the implementation asked for cannot serve, with the reason and those that can.

    Reference: Vaswani et al. 2017 (arXiv:1706.03762), eq. 1.

    Example:
        >>> import jax
        >>> from attnjax import Mask, RoPE, attend
        >>> q, k, v = (jax.random.normal(jax.random.key(i), (1, 5, 4, 8)) for i in range(3))
        >>> attend(q, k[:, :, :2], v[:, :, :2], encoding=RoPE(), mask=Mask(causal=True)).shape
        (1, 5, 4, 8)
    """
    inputs = _inputs(
        q, k, v, encoding, params, q_pos, k_pos, mask, scale, sink, implementation, cache, dropout, axis_name
    )
    name = choose(inputs, implementation).implementation
    return _unless_overflown(inputs, _to_heads(_run(name, inputs, implementation))).astype(q.dtype)


def attend_with_lse(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    **options: Unpack[Options],
) -> tuple[Float[Array, "B T N H"], Float[Array, "B T N"]]:
    """`attend`, and the log-sum-exp of every row (-inf where it sees nothing), by which `combine` joins blocks of keys.

    Takes the arguments of `attend`. "dense" and "chunked" return it; gradients flow through both results. A sink
    counts in the log-sum-exp, so give it to one of the blocks alone.

    Example:
        >>> import jax.numpy as jnp
        >>> from attnjax import attend_with_lse
        >>> x = jnp.zeros((1, 3, 2, 4))
        >>> out, lse = attend_with_lse(x, x, x)
        >>> float(lse[0, 0, 0])  # log 3
        1.0986123085021973
    """
    _check_names("attend_with_lse", options)
    inputs = _inputs(q, k, v, **options)
    implementation = options.get("implementation")
    name = choose(inputs, implementation, needs_lse=True).implementation
    out, lse = _with_lse(name, inputs, implementation)
    out, lse = (_unless_overflown(inputs, x) for x in (_to_heads(out), _to_heads(lse[..., None])[..., 0]))
    return out.astype(q.dtype), lse


def attention_weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    **options: Unpack[Options],
) -> Float[Array, "B N T S"]:
    """The weights that `attend` gives each key, for probes and pictures: dense, T x S.

    Takes the arguments of `attend`; `v` is not needed, and `implementation` and `dropout` have no effect. Rows sum to 1, to
    less with a sink or where the encoding's weights are not normalized, and to 0 where nothing is visible. Raises
    NotImplementedError with `axis_name`, because no device holds all keys, and otherwise as `attend` does.

    Example:
        >>> import jax.numpy as jnp
        >>> from attnjax import Mask, attention_weights
        >>> x = jnp.zeros((1, 2, 1, 4))
        >>> attention_weights(x, x, mask=Mask(causal=True))[0, 0].tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    _check_names("attention_weights", options)
    options = {**options, "implementation": None, "dropout": None}
    inputs = _inputs(q, k, k if v is None else v, **options)
    choose(inputs, "dense")
    weights = _unless_overflown(inputs, dense_weights(inputs)[0])
    B, K, G, T, S = weights.shape
    return weights.reshape(B, K * G, T, S)


def explain(q: Any, k: Any = None, v: Any = None, **options: Unpack[Options]) -> Explanation:
    """Which implementation `attend` would run with these arguments, and for each other one the reason why not.

    q, k, v, params and cache may hold arrays or `jax.ShapeDtypeStruct`s; nothing is computed. Raises as `attend` does, except
    for what the values of these arrays alone tell: that a cache holds fewer tokens than there are queries.

    Example:
        >>> import jax
        >>> from attnjax import RoPE, explain
        >>> x = jax.ShapeDtypeStruct((1, 4096, 8, 64), "float32")
        >>> explain(x, x, x, encoding=RoPE()).implementation
        'chunked'
    """
    _check_names("explain", options)
    found: list[Explanation] = []
    params, cache = options.pop("params", None), options.pop("cache", None)

    def trace(q, k, v, params, cache):
        inputs = _inputs(q, k, v, params=params, cache=cache, **options)
        found.append(choose(inputs, options.get("implementation")))

    jax.eval_shape(trace, q, k, v, params, cache)
    return found[0]


def _check_names(function: str, options: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword that `attend` does not have, as Python does for its own."""
    for name in options.keys() - Options.__annotations__.keys():
        raise TypeError(
            f"{function}() got an unexpected keyword argument {name!r}; it has {', '.join(Options.__annotations__)}"
        )


def _inputs(  # noqa: PLR0913, the arguments of attend
    q,
    k,
    v,
    encoding: PositionEncoding = NoPE(),
    params: EncodingParams | None = None,
    q_pos: PyTree = None,
    k_pos: PyTree = None,
    mask: Mask = Mask(),
    scale: float | Array | None = None,
    sink: Array | None = None,
    implementation: str | Tiling | None = None,
    cache: KVCache | None = None,
    dropout: Dropout | None = None,
    axis_name: str | None = None,
) -> AttentionInputs:
    del implementation
    validate_encoding("encoding", encoding)
    check_mask(mask)
    if not (dropout is None or isinstance(dropout, Dropout)):
        raise ValueError(f"dropout must be Dropout(key, rate) or None, got {dropout!r}")
    if cache is None:
        if k is None or v is None:
            raise ValueError("attend needs k and v, or a cache")
        return prepare(q, from_caller(q, k, v, k_pos), encoding, params, q_pos, mask, scale, sink, dropout, axis_name)
    if axis_name is not None:
        raise ValueError("a cache holds the keys of one device: attend without axis_name, or pass k and v")
    if k is not None or v is not None or k_pos is not None:
        raise ValueError("with a cache, k, v and k_pos come from it: append them, and pass only the cache")
    if cache.encoding != encoding:
        raise ValueError(f"the cache holds keys for {cache.encoding}, attend got encoding={encoding}")
    source = cache.read(mask)
    index, pos = cache.queries(q.shape[1])
    q_index = index if mask.q_index is None else mask.q_index
    # A single query at the end of the cache has no key ahead of it: its mask is causal whether or not it says so.
    at_the_end = q.shape[1] == 1 and mask.q_index is None and mask.k_index is None
    mask = dataclasses.replace(mask, q_index=q_index, causal=mask.causal or at_the_end)
    return prepare(q, source, encoding, params, pos if q_pos is None else q_pos, mask, scale, sink, dropout)


def _run(name: str, inputs: AttentionInputs, implementation: str | Tiling | None) -> Array:
    if name not in OUTPUT_ONLY:
        return _with_lse(name, inputs, implementation)[0]
    if name != "cudnn" or implementation is not None:
        return OUTPUT_ONLY[name](inputs)
    # Chosen, not asked for: the program may be lowered for a CPU of the same host.
    other = choose(inputs._replace(dtype=inputs.compute_dtype), None).implementation
    return jax.lax.platform_dependent(cuda=lambda: cudnn(inputs), default=lambda: WITH_LSE[other](inputs)[0])


def _with_lse(name: str, inputs: AttentionInputs, implementation: str | Tiling | None) -> tuple[Array, Array]:
    if inputs.sequence is not None:
        return ring(inputs, implementation if isinstance(implementation, Tiling) else None)
    return blockwise(inputs, implementation) if isinstance(implementation, Tiling) else WITH_LSE[name](inputs)


def _unless_overflown(inputs: AttentionInputs, x: Array) -> Array:
    """x, or NaN where a cache has lost tokens, whatever the mask hides; gradients are NaN then, too."""
    return x if inputs.overflown is None else x * (1 + nan_where(inputs.overflown, x.dtype))


def _to_heads(x: Array) -> Array:
    B, K, G, T, H = x.shape
    return x.reshape(B, K * G, T, H).swapaxes(1, 2)
