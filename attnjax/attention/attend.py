"""`attend`: one call for every encoding, mask and implementation. `explain`: which one runs, and why not the others.

| implementation | T x S memory | serves                                                                                |
|----------------|--------------|---------------------------------------------------------------------------------------|
| "dense"        | yes          | everything; also returns weights                                                      |
| "chunked"      | no           | all but encodings of the whole table and dropout; exact, repeatable gradients         |
| "cudnn"        | no           | maps, linear biases, and biases as an array, on NVIDIA GPUs, 16-bit, causal or full   |

One call: `attend` -> `call.prepare` (checks, layout, maps) -> `choice.run` -> `dense` | `blockwise` | `fused` -> `hooks`.
`reference.py` has the same in 40 lines, for one head, to read and to compare with.
"""

from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.blockwise import Tiling
from attnjax.attention.cache import KVCache
from attnjax.attention.call import prepare
from attnjax.attention.choice import Explanation, choose, run
from attnjax.attention.dense import dense_weights
from attnjax.attention.masks import Mask
from attnjax.attention.record import Call, Dropout
from attnjax.positions.base import NoPE, PositionEncoding
from attnjax.typing import Array, Float, PyTree


class Options(TypedDict, total=False):
    """The keywords of `attend`, `attend_with_lse`, `attention_weights` and `explain` that say what is computed."""

    encoding: PositionEncoding
    params: PyTree
    q_pos: PyTree
    k_pos: PyTree
    mask: Mask
    scale: float | Array | None
    sink: Float[Array, " N"] | None
    cache: KVCache | None
    dropout: Dropout | None
    axis_name: str | None
    length: int | None


def attend(  # noqa: PLR0913, every one is a keyword of its own meaning
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    *,
    encoding: PositionEncoding = NoPE(),
    params: PyTree = None,
    q_pos: PyTree = None,
    k_pos: PyTree = None,
    mask: Mask = Mask(),
    scale: float | Array | None = None,
    sink: Float[Array, " N"] | None = None,
    implementation: str | Tiling | None = None,
    cache: KVCache | None = None,
    dropout: Dropout | None = None,
    axis_name: str | None = None,
    length: int | None = None,
) -> Float[Array, "B T N H"]:
    """Returns softmax(score(scale * q.k)) v, with the encoding's maps applied to the raw projections q and k.

    Args:
      q, k, v: raw projections; N a multiple of K (grouped queries). 16-bit arrays stay so in products, which are summed in
        float32; logits, softmax and sums are float32, or float64 where an input is. The result has the type of q.
      encoding, params: the positional encoding, and the dict that its `init` returned (a tuple of dicts for a composition);
        `params=None` where nothing is learned. An array under the name of one of the encoding's constants replaces it.
      q_pos, k_pos: positions [T] or [B, T], [S] or [B, S], with a last axis of coordinates where the encoding has `axes`; the
        indices unless given, which restart at each document of `mask.q_segments`. [B, N, T] and [B, K, S] have a row per head.
        For encodings that compute positions from content, the result of `context_positions`. A tuple has one entry for each
        part of a composition.
      mask: see `Mask`. A query that sees no key gets exactly 0. Hidden keys have no effect; those of `k_valid` may hold NaN.
      scale: 1/sqrt(H) unless given.
      sink: [N], logits of a key without value that every query of a head sees, -inf for none; see Xiao et al. 2023
        (arXiv:2309.17453).
      implementation: "dense", "chunked", "cudnn", or None to choose; see `explain`. A `Tiling` is "chunked" with tiles
        of these sizes. Forward mode and second derivatives need "dense".
      cache: a `KVCache` in place of k and v. The queries are then the last T tokens appended.
      dropout: `Dropout(key, rate)` of attention weights, in "dense".
      axis_name: inside `jax.shard_map`, the mesh axis over which the tokens are spread: each device holds T queries and S keys,
        and key blocks go around in a ring (`ring.py`). Indices and default positions then count over all devices, in their
        order; for another order give positions and `Mask(q_index=, k_index=)`, see `attnjax.indices.zigzag`.
      length: the number of positions by which DynamicNTK and LongRoPE choose their frequencies; the keys of the call, or the
        capacity of the cache, unless given.

    Raises:
      ValueError: arguments that do not fit together, with what came and what is possible.
      NotImplementedError: the implementation asked for cannot serve, with the reason and those that can.

    Reference: Vaswani et al. 2017 (arXiv:1706.03762), eq. 1.

    Example:
        >>> from attnjax import Mask, RoPE, attend
        >>> q, k, v = (jax.random.normal(jax.random.key(i), (1, 5, 4, 8)) for i in range(3))
        >>> attend(q, k[:, :, :2], v[:, :, :2], encoding=RoPE(), mask=Mask(causal=True)).shape
        (1, 5, 4, 8)
    """
    options: Options = {"encoding": encoding, "params": params, "q_pos": q_pos, "k_pos": k_pos, "mask": mask}
    more: Options = {"scale": scale, "sink": sink, "cache": cache, "dropout": dropout}
    call = prepare(q, k, v, **options, **more, axis_name=axis_name, length=length)
    out, _ = run(call, implementation)
    return _by_token(call, out).astype(q.dtype)


