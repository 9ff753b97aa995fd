"""One Transformer layer: attention and feed-forward sublayers with residual connections and norms.

    post-norm    x = norm(x + sublayer(x))         Vaswani et al. 2017 (arXiv:1706.03762), section 3.1
    pre-norm     x = x + sublayer(norm(x))         Xiong et al. 2020 (arXiv:2002.04745); the model ends with a norm
    parallel     x = x + attention(norm(x)) + feed_forward(norm'(x))          Black et al. 2022 (arXiv:2204.06745), 2.1

The sublayers are self-attention, cross-attention to a memory (in decoders of an encoder-decoder) and feed-forward, in
this order.
"""

from typing import NamedTuple

from flax import nnx

from attnjax.attention import KVCache, Mask
from attnjax.modules.attention import KeysValues, MultiHeadAttention
from attnjax.modules.config import TransformerConfig
from attnjax.modules.dropout import attention_dropout, drop, split
from attnjax.modules.encoding_sharing import attention_encoding, encoding_owner
from attnjax.modules.feed_forward import FeedForward
from attnjax.modules.parameters import Norm, norm, normalize, start
from attnjax.modules.query_subset import gather_mask, gather_vectors
from attnjax.positions import EncodingParams
from attnjax.typing import Array, ArrayLike, Float, Int, Key


class Memory(NamedTuple):
    """The input of cross-attention, and the mask that says which of it each query may see.

    Attributes:
      x: the encoder's output [B, S, D], or one layer's `KeysValues` of it.
      mask: from target queries to source keys; every key is visible unless it says otherwise.

    Example:
      >>> import jax.numpy as jnp
      >>> Memory(jnp.ones((1, 3, 16))).mask == Mask()
      True
    """

    x: Float[Array, "B S D"] | KeysValues
    mask: Mask = Mask()


