"""Multi-head attention: learned projections around `attnjax.attend`.

    q = x W_q,  k = m W_k,  v = m W_v      m is x in self-attention, and the memory in cross-attention
    y = sum_n gate_n attend(q, k, v)_n W_o,n

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2; grouped queries: Ainslie et al. 2023
(arXiv:2305.13245); head gates: Michel et al. 2019 (arXiv:1905.10650).
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.attention import Dropout, KVCache, Mask, attend, attention_weights, gate_heads
from attnjax.attention.sequence_axis import indices_of_device
from attnjax.config.architecture import AttentionOptions, Window, check_heads
from attnjax.config.kinds import Count, coerce
from attnjax.modules.config import sizes
from attnjax.modules.gating import apply_gate, gate_kernel
from attnjax.modules.parameters import add, encoding_parameters, kernel, linear, normalize, values, widened, zeros
from attnjax.modules.query_subset import gather_mask, gather_positions, gather_vectors
from attnjax.positions import EncodingParams, NoPE, PositionEncoding, Sizes, Trait, context_positions
from attnjax.positions.base import replaced
from attnjax.typing import Array, ArrayLike, Float, Int, PyTree


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
        model, heads = (
            coerce(Count, model, "MultiHeadAttention.model"),
            coerce(Count, heads, "MultiHeadAttention.heads"),
        )
        check_heads("MultiHeadAttention", model, heads, options)
        self.sizes, self.encoding = sizes(model, heads, options), encoding
        self.scale, self.implementation = options.scale, options.implementation
        dtype = options.param_dtype
        _, N, K, H = self.sizes
        self.w_q = kernel((model, N, H), 1, dtype=dtype, rngs=rngs)
        self.w_k = kernel((model, K, H), 1, dtype=dtype, rngs=rngs)
        self.w_v = kernel((model, K, H), 1, dtype=dtype, rngs=rngs)
        self.w_o = kernel((N, H, model), 2, dtype=dtype, rngs=rngs)
        self.b_q = zeros((N, H), dtype=dtype) if options.bias else None
        self.b_k = zeros((K, H), dtype=dtype) if options.bias else None
        self.b_v = zeros((K, H), dtype=dtype) if options.bias else None
        self.b_o = zeros((model,), dtype=dtype) if options.output_bias_of_attention else None
        self.q_norm = _head_norm(H, options, rngs) if options.qk_norm else None
        self.k_norm = _head_norm(H, options, rngs) if options.qk_norm else None
        self.sink = nnx.Param(jnp.zeros((N,), widened(dtype))) if options.attention_sink else None
        gate = options.attention_gate
        self.w_g = None if gate is None else gate_kernel(model, N, H, gate, dtype=dtype, rngs=rngs)
        own = None if shares_encoding else encoding_parameters(encoding, self.sizes, dtype=dtype, rngs=rngs)
        self.position = nnx.data(own)
        self.constants = nnx.data(EncodingParams())

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | KeysValues | None = None,
        *,
        mask: Mask = Mask(),
        q_pos: ArrayLike | None = None,
        k_pos: ArrayLike | None = None,
        gate: Float[Array, "*B N"] | None = None,
        params: EncodingParams | None = None,
        dropout: Dropout | None = None,
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the attention output of the queries x over the keys of x, or of `memory`.

        Args:
          x: features [B, T, D].
          memory: features [B, S, D] to attend to, or their `keys_values`; None is self-attention.
          mask: which keys each query may see, as in `attend`; the default allows every key, later ones too.
          q_pos, k_pos: positions [T] or [B, T], [S] or [B, S]; the indices unless given. In self-attention k_pos is
            q_pos. An encoding with `context` computes its own from these.
          gate: a factor of the output of each head, [N] or [B, N]; 0 removes a head.
          params: parameters of the encoding, used in place of the module's own.
          dropout: `Dropout(key, rate)` of the attention weights.
          query_indices: the tokens of x whose output is asked for, [B, M]; all of them unless given. `mask` is that of all.
          axis_name: inside `jax.shard_map`, the mesh axis over which the tokens are spread, as in `attend`.

        Raises:
          ValueError: shapes or dtypes that do not fit.
        """
        params = self.encoding_params(params)
        k, v = self._memory(x, memory)
        q_pos, k_pos = self._positions(x, memory, q_pos, k_pos, params, mask, axis_name)
        if query_indices is not None:
            q_pos = None if q_pos is None else gather_positions(q_pos, query_indices, self.encoding, x.shape[1])
            if axis_name is not None and mask.q_index is None:
                mask = dataclasses.replace(mask, q_index=indices_of_device(axis_name, x.shape[1]))
            x, mask = gather_vectors(x, query_indices), gather_mask(mask, query_indices)
        out = attend(
            self._queries(x),
            k,
            v,
            encoding=self.encoding,
            params=params,
            q_pos=q_pos,
            k_pos=k_pos,
            mask=mask,
            scale=self.scale,
            sink=self._sink(),
            implementation=self.implementation,
            dropout=dropout,
            axis_name=axis_name,
        )
        return self._output(out, x, gate)

    def weights(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | KeysValues | None = None,
        *,
        mask: Mask = Mask(),
        q_pos: ArrayLike | None = None,
        k_pos: ArrayLike | None = None,
        params: EncodingParams | None = None,
    ) -> Float[Array, "B N T S"]:
        """Returns the attention weights of a call with the same arguments, [B, N, T, S]."""
        params = self.encoding_params(params)
        q_pos, k_pos = self._positions(x, memory, q_pos, k_pos, params, mask)
        return attention_weights(
            self._queries(x),
            self._memory(x, memory).k,
            encoding=self.encoding,
            params=params,
            q_pos=q_pos,
            k_pos=k_pos,
            mask=mask,
            scale=self.scale,
            sink=self._sink(),
        )

    def cache(
        self,
        batch: int,
        capacity: int,
        *,
        dtype: Any = jnp.float32,
        window: Window | None = None,
        pos_dtype: Any = jnp.int32,
    ) -> KVCache:
        """Returns an empty KV cache of `capacity` tokens for `decode`; see `KVCache.create`."""
        _, N, K, H = self.sizes
        options = {"heads": N, "encoding": self.encoding, "window": window, "pos_dtype": pos_dtype}
        return KVCache.create(batch, capacity, K, H, dtype, **options)

    def decode(
        self,
        x: Float[Array, "B T D"],
        cache: KVCache,
        *,
        mask: Mask = Mask(causal=True),
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        gate: Float[Array, "*B N"] | None = None,
        params: EncodingParams | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Appends T new tokens to the cache, and returns their attention over all cached tokens, and the new cache.

        Args:
          x: features of the new tokens, [B, T, D]; T is 1 when decoding token by token, larger for a chunk.
          cache: from `cache`, or returned by an earlier call.
          mask: as in `attend`, causal unless given.
          pos: positions of the new tokens, [T] or [B, T]. Unless given, the first is the number of tokens in the cache,
            padding included, whatever the positions of these are.
          valid: booleans [T] or [B, T]; False marks padding.
          gate, params: as in a call.
        """
        params = self.encoding_params(params)
        if Trait.CONTEXT in self.encoding.traits:
            index = cache.index + np.arange(x.shape[1], dtype=np.int32) if pos is None else pos
            before = cache.last_positions()
            pos = context_positions(self.encoding, params, x, index, self.sizes, before, valid=valid)
        cache = cache.append(*self._keys_values("x", x), pos, params=params, valid=valid)
        out = attend(
            self._queries(x),
            cache=cache,
            encoding=self.encoding,
            params=params,
            mask=mask,
            scale=self.scale,
            sink=self._sink(),
            implementation=self.implementation,
        )
        return self._output(out, x, gate), cache

    def keys_values(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Returns keys and values [B, S, K, H] of a memory [B, S, D], before the encoding maps them."""
        return self._keys_values("memory", memory)

    def _keys_values(self, name: str, memory: Float[Array, "B S D"]) -> KeysValues:
        k = _project(name, memory, self.w_k, self.b_k, self.sizes)
        return KeysValues(normalize(self.k_norm, k), _project(name, memory, self.w_v, self.b_v, self.sizes))

    def encoding_params(self, params: EncodingParams | None = None) -> EncodingParams | None:
        """Returns `params` if given, else the module's own as arrays, with the constants of `replace_constants`."""
        params = params if params is not None or self.position is None else values(self.position)
        return params if params is None else replaced(self.encoding, self.constants, params)

    def _positions(
        self,
        x: Array,
        memory: Any,
        q_pos: ArrayLike | None,
        k_pos: ArrayLike | None,
        params: EncodingParams | None,
        mask: Mask,
        axis_name: str | None = None,
    ) -> tuple[PyTree, PyTree]:
        """Positions of queries and keys, computed from x where the encoding does so."""
        if Trait.CONTEXT not in self.encoding.traits:
            return q_pos, q_pos if memory is None and k_pos is None else k_pos
        if memory is not None or k_pos is not None:
            raise ValueError(f"{self.encoding} computes positions from content, which serves self-attention alone")
        if axis_name is not None and not (mask.q_index is None and mask.k_index is None):
            raise ValueError(
                f"{self.encoding} sums over the tokens in the order of the devices: with axis_name it needs contiguous blocks, "
                "that is, no q_index and k_index"
            )
        index = indices_of_device(axis_name, x.shape[1]) if q_pos is None else q_pos
        options = {"valid": mask.k_valid, "axis_name": axis_name}
        found = context_positions(self.encoding, params, x, index, self.sizes, **options)
        return found, found

    def _queries(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
        return normalize(self.q_norm, _project("x", x, self.w_q, self.b_q, self.sizes))

    def _memory(self, x: Float[Array, "B T D"], memory: Array | KeysValues | None) -> KeysValues:
        if isinstance(memory, KeysValues):
            return memory
        return self._keys_values("x", x) if memory is None else self.keys_values(memory)

    def _sink(self) -> Float[Array, " N"] | None:
        return None if self.sink is None else self.sink[...]

    def _output(
        self, out: Float[Array, "B T N H"], x: Float[Array, "B T D"], gate: Float[Array, "*B N"] | None
    ) -> Float[Array, "B T D"]:
        out = out if self.w_g is None else apply_gate(out, x, self.w_g[...])
        out = out if gate is None else gate_heads(out, gate)
        w = self.w_o[...].reshape(-1, self.sizes.model)
        return add(linear(out.reshape(*out.shape[:2], -1), w), self.b_o)


def _project(name: str, x: Array, w: nnx.Param, b: nnx.Param | None, sizes: Sizes) -> Float[Array, "B T N H"]:
    if x.ndim != 3 or x.shape[-1] != sizes.model or not jnp.issubdtype(x.dtype, jnp.floating):
        came = f"{x.dtype}{list(x.shape)}"
        raise ValueError(f"MultiHeadAttention: {name} must be floats [B, T, {sizes.model}], got {came}")
    return add(linear(x, w[...]), b)


def _head_norm(head_dim: int, options: AttentionOptions, rngs: nnx.Rngs) -> nnx.RMSNorm:
    return nnx.RMSNorm(
        head_dim,
        epsilon=options.qk_norm_epsilon,
        dtype=widened(options.param_dtype),
        param_dtype=jnp.dtype(options.param_dtype),
        rngs=rngs,
    )
