"""Multi-head attention with learned projections around `attend`, which does the work.

    q = x W_q,  k = m W_k,  v = m W_v      m is x itself (self-attention) or a memory (cross-attention)
    y = sum_n gate_n attend(q, k, v)_n W_o,n

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2; grouped queries: Ainslie et al. 2023
(arXiv:2305.13245); gates: Michel et al. 2019 (arXiv:1905.10650).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx

from attnjax.attention import Dropout, KVCache, Mask, attend, attention_weights, gate_heads
from attnjax.modules.config import Window, check_heads, sizes
from attnjax.modules.parameters import add, encoding_parameters, kernel, linear, normalize, values, widened, zeros
from attnjax.positions import EncodingParams, NoPE, PositionEncoding, Sizes
from attnjax.typing import Array, ArrayLike, Float


class KeysValues(NamedTuple):
    """A memory as one layer of cross-attention sees it, computed once for all queries to come."""

    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K H"]


class MultiHeadAttention(nnx.Module):
    """[B, T, D] -> [B, T, D]. Computes in the type of its input, as `attend` does.

    Parameters: w_q [D, N, H], w_k and w_v [D, K, H], w_o [N, H, D]; b_q, b_k, b_v, b_o if `bias`; `q_norm` and
    `k_norm` over H if `qk_norm`; and `position`, what the encoding learns.

    Args:
      model, heads: D and N.
      encoding: acts in every call; its hook `embed` is not called here but by the model, on its input.
      kv_heads, head: K (N unless given) and H (D / N unless given).
      bias: vectors of all four projections; or (those of q, k and v, that of the output).
      qk_norm: queries and keys through an RMSNorm over H each, before the encoding (after Henry et al. 2020,
        arXiv:2010.04245, who divide by the L2 norm); a number is its epsilon, 1e-6 for True.
      scale, implementation: as in `attend`.
      own_encoding: False where each call is given the encoding's parameters, those of another layer.

    Raises ValueError for sizes that do not fit together.
    """

    def __init__(
        self,
        model: int,
        heads: int,
        *,
        encoding: PositionEncoding = NoPE(),
        kv_heads: int | None = None,
        head: int | None = None,
        bias: bool | tuple[bool, bool] = True,
        qk_norm: bool | float = False,
        scale: float | None = None,
        implementation: str | None = None,
        own_encoding: bool = True,
        param_dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        check_heads("MultiHeadAttention", model, heads, kv_heads, head)
        self.sizes = sizes(model, heads, kv_heads, head)
        self.encoding, self.scale, self.implementation = encoding, scale, implementation
        _, N, K, H = self.sizes
        self.w_q = kernel((model, N, H), 1, dtype=param_dtype, rngs=rngs)
        self.w_k = kernel((model, K, H), 1, dtype=param_dtype, rngs=rngs)
        self.w_v = kernel((model, K, H), 1, dtype=param_dtype, rngs=rngs)
        self.w_o = kernel((N, H, model), 2, dtype=param_dtype, rngs=rngs)
        inside, outside = bias if isinstance(bias, tuple) else (bias, bias)
        self.b_q = zeros((N, H), dtype=param_dtype) if inside else None
        self.b_k = zeros((K, H), dtype=param_dtype) if inside else None
        self.b_v = zeros((K, H), dtype=param_dtype) if inside else None
        self.b_o = zeros((model,), dtype=param_dtype) if outside else None
        self.q_norm = _head_norm(H, qk_norm, param_dtype, rngs) if qk_norm else None
        self.k_norm = _head_norm(H, qk_norm, param_dtype, rngs) if qk_norm else None
        owned = encoding_parameters(encoding, self.sizes, dtype=param_dtype, rngs=rngs) if own_encoding else None
        self.position = nnx.data(owned)

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
    ) -> Float[Array, "B T D"]:
        """Attention of x to itself, or to `memory`.

        Args:
          memory: [B, S, D], or what `keys_values` made of it.
          mask: as in `attend`; nothing is causal unless it says so.
          q_pos, k_pos: positions [T] or [B, T], [S] or [B, S]; the indices unless given. In self-attention
            k_pos is q_pos.
          gate: factor of each head's output, [N] or [B, N]; 0 removes a head.
          params: of the encoding, in place of the module's own.
          dropout: `Dropout(key, rate)` of attention weights.

        Raises ValueError where shapes do not fit.
        """
        q, (k, v) = self._queries(x), self._memory(x, memory)
        out = attend(
            q,
            k,
            v,
            encoding=self.encoding,
            params=self.encoding_params(params),
            q_pos=q_pos,
            k_pos=q_pos if memory is None and k_pos is None else k_pos,
            mask=mask,
            scale=self.scale,
            implementation=self.implementation,
            dropout=dropout,
        )
        return self._output(out, gate)

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
        """The attention weights behind a call with the same arguments."""
        return attention_weights(
            self._queries(x),
            self._memory(x, memory).k,
            encoding=self.encoding,
            params=self.encoding_params(params),
            q_pos=q_pos,
            k_pos=q_pos if memory is None and k_pos is None else k_pos,
            mask=mask,
            scale=self.scale,
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
        """An empty cache for `decode`; see `KVCache.create`."""
        _, _, K, H = self.sizes
        options = {"encoding": self.encoding, "window": window, "pos_dtype": pos_dtype}
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
        """Append one token or a chunk to the cache, and attend from it to everything so far."""
        params = self.encoding_params(params)
        cache = cache.append(*self.keys_values(x), pos, params=params, valid=valid)
        out = attend(
            self._queries(x),
            cache=cache,
            encoding=self.encoding,
            params=params,
            mask=mask,
            scale=self.scale,
            implementation=self.implementation,
        )
        return self._output(out, gate), cache

    def keys_values(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Keys and values of a memory, before the encoding maps them."""
        k = _project("memory", memory, self.w_k, self.b_k, self.sizes)
        return KeysValues(normalize(self.k_norm, k), _project("memory", memory, self.w_v, self.b_v, self.sizes))

    def encoding_params(self, params: EncodingParams | None = None) -> EncodingParams | None:
        """`params` if given, else the module's own, as arrays; None where it has none."""
        return params if params is not None or self.position is None else values(self.position)

    def _queries(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
        return normalize(self.q_norm, _project("x", x, self.w_q, self.b_q, self.sizes))

    def _memory(self, x: Float[Array, "B T D"], memory: Array | KeysValues | None) -> KeysValues:
        if isinstance(memory, KeysValues):
            return memory
        return self.keys_values(x if memory is None else memory)

    def _output(self, out: Float[Array, "B T N H"], gate: Float[Array, "*B N"] | None) -> Float[Array, "B T D"]:
        out = out if gate is None else gate_heads(out, gate)
        w = self.w_o[...].reshape(-1, self.sizes.model)
        return add(linear(out.reshape(*out.shape[:2], -1), w), self.b_o)


def _project(name: str, x: Array, w: nnx.Param, b: nnx.Param | None, sizes: Sizes) -> Float[Array, "B T N H"]:
    if x.ndim != 3 or x.shape[-1] != sizes.model or not jnp.issubdtype(x.dtype, jnp.floating):
        came = f"{x.dtype}{list(x.shape)}"
        raise ValueError(f"MultiHeadAttention: {name} must be floats [B, T, {sizes.model}], got {came}")
    return add(linear(x, w[...]), b)


def _head_norm(head: int, epsilon: bool | float, param_dtype: str, rngs: nnx.Rngs) -> nnx.RMSNorm:
    return nnx.RMSNorm(
        head,
        epsilon=1e-6 if epsilon is True else epsilon,
        dtype=widened(param_dtype),
        param_dtype=jnp.dtype(param_dtype),
        rngs=rngs,
    )
