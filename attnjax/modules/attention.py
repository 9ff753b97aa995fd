"""Multi-head attention: learned projections around `attnjax.attend`.

    q = x W_q,  k = m W_k,  v = m W_v      m is x in self-attention, and the memory in cross-attention
    y = sum_n gate_n g_n attend(q, k, v)_n W_o,n,      g = sigmoid(x W_g) with `attention_gate`, else 1

The gate g is one number per query head, W_g [D, N], or one per channel, W_g [D, N, H]: a head adds nothing where it finds
nothing, so that no key needs to serve as a sink.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2; grouped queries: Ainslie et al. 2023 (arXiv:2305.13245);
factors of heads: Michel et al. 2019 (arXiv:1905.10650); learned gates after each head: Qiu et al. 2025 (arXiv:2505.06708).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.attention import Dropout, KVCache, Mask, attend, attention_weights, gate_heads
from attnjax.attention.call_positions import indices_of_device
from attnjax.config.architecture import AttentionOptions, Window, check_heads
from attnjax.config.kinds import Count, coerce
from attnjax.modules.config import sizes
from attnjax.modules.parameters import (
    add,
    encoding_parameters,
    encoding_values,
    kernel,
    linear,
    normalize,
    widened,
    zeros,
)
from attnjax.positions import NoPE, PositionEncoding, Sizes, context_positions
from attnjax.positions.compose import Compose, parts_of
from attnjax.positions.indices import from_segments
from attnjax.typing import Array, ArrayLike, Float, Int, PyTree, compute_dtype

GATE_STD = 0.02
"""Initial standard deviation of W_g, as published: gates are then about a half."""


class KeysValues(NamedTuple):
    """The projected keys and values of a memory, computed once and used by every decoding step.

    Attributes:
      k: keys [B, S, K, H], after the norm of `qk_norm` and before the encoding.
      v: values [B, S, K, H].
    """

    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K H"]


class MultiHeadAttention(nnx.Module):
    """Maps features [B, T, D] to [B, T, D] by multi-head attention with a positional encoding.

    Every product is computed in the dtype of the input, as in `attend`. The learned parameters are w_q [D, N, H], w_k
    and w_v [D, K, H], w_o [N, H, D]; b_q, b_k, b_v, b_o with `bias`; `q_norm` and `k_norm` over H with `qk_norm`; sink
    [N] with `attention_sink`; w_g [D, N] or [D, N, H] with `attention_gate`; and `position`, the parameters of the encoding.

    Args:
      model, heads: width D of the model and number N of query heads.
      encoding: the positional encoding of queries, keys and scores. Its hook `embed` acts on the input of a model, and
        is applied there (`Encoder`, `Decoder`), not here.
      options: key heads, biases, norms, sinks, gates and the rest, see `AttentionOptions`; a `TransformerConfig` is one.
      shares_encoding: the module has no parameters of the encoding; every call passes those of another layer
        (`params`).
      rngs: the stream `params` draws the initial values.

    Raises:
      ValueError: sizes that do not fit together.

    Example:
      >>> attention = MultiHeadAttention(model=16, heads=2, rngs=nnx.Rngs(0))
      >>> attention(jnp.ones((1, 5, 16)), mask=Mask(causal=True)).shape
      (1, 5, 16)
    """

    def __init__(
        self,
        model: int,
        heads: int,
        *,
        encoding: PositionEncoding = NoPE(),
        options: AttentionOptions = AttentionOptions(),
        shares_encoding: bool = False,
        rngs: nnx.Rngs,
    ):
        model = coerce(Count, model, "MultiHeadAttention.model")
        heads = coerce(Count, heads, "MultiHeadAttention.heads")
        check_heads("MultiHeadAttention", model, heads, options)
        self.sizes, self.encoding = sizes(model, heads, options), encoding
        self.scale, self.implementation = options.scale, options.implementation
        _, N, K, H = self.sizes
        dtype, gate, biased = options.param_dtype, options.attention_gate, options.bias
        matrix = functools.partial(kernel, dtype=dtype, rngs=rngs)
        self.w_q, self.w_k, self.w_v = matrix((model, N, H), 1), matrix((model, K, H), 1), matrix((model, K, H), 1)
        self.w_o = matrix((N, H, model), 2)
        self.b_q, self.b_k, self.b_v = (zeros((n, H), dtype=dtype) if biased else None for n in (N, K, K))
        self.b_o = zeros((model,), dtype=dtype) if options.output_bias_of_attention else None
        self.q_norm = _head_norm(H, options, rngs) if options.qk_norm else None
        self.k_norm = _head_norm(H, options, rngs) if options.qk_norm else None
        self.sink = zeros((N,), dtype=widened(dtype).name) if options.attention_sink else None
        shape = (model, N) if gate == "head" else (model, N, H)
        small = jax.nn.initializers.normal(GATE_STD)
        self.w_g = nnx.Param(small(rngs.params(), shape, jnp.dtype(dtype))) if gate is not None else None
        own = None if shares_encoding else encoding_parameters(encoding, self.sizes, dtype=dtype, rngs=rngs)
        self.position, self.constants = nnx.data(own), nnx.data({})

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | KeysValues | None = None,
        *,
        mask: Mask = Mask(),
        q_pos: ArrayLike | None = None,
        k_pos: ArrayLike | None = None,
        gate: Float[Array, "*B N"] | None = None,
        params: PyTree = None,
        dropout: Dropout | None = None,
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the attention output of the queries x over the keys of x, or of `memory`.

        Args:
          x: features [B, T, D].
          memory: features [B, S, D] to attend to, or their `keys_values`; None is self-attention.
          mask: which keys each query may see, as in `attend`; the default allows every key, later ones too.
          q_pos, k_pos: positions [T] or [B, T], [S] or [B, S], the same on each axis of an encoding with coordinates, or
            [B, T, A]. Unless given, they are the indices, which restart at each document of `mask`. In self-attention k_pos
            is q_pos. An encoding with `context` computes its own from these, and restarts at each document too.
          gate: a factor of the output of each head, [N] or [B, N]; 0 removes a head.
          params: parameters of the encoding, used in place of the module's own.
          dropout: `Dropout(key, rate)` of the attention weights.
          query_indices: the tokens of x whose output is asked for, [B, M]; all of them unless given. `mask` is that of all.
          axis_name: inside `jax.shard_map`, the mesh axis over which the tokens are spread, as in `attend`.

        Raises:
          ValueError: shapes or dtypes that do not fit.
        """
        params, T = self.encoding_params(params), x.shape[1]
        k, v = self._memory(x, memory)
        q_pos, k_pos = self._positions(x, memory, (q_pos, k_pos), params, mask, axis_name)
        if query_indices is not None:
            if q_pos is None and mask.q_segments is not None:
                q_pos = default_positions(T, mask, axis_name)
            q_pos = gather_positions(q_pos, query_indices, self.encoding, self.sizes)
            if axis_name is not None and mask.q_index is None:
                mask = dataclasses.replace(mask, q_index=indices_of_device(axis_name, T))
            x, mask = gather(x, query_indices, 1), gather_mask(mask, query_indices)
        options: dict[str, Any] = {"q_pos": q_pos, "k_pos": k_pos, "params": params, "mask": mask, **self._options()}
        out = attend(self._queries(x), k, v, **options, dropout=dropout, axis_name=axis_name)
        return self._output(out, x, gate)

    def weights(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | KeysValues | None = None,
        *,
        mask: Mask = Mask(),
        q_pos: ArrayLike | None = None,
        k_pos: ArrayLike | None = None,
        params: PyTree = None,
    ) -> Float[Array, "B N T S"]:
        """Returns the attention weights of a call with the same arguments, [B, N, T, S]."""
        params = self.encoding_params(params)
        q_pos, k_pos = self._positions(x, memory, (q_pos, k_pos), params, mask)
        options: dict[str, Any] = {"q_pos": q_pos, "k_pos": k_pos, "params": params, "mask": mask, **self._options()}
        return attention_weights(self._queries(x), self._memory(x, memory).k, **options)

    def cache(
        self, batch: int, capacity: int, *, dtype=jnp.float32, window: Window | None = None, length: int | None = None
    ) -> KVCache:
        """Returns an empty KV cache of `capacity` tokens for `decode`; see `KVCache.create`."""
        _, N, K, H = self.sizes
        options = {"heads": N, "encoding": self.encoding, "window": window, "length": length}
        return KVCache.create(batch, capacity, K, H, dtype, **options)

    def decode(
        self,
        x: Float[Array, "B T D"],
        cache: KVCache,
        *,
        mask: Mask = Mask(causal=True),
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        params: PyTree = None,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Appends T new tokens to the cache, and returns their attention over all cached tokens, and the new cache.

        Args:
          x: features of the new tokens, [B, T, D]; T is 1 when decoding token by token, larger for a chunk.
          cache: from `cache`, or returned by an earlier call.
          mask: as in `attend`, causal unless given.
          pos: positions of the new tokens, as in a call. Unless given, the first is the number of tokens in the cache, padding
            included, whatever the positions of these are.
          valid: booleans [T] or [B, T]; False marks padding.
          params: as in a call.
        """
        params = self.encoding_params(params)
        if self.encoding.has("context"):
            index = cache.index + np.arange(x.shape[1], dtype=np.int32) if pos is None else pos
            before = cache.last_positions()
            pos = context_positions(self.encoding, params, x, index, self.sizes, before, valid=valid)
        pos = on_every_axis(pos, self.encoding, x.shape[0])
        cache = cache.append(*self._memory(x, None), pos, params=params, valid=valid)
        out = attend(self._queries(x), cache=cache, params=params, mask=mask, **self._options())
        return self._output(out, x, None), cache

    def keys_values(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Returns keys and values [B, S, K, H] of a memory [B, S, D], before the encoding maps them."""
        return self._memory(memory, memory)

    def encoding_params(self, params: PyTree = None) -> PyTree:
        """Returns `params` if given, else the module's own as arrays, with the constants of `replace_constants`."""
        params = self.position if params is None else params
        return None if params is None else encoding_values(params, self.constants)

    def _positions(
        self, x: Array, memory: Any, pos: tuple, params: PyTree, mask: Mask, axis_name: str | None = None
    ) -> tuple[PyTree, PyTree]:
        """Returns positions of queries and keys, computed from x where the encoding does so."""
        q_pos, k_pos = (on_every_axis(one, self.encoding, x.shape[0]) for one in pos)
        if not self.encoding.has("context"):
            return q_pos, q_pos if memory is None and k_pos is None else k_pos
        if memory is not None or k_pos is not None:
            raise ValueError(f"{self.encoding} computes positions from content, which serves self-attention alone")
        if axis_name is not None and not (mask.q_index is None and mask.k_index is None):
            raise ValueError(
                f"{self.encoding} sums over the tokens in the order of the devices: with axis_name it needs contiguous blocks, "
                "that is, no q_index and k_index"
            )
        at = default_positions(x.shape[1], mask, axis_name) if pos[0] is None else pos[0]
        options = {"valid": mask.k_valid, "segments": mask.q_segments, "axis_name": axis_name}
        found = context_positions(self.encoding, params, x, at, self.sizes, **options)
        found = on_every_axis(found, self.encoding, x.shape[0])
        return found, found

    def _options(self) -> dict[str, Any]:
        """The arguments of `attend` that are the same in every call."""
        sink = None if self.sink is None else self.sink[...]
        return {"encoding": self.encoding, "scale": self.scale, "sink": sink, "implementation": self.implementation}

    def _queries(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
        return normalize(self.q_norm, self._project("x", x, self.w_q, self.b_q))

    def _memory(self, x: Float[Array, "B T D"], memory: Array | KeysValues | None) -> KeysValues:
        if isinstance(memory, KeysValues):
            return memory
        name, x = ("x", x) if memory is None else ("memory", memory)
        k = normalize(self.k_norm, self._project(name, x, self.w_k, self.b_k))
        return KeysValues(k, self._project(name, x, self.w_v, self.b_v))

    def _project(self, name: str, x: Array, w: nnx.Param, b: nnx.Param | None) -> Float[Array, "B T N H"]:
        if x.ndim != 3 or x.shape[-1] != self.sizes.model or not jnp.issubdtype(x.dtype, jnp.floating):
            came = f"{x.dtype}{list(x.shape)}"
            raise ValueError(f"MultiHeadAttention: {name} must be floats [B, T, {self.sizes.model}], got {came}")
        return add(linear(x, w[...]), b)

    def _output(
        self, out: Float[Array, "B T N H"], x: Float[Array, "B T D"], gate: Float[Array, "*B N"] | None
    ) -> Float[Array, "B T D"]:
        out = out if self.w_g is None else apply_gate(out, x, self.w_g[...])
        out = out if gate is None else gate_heads(out, gate)
        w = self.w_o[...].reshape(-1, self.sizes.model)
        return add(linear(out.reshape(*out.shape[:2], -1), w), self.b_o)


def _head_norm(head_dim: int, options: AttentionOptions, rngs: nnx.Rngs) -> nnx.RMSNorm:
    dtypes = {"dtype": widened(options.param_dtype), "param_dtype": jnp.dtype(options.param_dtype)}
    return nnx.RMSNorm(head_dim, epsilon=options.qk_norm_epsilon, **dtypes, rngs=rngs)


def apply_gate(
    out: Float[Array, "B T N H"], x: Float[Array, "B T D"], kernel: Float[Array, "D N *H"]
) -> Float[Array, "B T N H"]:
    """Returns sigmoid(x W_g) times the output of every head, or of every channel, in the type of `out`.

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


def default_positions(length: int, mask: Mask, axis_name: str | None = None) -> Int[ArrayLike, "*B T"]:
    """Returns the positions of tokens whose positions are not given: their indices, which restart at each document of the mask.

    Indices are a NumPy array, so that an encoding can check their values while tracing; where tokens are spread over a mesh
    axis they are those of the device. Raises ValueError for documents there: one may go on from the device before.

    Example:
      >>> segments = np.array([7, 7, 7, 8, 8])
      >>> default_positions(5, Mask(q_segments=segments, k_segments=segments)).tolist()
      [0, 1, 2, 0, 1]
    """
    if mask.q_segments is None:
        return indices_of_device(axis_name, length)
    if axis_name is not None:
        raise ValueError(
            "packed documents that are spread over a mesh axis need positions: pass them, restarted at each document"
        )
    return from_segments(mask.q_segments)


def on_every_axis(pos: PyTree, encoding: PositionEncoding, batch: int) -> PyTree:
    """Returns positions of a text, [T] or [B, T], as an encoding with A coordinates reads them, [T, A] or [B, 1, T, A].

    All coordinates are the same. In a composition the result is a tuple with the positions of each part, if one of them has
    coordinates. All other positions are returned as they are.

    Example:
      >>> from attnjax.positions import MRoPE
      >>> on_every_axis(np.arange(2), MRoPE(), batch=1).tolist()
      [[0, 0, 0], [1, 1, 1]]
    """
    parts = parts_of(encoding)
    if pos is None or all(part.axes is None for part in parts):
        return pos

    def spread(part: PositionEncoding, pos: ArrayLike) -> ArrayLike:
        if part.axes is None or np.ndim(pos) > 2 or (np.ndim(pos) == 2 and np.shape(pos)[0] != batch):
            return pos
        pos = pos if isinstance(pos, jax.Array) else np.asarray(pos)
        pos = pos[:, None, :, None] if pos.ndim == 2 else pos[:, None]
        return (jnp if isinstance(pos, jax.Array) else np).broadcast_to(pos, (*pos.shape[:-1], part.axes))

    found = tuple(map(spread, parts, pos if isinstance(pos, tuple) else (pos,) * len(parts)))
    return found if isinstance(encoding, Compose) else found[0]


def gather(x: ArrayLike, query_indices: Int[Array, "B M"], axis: int) -> Array:
    """Returns the entries of x at `query_indices` of each example, along the axis of its tokens; x may lack the axis B.

    Example:
      >>> gather(jnp.arange(6.0).reshape(1, 3, 2), jnp.array([[2, 0]]), 1).tolist()
      [[[4.0, 5.0], [0.0, 1.0]]]
      >>> gather(np.array([10, 11, 12]), jnp.array([[2, 0]]), -1).tolist()
      [[12, 10]]
    """
    x, axis = jnp.asarray(x), axis % np.ndim(x)
    chex.assert_rank(query_indices, 2)
    if axis == 0:
        return x[query_indices]
    chex.assert_equal_shape_prefix([x, query_indices], 1)
    rows = [*query_indices.shape[:1], *(1,) * (x.ndim - 1)]
    rows[axis] = query_indices.shape[1]
    return jnp.take_along_axis(x, query_indices.reshape(rows), axis=axis)


def gather_positions(pos: PyTree, query_indices: Int[Array, "B M"], encoding: PositionEncoding, sizes: Sizes) -> PyTree:
    """Returns the positions of the queries at `query_indices`, with their axes of heads, coordinates and features."""
    if isinstance(pos, tuple):
        pairs = zip(pos, parts_of(encoding), strict=True)
        return tuple(gather_positions(one, query_indices, part, sizes) for one, part in pairs)
    return None if pos is None else gather(pos, query_indices, -1 - len(encoding.features(sizes)))


def gather_mask(mask: Mask, query_indices: Int[Array, "B M"]) -> Mask:
    """Returns the mask of the queries at `query_indices` and of all keys."""
    take = lambda x, axis: None if x is None else gather(x, query_indices, axis)
    index = query_indices if mask.q_index is None else take(mask.q_index, -1)
    rows = {"q_index": index, "q_segments": take(mask.q_segments, -1), "allowed": take(mask.allowed, -2)}
    return dataclasses.replace(mask, **rows)
