"""`attend`: one call for every encoding, mask and implementation. `explain`: which one runs, and why not the others.

| implementation      | T x S memory | serves                                                                  |
|---------------------|--------------|-------------------------------------------------------------------------|
| "dense"             | yes          | everything; also returns weights                                        |
| "chunked"           | no           | everything; exact, repeatable gradients of learned biases               |
| "xla"               | yes          | encodings without a bias tensor, any mask                               |
| "cudnn"             | no           | the same on NVIDIA GPUs, 16-bit, causal or full, window to the left     |
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from attnjax.attention.cache import KVCache
from attnjax.attention.chunked import chunked
from attnjax.attention.dense import dense, dense_weights
from attnjax.attention.fused import cudnn, xla
from attnjax.attention.masks import Mask
from attnjax.attention.problem import Keys, Problem, prepare
from attnjax.attention.support import Explanation, choose
from attnjax.attention.tile import Dropout
from attnjax.attention.tiling import Tiling
from attnjax.positions.base import EncodingParams, NoPE, PositionEncoding
from attnjax.typing import Array, ArrayLike, Float

WITH_LSE: dict[str, Callable[[Problem], tuple[Array, Array]]] = {"dense": dense, "chunked": chunked}
OUTPUT_ONLY: dict[str, Callable[[Problem], Array]] = {"xla": xla, "cudnn": cudnn}


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    *,
    encoding: PositionEncoding = NoPE(),
    params: EncodingParams | None = None,
    q_pos: ArrayLike | None = None,
    k_pos: ArrayLike | None = None,
    mask: Mask = Mask(),
    scale: float | Array | None = None,
    implementation: str | Tiling | None = None,
    cache: KVCache | None = None,
    dropout: Dropout | None = None,
) -> Float[Array, "B T N H"]:
    """softmax(score(scale * q.k)) v, with the encoding's maps applied to the raw projections q and k.

    Args:
      q, k, v: raw projections; N a multiple of K (grouped queries). Any float type; computed in float32, or in float64
        where an input is float64; the result has the type of q.
      encoding, params: the positional encoding and what its `init` returned; `params=None` where nothing is learned.
      q_pos, k_pos: positions [T] or [B, T], [S] or [B, S]; the indices unless given.
      mask: see `Mask`. A query that sees no key gets exactly 0. A non-finite key, value or query makes
        exactly those rows NaN that see it.
      scale: 1/sqrt(H) unless given.
      implementation: "dense", "chunked", "xla", "cudnn", or None to choose; see `explain`. A `Tiling` is "chunked" with
        tiles of these sizes.
      cache: a `KVCache` in place of k and v. The queries are then the last T tokens appended.
      dropout: `Dropout(key, rate)` of attention weights, in dense and chunked.

    Raises ValueError for arguments that do not fit together, and NotImplementedError where the implementation asked for
    cannot serve; both say what came and what is possible. Reference: Vaswani et al. 2017 (arXiv:1706.03762), eq. 1.
    """
    problem = _problem(q, k, v, encoding, params, q_pos, k_pos, mask, scale, cache, dropout)
    name = choose(problem, implementation).implementation
    out = OUTPUT_ONLY[name](problem) if name in OUTPUT_ONLY else _with_lse(name, problem, implementation)[0]
    return _to_heads(out).astype(q.dtype)


def attend_with_lse(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    *,
    encoding: PositionEncoding = NoPE(),
    params: EncodingParams | None = None,
    q_pos: ArrayLike | None = None,
    k_pos: ArrayLike | None = None,
    mask: Mask = Mask(),
    scale: float | Array | None = None,
    implementation: str | Tiling | None = None,
    cache: KVCache | None = None,
    dropout: Dropout | None = None,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B T N"]]:
    """`attend`, and the log-sum-exp of every row (-inf where it sees nothing), by which `combine` joins blocks of keys.

    Only "dense" and "chunked" return it. Gradients flow through both results.
    """
    problem = _problem(q, k, v, encoding, params, q_pos, k_pos, mask, scale, cache, dropout)
    name = choose(problem, implementation, needs_lse=True).implementation
    out, lse = _with_lse(name, problem, implementation)
    return _to_heads(out).astype(q.dtype), _to_heads(lse[..., None])[..., 0]


def attention_weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None = None,
    v: Float[Array, "B S K H"] | None = None,
    *,
    encoding: PositionEncoding = NoPE(),
    params: EncodingParams | None = None,
    q_pos: ArrayLike | None = None,
    k_pos: ArrayLike | None = None,
    mask: Mask = Mask(),
    scale: float | Array | None = None,
    cache: KVCache | None = None,
) -> Float[Array, "B N T S"]:
    """The weights that `attend` gives each key, for probes and pictures: dense, T x S. `v` is not needed.

    Rows sum to 1, or to 0 where nothing is visible.
    """
    v = k if v is None else v
    problem = _problem(q, k, v, encoding, params, q_pos, k_pos, mask, scale, cache, None)
    weights, _ = dense_weights(problem)
    B, K, G, T, S = weights.shape
    return weights.reshape(B, K * G, T, S)


def explain(
    q: Any,
    k: Any = None,
    v: Any = None,
    *,
    encoding: PositionEncoding = NoPE(),
    params: EncodingParams | None = None,
    q_pos: ArrayLike | None = None,
    k_pos: ArrayLike | None = None,
    mask: Mask = Mask(),
    scale: float | Array | None = None,
    implementation: str | Tiling | None = None,
    cache: KVCache | None = None,
    dropout: Dropout | None = None,
) -> Explanation:
    """Which implementation `attend` would run with these arguments, and for each other one the reason why not.

    q, k, v and params may hold arrays or `jax.ShapeDtypeStruct`s; nothing is computed. Raises as `attend` does.
    """
    found: list[Explanation] = []

    def trace(q, k, v, params, cache):
        problem = _problem(q, k, v, encoding, params, q_pos, k_pos, mask, scale, cache, dropout)
        found.append(choose(problem, implementation))

    jax.eval_shape(trace, q, k, v, params, cache)
    return found[0]


def _problem(q, k, v, encoding, params, q_pos, k_pos, mask: Mask, scale, cache: KVCache | None, dropout) -> Problem:
    if not isinstance(encoding, PositionEncoding):
        raise ValueError(f"encoding must be a PositionEncoding such as RoPE(), got {encoding!r}")
    if cache is None:
        if k is None or v is None:
            raise ValueError("attend needs k and v, or a cache")
        return prepare(q, Keys(k, v, k_pos, None, None), encoding, params, q_pos, mask, scale, dropout)
    if k is not None or v is not None or k_pos is not None:
        raise ValueError("with a cache, k, v and k_pos come from it: append them, and pass only the cache")
    if cache.encoding != encoding:
        raise ValueError(f"the cache holds keys for {cache.encoding}, attend got encoding={encoding}")
    keys = cache.read(mask)
    index, pos = cache.queries(q.shape[1])
    q_index = index if mask.q_index is None else mask.q_index
    # A single query at the end of the cache has no key ahead of it: its mask is causal whether or not it says so.
    mask = dataclasses.replace(mask, q_index=q_index, causal=mask.causal or q.shape[1] == 1)
    return prepare(q, keys, encoding, params, pos if q_pos is None else q_pos, mask, scale, dropout)


def _with_lse(name: str, problem: Problem, implementation: str | Tiling | None) -> tuple[Array, Array]:
    return chunked(problem, implementation) if isinstance(implementation, Tiling) else WITH_LSE[name](problem)


def _to_heads(x: Array) -> Array:
    B, K, G, T, H = x.shape
    return x.reshape(B, K * G, T, H).swapaxes(1, 2)
