"""One Transformer layer: attention and feed-forward sublayers with residual connections and norms.

    post-norm    x = norm(x + sublayer(x))         Vaswani et al. 2017 (arXiv:1706.03762), section 3.1
    pre-norm     x = x + sublayer(norm(x))         Xiong et al. 2020 (arXiv:2002.04745); the model ends with a norm
    parallel     x = x + attention(norm(x)) + feed_forward(norm'(x))          Black et al. 2022 (arXiv:2204.06745), 2.1

The sublayers are self-attention, cross-attention to a memory (in decoders of an encoder-decoder) and feed-forward, in
this order. The feed-forward layer is gated or not:

    relu, gelu, gelu_tanh    FFN(x) = act(x W_in + b_in) W_out + b_out
    swiglu                   FFN(x) = (silu(x W_gate + b_gate) * (x W_in + b_in)) W_out + b_out
    geglu                    the same with the tanh approximation of gelu in place of silu, as in T5 v1.1

Reference: Vaswani et al. 2017, eq. 2; Shazeer 2020 (arXiv:2002.05202), eq. 6.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from attnjax.attention import Dropout, KVCache, Mask
from attnjax.config.architecture import Activation
from attnjax.config.kinds import Count, coerce
from attnjax.modules.attention import KeysValues, MultiHeadAttention, gather, gather_mask
from attnjax.modules.config import TransformerConfig
from attnjax.modules.parameters import Norm, add, drop, kernel, linear, norm, normalize, rescale, split, zeros
from attnjax.typing import Array, ArrayLike, Float, Int, Key, PyTree

GATED = ("swiglu", "geglu")


class FeedForward(nnx.Module):
    """Maps features [B, T, D] to [B, T, D] by two linear layers with F hidden units and an activation between.

    It computes in the dtype of its input. The learned parameters are w_in [D, F], w_out [F, D], and w_gate [D, F] if
    the activation is gated; b_in [F], b_out [D] and b_gate [F] with `bias`.

    Args:
      model, hidden: widths D and F.
      activation: "relu", "gelu" (exact), "gelu_tanh", or the gated "swiglu" and "geglu".
      bias: whether the linear layers have bias vectors.
      param_dtype: dtype of the parameters.
      rngs: the stream `params` draws the initial values.

    Raises:
      ValueError: sizes below 1, or an unknown activation.

    Example:
      >>> layer = FeedForward(model=8, hidden=32, activation="swiglu", rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((1, 5, 8))).shape
      (1, 5, 8)
    """

    def __init__(
        self,
        model: int,
        hidden: int,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
        param_dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        D, F = coerce(Count, model, "FeedForward.model"), coerce(Count, hidden, "FeedForward.hidden")
        self.activation = coerce(Activation, activation, "FeedForward.activation")
        gated, dtype = activation in GATED, param_dtype
        self.w_in = kernel((D, F), 1, dtype=dtype, rngs=rngs)
        self.w_gate = kernel((D, F), 1, dtype=dtype, rngs=rngs) if gated else None
        self.w_out = kernel((F, D), 1, dtype=dtype, rngs=rngs)
        self.b_in = zeros((F,), dtype=dtype) if bias else None
        self.b_gate = zeros((F,), dtype=dtype) if bias and gated else None
        self.b_out = zeros((D,), dtype=dtype) if bias else None

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns FFN(x) of the formula above. Raises ValueError where the width of x is not D."""
        if x.ndim != 3 or x.shape[-1] != self.w_in.shape[0]:
            raise ValueError(f"FeedForward: x must have shape [B, T, {self.w_in.shape[0]}], got {x.shape}")
        hidden = add(linear(x, self.w_in[...]), self.b_in)
        if self.w_gate is None:
            hidden = activate(self.activation, hidden)
        else:
            hidden = activate(self.activation, add(linear(x, self.w_gate[...]), self.b_gate)) * hidden
        return add(linear(hidden, self.w_out[...]), self.b_out)