def attend_with_lse(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    *,
    implementation: str | Tiling | None = None,
    **options: Unpack[Options],
) -> tuple[Float[Array, "B T N H"], Float[Array, "B T N"]]:
    """Returns `attend`, and the log-sum-exp of every row (-inf where it sees nothing), by which `combine` joins blocks of keys.

    Takes the arguments of `attend`. "dense" and "chunked" return it; gradients flow through both results. A sink counts in the
    log-sum-exp, so give it to one of the blocks alone.

    Example:
        >>> from attnjax import attend_with_lse
        >>> x = jnp.zeros((1, 3, 2, 4))
        >>> out, lse = attend_with_lse(x, x, x)
        >>> float(lse[0, 0, 0])  # log 3
        1.0986123085021973
    """
    call = prepare(q, k, v, **options)
    out, lse = run(call, implementation, needs_lse=True)
    assert lse is not None
    return _by_token(call, out).astype(q.dtype), _by_token(call, lse[..., None])[..., 0]


def attention_weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    *,
    implementation: str | Tiling | None = None,
    **options: Unpack[Options],
) -> Float[Array, "B N T S"]:
    """Returns the weights that `attend` gives each key, for probes and pictures: dense, T x S.

    Takes the arguments of `attend`; `v` is not needed, and `implementation` and `dropout` have no effect. Rows sum to 1, to
    less with a sink or where the encoding's weights are not normalized, and to 0 where nothing is visible. Raises
    NotImplementedError with `axis_name`, because no device holds all keys, and otherwise as `attend` does.

    Example:
        >>> from attnjax import Mask, attention_weights
        >>> x = jnp.zeros((1, 2, 1, 4))
        >>> attention_weights(x, x, mask=Mask(causal=True))[0, 0].tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    del implementation
    call = prepare(q, k, k if v is None else v, **{**options, "dropout": None})
    choose(call, "dense")
    return _by_token(call, dense_weights(call)[0]).swapaxes(1, 2)


def explain(
    q: Any, k: Any = None, v: Any = None, *, implementation: str | Tiling | None = None, **options: Unpack[Options]
) -> Explanation:
    """Returns which implementation `attend` would run with these arguments, and for each other one the reason why not.

    q, k, v, params and cache may hold arrays or `jax.ShapeDtypeStruct`s; nothing is computed. Raises as `attend` does, except
    for errors that only the values of these arrays tell.

    Example:
        >>> from attnjax import RoPE, explain
        >>> x = jax.ShapeDtypeStruct((1, 4096, 8, 64), "float32")
        >>> explain(x, x, x, encoding=RoPE()).implementation
        'chunked'
    """
    found: list[Explanation] = []
    params, cache = options.pop("params", None), options.pop("cache", None)

    def trace(q: Array, k: Any, v: Any, params: PyTree, cache: Any) -> None:
        call = prepare(q, k, v, **{**options, "params": params, "cache": cache})
        found.append(choose(call, implementation))

    jax.eval_shape(trace, q, k, v, params, cache)
    return found[0]


def _by_token(call: Call, x: Float[Array, "B K G T H"]) -> Float[Array, "B T N H"]:
    """x with the heads on one axis behind the tokens, or NaN where a cache has lost tokens."""
    B, K, G, T, H = x.shape
    x = x.reshape(B, K * G, T, H).swapaxes(1, 2)
    # By a factor: the gradient of a choice between x and NaN is always NaN.
    return x if call.overflown is None else x * jnp.where(call.overflown, np.nan, 1.0).astype(x.dtype)