class TransformerBlock(nnx.Module):
    """Maps features [B, T, D] to [B, T, D] by self-attention, cross-attention if `cross`, and feed-forward.

    The block holds the parameters of its encoding, unless `config.share_encoding` makes an earlier layer hold them;
    then every call passes them as `params`. The hook `embed` of an encoding acts on the input of the model, not here.

    Args:
      config: sizes and kinds of all parts.
      layer: number of this layer in the model, 0 .. layers - 1; it selects the encoding where layers have their own.
      cross: whether the layer has cross-attention.
      rngs: the stream `params` draws the initial values.

    Raises:
      ValueError: a layer that the config does not have, or cross-attention in a parallel block.

    Example:
      >>> import jax.numpy as jnp
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32)
      >>> block = TransformerBlock(config, rngs=nnx.Rngs(0))
      >>> block(jnp.ones((1, 5, 16)), mask=Mask(causal=True)).shape
      (1, 5, 16)
    """

    def __init__(self, config: TransformerConfig, layer: int = 0, *, cross: bool = False, rngs: nnx.Rngs):
        if not 0 <= layer < config.layers:
            raise ValueError(f"TransformerBlock: layer must be in 0..{config.layers - 1}, got {layer}")
        if cross and config.parallel:
            raise ValueError("TransformerBlock: a layer with cross-attention cannot have config.parallel=True")
        self.config = config
        encoding, shared = attention_encoding(config, layer), encoding_owner(config, layer) != layer
        self.attention = MultiHeadAttention(
            config.model, config.heads, encoding=encoding, options=config, shares_encoding=shared, rngs=rngs
        )
        self.attention_norm = norm(config, rngs)
        self.cross = MultiHeadAttention(config.model, config.heads, options=config, rngs=rngs) if cross else None
        self.cross_norm = norm(config, rngs) if cross else None
        self.feed_forward = FeedForward(
            config.model,
            config.hidden,
            activation=config.activation,
            bias=config.bias_of_feed_forward,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )
        self.feed_forward_norm = norm(config, rngs)
        for one in filter(None, (self.attention, self.cross)):
            for w in (one.w_q, one.w_k, one.w_v):
                start(config, w, config.model)
            start(config, one.w_o, one.w_o.shape[0] * one.w_o.shape[1], residual=True)
        start(config, self.feed_forward.w_in, config.model)
        start(config, self.feed_forward.w_gate, config.model)
        start(config, self.feed_forward.w_out, config.hidden, residual=True)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(),
        pos: ArrayLike | None = None,
        gate: Float[Array, "*B N"] | None = None,
        cross_gate: Float[Array, "*B N"] | None = None,
        params: EncodingParams | None = None,
        key: Key[Array, ""] | None = None,
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the output of the layer, [B, T, D], or [B, M, D] at `query_indices` alone.

        Args:
          x: features [B, T, D].
          memory: what cross-attention reads; required by a layer that has it, and refused by one that has not.
          mask: of self-attention, as in `attend`.
          pos: positions [T] or [B, T] of self-attention; the indices unless given. Cross-attention has no encoding.
          gate, cross_gate: a factor of the output of each head, [N] or [B, N], in self- and in cross-attention.
          params: parameters of the encoding, used in place of the block's own.
          key: applies dropout at the rates of the config; without it nothing is dropped.
          query_indices: [B, M], the indices at which the output is computed; all T unless given.
          axis_name: inside `jax.shard_map`, the mesh axis over which the tokens are spread, as in `attend`.

        Raises:
          ValueError: a memory that is missing or not expected, or `query_indices` together with a key.
        """
        self._check_memory(memory)
        if query_indices is not None and key is not None:
            raise ValueError("TransformerBlock: query_indices are for calls without dropout, got a key too")
        keys = split(key, 5)
        dropout = [attention_dropout(k, self.config.attention_dropout) for k in keys[:2]]
        y = self._pre_norm(x, self.attention_norm)
        options = {"q_pos": pos, "gate": gate, "params": params, "dropout": dropout[0], "query_indices": query_indices}
        y = self.attention(y, mask=mask, axis_name=axis_name, **options)
        if query_indices is not None:
            x = gather_vectors(x, query_indices)
            memory = None if memory is None else memory._replace(mask=gather_mask(memory.mask, query_indices))
        start, x = x, self._residual(x, y, self.attention_norm, keys[2])
        if self.cross is not None and memory is not None:
            y = self._pre_norm(x, self.cross_norm)
            y = self.cross(y, memory.x, mask=memory.mask, gate=cross_gate, dropout=dropout[1])
            x = self._residual(x, y, self.cross_norm, keys[3])
        return self._feed_forward(start, x, keys[4])

    def weights(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(),
        pos: ArrayLike | None = None,
        gate: Float[Array, "*B N"] | None = None,
        params: EncodingParams | None = None,
    ) -> tuple[Float[Array, "B N T T"], Float[Array, "B N T S"] | None]:
        """Returns the weights of self-attention and of cross-attention (None without it) of such a call."""
        self._check_memory(memory)
        y = self._pre_norm(x, self.attention_norm)
        own = self.attention.weights(y, mask=mask, q_pos=pos, params=params)
        if self.cross is None or memory is None:
            return own, None
        y = self.attention(y, mask=mask, q_pos=pos, gate=gate, params=params)
        y = self._pre_norm(self._residual(x, y, self.attention_norm), self.cross_norm)
        return own, self.cross.weights(y, memory.x, mask=memory.mask)

    def decode(
        self,
        x: Float[Array, "B T D"],
        cache: KVCache,
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(causal=True),
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        gate: Float[Array, "*B N"] | None = None,
        cross_gate: Float[Array, "*B N"] | None = None,
        params: EncodingParams | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Returns the output for the next T tokens, [B, T, D], and the KV cache with them appended.

        A memory from `project_memory` is not projected again at every step. Other arguments are as in a call and as in
        `MultiHeadAttention.decode`.
        """
        self._check_memory(memory)
        y = self._pre_norm(x, self.attention_norm)
        y, cache = self.attention.decode(y, cache, mask=mask, pos=pos, valid=valid, gate=gate, params=params)
        start, x = x, self._residual(x, y, self.attention_norm)
        if self.cross is not None and memory is not None:
            y = self._pre_norm(x, self.cross_norm)
            y = self.cross(y, memory.x, mask=memory.mask, gate=cross_gate)
            x = self._residual(x, y, self.cross_norm)
        return self._feed_forward(start, x), cache

    def project_memory(self, memory: Memory) -> Memory:
        """Returns the memory with its keys and values of this layer computed, for many decoding steps.

        Raises:
          ValueError: a layer without cross-attention.
        """
        self._check_memory(memory)
        assert self.cross is not None
        return memory if isinstance(memory.x, KeysValues) else memory._replace(x=self.cross.keys_values(memory.x))

    def _feed_forward(
        self, start: Float[Array, "B T D"], x: Float[Array, "B T D"], key: Key[Array, ""] | None = None
    ) -> Float[Array, "B T D"]:
        """Adds the feed-forward sublayer to x. It reads `start`, the input of the layer, if the block is parallel."""
        y = self._pre_norm(start if self.config.parallel else x, self.feed_forward_norm)
        return self._residual(x, self.feed_forward(y), self.feed_forward_norm, key)

    def _pre_norm(self, x: Float[Array, "B T D"], norm: Norm | None) -> Float[Array, "B T D"]:
        return normalize(norm, x) if self.config.norm_position == "pre" else x

    def _residual(
        self, x: Float[Array, "B T D"], y: Float[Array, "B T D"], norm: Norm | None, key: Key[Array, ""] | None = None
    ) -> Float[Array, "B T D"]:
        x = x + drop(y, key, self.config.residual_dropout)
        return normalize(norm, x) if self.config.norm_position == "post" else x

    def _check_memory(self, memory: Memory | None) -> None:
        if (memory is None) != (self.cross is None):
            has = "without" if self.cross is None else "with"
            came = "no memory" if memory is None else "a memory"
            raise ValueError(f"TransformerBlock: a layer {has} cross-attention was given {came}")
