"""One layer: attention and feed-forward, each added to its input, with a norm before or after.

    post-norm    x = norm(x + sublayer(x))         Vaswani et al. 2017 (arXiv:1706.03762), section 3.1
    pre-norm     x = x + sublayer(norm(x))         Xiong et al. 2020 (arXiv:2002.04745); the model norms its last output
    parallel     x = x + attention(norm(x)) + feed_forward(norm'(x))          Black et al. 2022 (arXiv:2204.06745), 2.1

The sublayers are self-attention, cross-attention to a memory where the layer has it, and feed-forward, in this order.
"""

from typing import NamedTuple

from flax import nnx

from attnjax.attention import KVCache, Mask
from attnjax.modules.attention import KeysValues, MultiHeadAttention
from attnjax.modules.config import TransformerConfig
from attnjax.modules.dropout import drop, of_weights, split
from attnjax.modules.feed_forward import FeedForward
from attnjax.modules.parameters import Norm, norm, normalize
from attnjax.modules.placement import attention_encoding, owner
from attnjax.modules.rows import mask_of, taken, taken_of
from attnjax.positions import EncodingParams, NoPE, PositionEncoding
from attnjax.typing import Array, ArrayLike, Float, Int, Key


class Memory(NamedTuple):
    """What cross-attention looks at: the encoder's output, or a layer's keys and values of it; and who sees what."""

    x: Float[Array, "B S D"] | KeysValues
    mask: Mask = Mask()