def activate(name: str, x: Float[Array, "B T F"]) -> Float[Array, "B T F"]:
    """Returns act(x) for the activation `name`; for a gated one, the function of its gate.

    Example:
      >>> activate("relu", jnp.array([[[-1.0, 2.0]]])).tolist()
      [[[0.0, 2.0]]]
    """
    chex.assert_type(x, float)
    gates = {"swiglu": jax.nn.silu, "geglu": jax.nn.gelu}
    return {"relu": jax.nn.relu, "gelu": gelu, "gelu_tanh": jax.nn.gelu, **gates}[name](x)


@jax.custom_jvp
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns x Phi(x), with the distribution function Phi of the normal distribution; as `jax.nn.gelu(approximate=False)`.

    Its derivative, Phi(x) + x phi(x), is written out, because that of `jax.lax.erfc` fails inside `jax.shard_map` in jax 0.12.

    Example:
      >>> round(float(gelu(jnp.float32(1.0))), 4)
      0.8413
    """
    return jax.nn.gelu(x, approximate=False)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    number = lambda value: jnp.asarray(value, x.dtype)
    below = number(0.5) * jax.lax.erfc(-x * number(math.sqrt(0.5)))
    density = number(1 / math.sqrt(2 * math.pi)) * jnp.exp(number(-0.5) * x * x)
    return gelu(x), (below + x * density) * dx


class Memory(NamedTuple):
    """The input of cross-attention, and the mask that says which of it each query may see.

    Attributes:
      x: the encoder's output [B, S, D], or one layer's `KeysValues` of it.
      mask: from target queries to source keys; every key is visible unless it says otherwise.

    Example:
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
        self.config, D, N = config, config.model, config.heads
        own = {"encoding": config.attention_encodings[layer], "shares_encoding": config.encoding_owners[layer] != layer}
        self.attention = MultiHeadAttention(D, N, options=config, **own, rngs=rngs)
        self.attention_norm = norm(config, rngs)
        self.cross = MultiHeadAttention(D, N, options=config, rngs=rngs) if cross else None
        self.cross_norm = norm(config, rngs) if cross else None
        options = {"activation": config.activation, "bias": config.bias_of_feed_forward}
        self.feed_forward = FeedForward(D, config.hidden, **options, param_dtype=config.param_dtype, rngs=rngs)
        self.feed_forward_norm = norm(config, rngs)
        for one in filter(None, (self.attention, self.cross)):
            for w in (one.w_q, one.w_k, one.w_v):
                rescale(config, w, D)
            rescale(config, one.w_o, one.w_o.shape[0] * one.w_o.shape[1], residual=True)
        rescale(config, self.feed_forward.w_in, D)
        rescale(config, self.feed_forward.w_gate, D)
        rescale(config, self.feed_forward.w_out, config.hidden, residual=True)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(),
        pos: ArrayLike | None = None,
        gate: Float[Array, "*B N"] | None = None,
        params: PyTree = None,
        key: Key[Array, ""] | None = None,
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the output of the layer, [B, T, D], or [B, M, D] at `query_indices` alone.

        Args:
          x: features [B, T, D].
          memory: the input of cross-attention; required by a layer that has it, and refused by one that has not.
          mask: of self-attention, as in `attend`.
          pos: positions of self-attention, as in `MultiHeadAttention`. Cross-attention has no encoding.
          gate: a factor of the output of each head of self-attention, [N] or [B, N].
          params: parameters of the encoding, used in place of the block's own.
          key: applies dropout at the rates of the config; without it nothing is dropped.
          query_indices: [B, M], the indices at which the output is computed; all T unless given.
          axis_name: inside `jax.shard_map`, the mesh axis over which the tokens are spread, as in `attend`.

        Raises:
          ValueError: a memory that is missing or not expected, or `query_indices` together with a key.
        """
        if query_indices is not None and key is not None:
            raise ValueError("TransformerBlock: query_indices are for calls without dropout, got a key too")
        keys, rate = split(key, 5), self.config.attention_dropout
        dropout = [Dropout(k, rate) if k is not None and rate else None for k in keys[:2]]
        options = {"gate": gate, "params": params, "query_indices": query_indices, "axis_name": axis_name}
        attention = lambda y: (self.attention(y, mask=mask, q_pos=pos, dropout=dropout[0], **options), None)
        if query_indices is not None and memory is not None:
            memory = memory._replace(mask=gather_mask(memory.mask, query_indices))
        cross = lambda layer, y, m: (layer(y, m.x, mask=m.mask, dropout=dropout[1]), None)
        return self._sublayers(x, memory, attention, cross, keys[2:], query_indices)[0]

    def weights(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(),
        pos: ArrayLike | None = None,
        gate: Float[Array, "*B N"] | None = None,
        params: PyTree = None,
    ) -> tuple[Float[Array, "B N T T"], Float[Array, "B N T S"] | None]:
        """Returns the weights of self-attention and of cross-attention (None without it) of such a call."""
        options = {"mask": mask, "q_pos": pos, "params": params}
        attention = lambda y: (self.attention(y, gate=gate, **options), self.attention.weights(y, **options))
        cross = lambda layer, y, m: (y, layer.weights(y, m.x, mask=m.mask))
        return self._sublayers(x, memory, attention, cross)[1]

    def decode(
        self,
        x: Float[Array, "B T D"],
        cache: KVCache,
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(causal=True),
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        params: PyTree = None,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Returns the output for the next T tokens, [B, T, D], and the KV cache with them appended.

        A memory from `project_memory` is not projected again at every step. Other arguments are as in a call and as in
        `MultiHeadAttention.decode`.
        """
        attention = lambda y: self.attention.decode(y, cache, mask=mask, pos=pos, valid=valid, params=params)
        cross = lambda layer, y, m: (layer(y, m.x, mask=m.mask), None)
        x, (cache, _) = self._sublayers(x, memory, attention, cross)
        return x, cache

    def project_memory(self, memory: Memory) -> Memory:
        """Returns the memory with its keys and values of this layer computed, for many decoding steps.

        Raises ValueError for a layer without cross-attention.
        """
        self._check_memory(memory)
        assert self.cross is not None
        return memory if isinstance(memory.x, KeysValues) else memory._replace(x=self.cross.keys_values(memory.x))

    def _sublayers(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None,
        attention: Callable[[Array], tuple[Array, Any]],
        cross: Callable[[MultiHeadAttention, Array, Memory], tuple[Array, Any]],
        keys: Sequence[Key[Array, ""] | None] = (None,) * 3,
        query_indices: Int[Array, "B M"] | None = None,
    ) -> tuple[Float[Array, "B T D"], tuple[Any, Any]]:
        """Returns the output of the layer with these two attentions, and the second results of both."""
        self._check_memory(memory)
        before = lambda norm, x: normalize(norm, x) if self.config.norm_position == "pre" else x
        y, found = attention(before(self.attention_norm, x))
        x = x if query_indices is None else gather(x, query_indices, 1)
        start, x, across = x, self._residual(x, y, self.attention_norm, keys[0]), None
        if memory is not None and self.cross is not None:
            y, across = cross(self.cross, before(self.cross_norm, x), memory)
            x = self._residual(x, y, self.cross_norm, keys[1])
        y = self.feed_forward(before(self.feed_forward_norm, start if self.config.parallel else x))
        return self._residual(x, y, self.feed_forward_norm, keys[2]), (found, across)

    def _residual(
        self, x: Float[Array, "B T D"], y: Float[Array, "B T D"], norm: Norm | None, key: Key[Array, ""] | None
    ) -> Float[Array, "B T D"]:
        x = x + drop(y, key, self.config.residual_dropout)
        return normalize(norm, x) if self.config.norm_position == "post" else x

    def _check_memory(self, memory: Memory | None) -> None:
        if (memory is None) != (self.cross is None):
            has = "without" if self.cross is None else "with"
            came = "no memory" if memory is None else "a memory"
            raise ValueError(f"TransformerBlock: a layer {has} cross-attention was given {came}")