class TransformerBlock(nnx.Module):
    """Layer number `layer` of a model, [B, T, D] -> [B, T, D]; with cross-attention if `cross`.

    It has the parameters of its encoding, unless `config.share_encoding` gives them to an earlier layer. What an
    encoding does to embeddings is left to the model. Raises ValueError for a layer that the config does not have.
    """

    def __init__(self, config: TransformerConfig, layer: int = 0, *, cross: bool = False, rngs: nnx.Rngs):
        if not 0 <= layer < config.layers:
            raise ValueError(f"TransformerBlock: layer must be in 0..{config.layers - 1}, got {layer}")
        if cross and config.parallel:
            raise ValueError("TransformerBlock: a layer with cross-attention cannot have config.parallel=True")
        self.config = config
        encoding, own = attention_encoding(config, layer), owner(config, layer) == layer
        self.attention = _attention(config, encoding, own, rngs)
        self.attention_norm = norm(config, rngs)
        self.cross = _attention(config, NoPE(), True, rngs) if cross else None
        self.cross_norm = norm(config, rngs) if cross else None
        with_bias = config.bias if config.feed_forward_bias is None else config.feed_forward_bias
        self.feed_forward = FeedForward(
            config.model,
            config.hidden,
            activation=config.activation,
            bias=with_bias,
            param_dtype=config.param_dtype,
            rngs=rngs,
        )
        self.feed_forward_norm = norm(config, rngs)

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
        rows: Int[Array, "B M"] | None = None,
    ) -> Float[Array, "B T D"]:
        """The formula above. `pos`, `gate`, `params` as in `MultiHeadAttention`; with a `key`, dropout at the rates
        of the config; with `rows`, the result at these indices alone, [B, M, D].

        Raises ValueError where a memory is missing, or given to a layer without cross-attention, and for rows with a key.
        """
        self._check_memory(memory)
        if rows is not None and key is not None:
            raise ValueError("TransformerBlock: rows are for calls without dropout, got a key too")
        keys = split(key, 5)
        dropout = [of_weights(k, self.config.attention_dropout) for k in keys[:2]]
        y = self._before(x, self.attention_norm)
        if rows is None:
            y = self.attention(y, mask=mask, q_pos=pos, gate=gate, params=params, dropout=dropout[0])
        else:
            at = {"q_pos": None if pos is None else taken_of(pos, rows), "k_pos": pos}
            y = self.attention(taken(y, rows), y, mask=mask_of(mask, rows), **at, gate=gate, params=params)
            pos, x = at["q_pos"], taken(x, rows)
            memory = None if memory is None else memory._replace(mask=mask_of(memory.mask, rows))
        start, x = x, self._after(x, y, self.attention_norm, keys[2])
        if self.cross is not None and memory is not None:
            y = self._before(x, self.cross_norm)
            y = self.cross(y, memory.x, mask=memory.mask, q_pos=pos, gate=cross_gate, dropout=dropout[1])
            x = self._after(x, y, self.cross_norm, keys[3])
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
        """Weights of self-attention and of cross-attention (None without) behind a call with the same arguments."""
        self._check_memory(memory)
        y = self._before(x, self.attention_norm)
        own = self.attention.weights(y, mask=mask, q_pos=pos, params=params)
        if self.cross is None or memory is None:
            return own, None
        y = self.attention(y, mask=mask, q_pos=pos, gate=gate, params=params)
        y = self._before(self._after(x, y, self.attention_norm), self.cross_norm)
        return own, self.cross.weights(y, memory.x, mask=memory.mask, q_pos=pos)

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
        """The layer for the next T tokens, given a cache of those before.

        `remember` spares the memory being projected at every call.
        """
        self._check_memory(memory)
        y = self._before(x, self.attention_norm)
        y, cache = self.attention.decode(y, cache, mask=mask, pos=pos, valid=valid, gate=gate, params=params)
        start, x = x, self._after(x, y, self.attention_norm)
        if self.cross is not None and memory is not None:
            y = self._before(x, self.cross_norm)
            y = self.cross(y, memory.x, mask=memory.mask, q_pos=pos, gate=cross_gate)
            x = self._after(x, y, self.cross_norm)
        return self._feed_forward(start, x), cache

    def remember(self, memory: Memory) -> Memory:
        """The memory as keys and values of this layer, for many calls. Raises ValueError without cross-attention."""
        self._check_memory(memory)
        assert self.cross is not None
        return memory if isinstance(memory.x, KeysValues) else memory._replace(x=self.cross.keys_values(memory.x))

    def _feed_forward(
        self, start: Float[Array, "B T D"], x: Float[Array, "B T D"], key: Key[Array, ""] | None = None
    ) -> Float[Array, "B T D"]:
        """The last sublayer, added to x; it reads what the layer started from if parallel."""
        y = self._before(start if self.config.parallel else x, self.feed_forward_norm)
        return self._after(x, self.feed_forward(y), self.feed_forward_norm, key)

    def _before(self, x: Float[Array, "B T D"], norm: Norm | None) -> Float[Array, "B T D"]:
        return normalize(norm, x) if self.config.norm_position == "pre" else x

    def _after(
        self, x: Float[Array, "B T D"], y: Float[Array, "B T D"], norm: Norm | None, key: Key[Array, ""] | None = None
    ) -> Float[Array, "B T D"]:
        x = x + drop(y, key, self.config.residual_dropout)
        return normalize(norm, x) if self.config.norm_position == "post" else x

    def _check_memory(self, memory: Memory | None) -> None:
        if (memory is None) != (self.cross is None):
            has = "without" if self.cross is None else "with"
            came = "no memory" if memory is None else "a memory"
            raise ValueError(f"TransformerBlock: a layer {has} cross-attention was given {came}")


def _attention(config: TransformerConfig, encoding: PositionEncoding, own: bool, rngs: nnx.Rngs) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.model,
        config.heads,
        encoding=encoding,
        kv_heads=config.kv_heads,
        head=config.head,
        bias=(config.bias, config.bias if config.attention_output_bias is None else config.attention_output_bias),
        qk_norm=config.qk_norm and config.qk_norm_epsilon,
        scale=config.scale,
        implementation=config.implementation,
        own_encoding=own,
        param_dtype=config.param_dtype,
        rngs=rngs,
    )
