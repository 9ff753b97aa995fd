"""A stack of L Transformer layers over features, shared by encoders and decoders: it has positions, but no tokens."""

import dataclasses
import functools
from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.attention import KVCache, Mask
from attnjax.config.architecture import Window
from attnjax.modules.attention import MultiHeadAttention
from attnjax.modules.block import Memory, TransformerBlock
from attnjax.modules.config import TransformerConfig
from attnjax.modules.dropout import drop, split
from attnjax.modules.encoding_sharing import encoding_owner, input_encodings
from attnjax.modules.parameters import encoding_parameters, norm, normalize, values
from attnjax.positions import EncodingParams, PositionEncoding, Trait, embed
from attnjax.positions.base import replaced
from attnjax.typing import Array, ArrayLike, Float, Int, Key

Caches = tuple[KVCache, ...]


class Stack(nnx.Module):
    """Maps features [B, T, D] to [B, T, D]: encodings of the input, the blocks, and a final norm if pre-norm.

    The learned parameters are `blocks`, `norm`, `input_norm` if `config.embedding_norm`, and `inputs`, those of
    encodings that act on the input.

    Arguments of its methods:
      x: features [B, T, D].
      memory: what cross-attention reads, in a stack built with `cross`.
      mask: of self-attention, as in `attend`. A window in it replaces those of the config.
      pos: positions [T] or [B, T], or [L, B, T] where every layer has its own; the input takes those of the first
        layer.
      gate, cross_gate: a factor of the output of each head, [L, N] or [L, B, N].
      key: applies dropout at the rates of the config; without it nothing is dropped.
      query_indices: [B, M], the indices at which the last layer is computed; all T unless given.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32)
      >>> stack = Stack(config, rngs=nnx.Rngs(0))
      >>> stack(jnp.ones((1, 5, 16)), pos=jnp.arange(5)).shape
      (1, 5, 16)
    """

    def __init__(self, config: TransformerConfig, *, cross: bool = False, rngs: nnx.Rngs):
        self.config = config
        self.encodings = input_encodings(config)
        dtype = config.param_dtype
        self.inputs = nnx.data([encoding_parameters(e, config.sizes, dtype=dtype, rngs=rngs) for e in self.encodings])
        self.constants = nnx.data([EncodingParams() for _ in self.encodings])
        self.blocks = nnx.List([TransformerBlock(config, i, cross=cross, rngs=rngs) for i in range(config.layers)])
        self.norm = norm(config, rngs) if config.norm_position == "pre" else None
        self.input_norm = norm(config, rngs) if config.embedding_norm else None

    def embed(self, x: Float[Array, "B T D"], pos: ArrayLike) -> Float[Array, "B T D"]:
        """Returns x after the hook `embed` of each distinct encoding, applied once, and after the norm of the input."""
        chex.assert_shape(x, (None, None, self.config.model))
        for encoding, params, constants in zip(self.encodings, self.inputs, self.constants, strict=True):
            x = embed(encoding, replaced(encoding, constants, values(params)), x, self._pos(pos, 0))
        return normalize(self.input_norm, x)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(),
        pos: ArrayLike,
        gate: Float[Array, "L *B N"] | None = None,
        cross_gate: Float[Array, "L *B N"] | None = None,
        key: Key[Array, ""] | None = None,
        query_indices: Int[Array, "B M"] | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the features of every position, or of `query_indices` alone."""
        return self._layers(x, memory, mask, pos, gate, cross_gate, key, query_indices)[-1]

    def hidden_states(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(),
        pos: ArrayLike,
        gate: Float[Array, "L *B N"] | None = None,
        cross_gate: Float[Array, "L *B N"] | None = None,
    ) -> Float[Array, "_ B T D"]:
        """Returns the input of each layer and the features of the last, [L + 1, B, T, D]."""
        return jnp.stack(self._layers(x, memory, mask, pos, gate, cross_gate, None))

    def weights(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(),
        pos: ArrayLike,
        gate: Float[Array, "L *B N"] | None = None,
        cross_gate: Float[Array, "L *B N"] | None = None,
    ) -> tuple[Float[Array, "L B N T T"], Float[Array, "L B N T S"] | None]:
        """Returns the weights of self-attention and of cross-attention (None without it) of every layer."""
        states = self._layers(x, memory, mask, pos, gate, cross_gate, None)
        found = []
        for i, block in enumerate(self.blocks):
            options = {"pos": self._pos(pos, i), "gate": self._gate(gate, i), "params": self._params(i)}
            found.append(block.weights(states[i], memory, mask=self._layer_mask(mask, i), **options))
        own, cross = zip(*found, strict=True)
        return jnp.stack(own), None if memory is None else jnp.stack(cross)

    def cache(self, batch: int, capacity: int, *, window: Window | None = None, pos_dtype=jnp.int32) -> Caches:
        """Returns an empty KV cache per layer, in `config.dtype`; with a `window`, ring buffers (`KVCache.create`)."""
        options = {"dtype": jnp.dtype(self.config.dtype), "window": window, "pos_dtype": pos_dtype}
        return tuple(block.attention.cache(batch, capacity, **options) for block in self.blocks)

    def project_memory(self, memory: Memory) -> tuple[Memory, ...]:
        """Returns the memory with its keys and values computed, one for each layer."""
        return tuple(block.project_memory(memory) for block in self.blocks)

    def decode(
        self,
        x: Float[Array, "B T D"],
        caches: Caches,
        memories: tuple[Memory, ...] | None = None,
        *,
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        gate: Float[Array, "L *B N"] | None = None,
        cross_gate: Float[Array, "L *B N"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Caches]:
        """Returns the features of the next T positions under a causal mask, and the caches with them appended.

        Args:
          x: embeddings of the new tokens, [B, T, D].
          caches: one KV cache per layer.
          memories: from `project_memory`, one per layer.
          pos: as above; positions continue those of the cache unless given.
          valid: booleans [T] or [B, T]; False marks padding.
          gate, cross_gate: as above.

        Raises:
          ValueError: a wrong number of caches.
        """
        if len(caches) != len(self.blocks):
            raise ValueError(f"decode needs one cache per layer, {len(self.blocks)}, got {len(caches)}")
        pos = caches[0].index + np.arange(x.shape[1], dtype=np.int32) if pos is None else pos
        x, new = self.embed(x, pos), []
        for i, block in enumerate(self.blocks):
            x, cache = block.decode(
                x,
                caches[i],
                None if memories is None else memories[i],
                mask=self._layer_mask(Mask(causal=True), i),
                pos=self._pos(pos, i),
                valid=valid,
                gate=self._gate(gate, i),
                cross_gate=self._gate(cross_gate, i),
                params=self._params(i),
            )
            new.append(cache)
        return normalize(self.norm, x), tuple(new)

    def _layers(
        self, x, memory, mask: Mask, pos, gate, cross_gate, key, query_indices=None
    ) -> list[Float[Array, "B T D"]]:
        keys = split(key, len(self.blocks) + 1)
        states = [drop(self.embed(x, pos), keys[-1], self.config.input_dropout)]
        for i, block in enumerate(self.blocks):
            run = functools.partial(
                block,
                memory=memory,
                mask=self._layer_mask(mask, i),
                pos=self._pos(pos, i),
                gate=self._gate(gate, i),
                cross_gate=self._gate(cross_gate, i),
                params=self._params(i),
                key=keys[i],
                query_indices=query_indices if i == len(self.blocks) - 1 else None,
            )
            states.append((jax.checkpoint(run) if self.config.remat else run)(states[i]))
        return [*states[:-1], normalize(self.norm, states[-1])]

    def _params(self, layer: int) -> EncodingParams | None:
        return self.blocks[encoding_owner(self.config, layer)].attention.encoding_params()

    def _gate(self, gate: Float[Array, "L *B N"] | None, layer: int) -> Float[Array, "*B N"] | None:
        if gate is not None and gate.shape[0] != len(self.blocks):
            raise ValueError(f"gate must have one row per layer, {len(self.blocks)}, got shape {gate.shape}")
        return None if gate is None else gate[layer]

    def _pos(self, pos: ArrayLike, layer: int) -> ArrayLike:
        """Returns the positions of one layer: its slice of [L, B, T], or the same [T] or [B, T] for all layers."""
        traits = self.blocks[layer].attention.encoding.traits
        by_layer = pos.ndim == (4 if Trait.AXES in traits and Trait.CONTEXT not in traits else 3)
        if by_layer and pos.shape[0] != len(self.blocks):
            raise ValueError(f"positions [L, B, T] must have one row per layer, {len(self.blocks)}, got {pos.shape}")
        return pos[layer] if by_layer else pos

    def _layer_mask(self, mask: Mask, layer: int) -> Mask:
        """Returns the mask with the window that the config gives this layer, unless the mask has one."""
        return mask if mask.window is not None else dataclasses.replace(mask, window=self.config.layer_windows[layer])


def replace_constants(model: nnx.Module, constants: Mapping[PositionEncoding, EncodingParams]) -> None:
    """Puts other constants, traced or not, in place of those of these encodings, in every layer and on the input.

    So the runs of a population differ in bases, scalings or slopes and share one program; see
    `attnjax.positions.stacked_constants`. The model keeps them until others are put in their place.

    Example:
      >>> from attnjax.modules import Encoder
      >>> from attnjax.positions import RoPE
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32, encoding=RoPE())
      >>> model = Encoder(config, rngs=nnx.Rngs(0))
      >>> replace_constants(model, {RoPE(): RoPE(theta=500.0).constants(config.sizes)})
      >>> float(model.stack.blocks[1].attention.constants.shared["frequencies"].radians[1])
      0.21147425268811282
    """
    for _, node in nnx.iter_graph(model):
        if isinstance(node, MultiHeadAttention) and node.encoding in constants:
            node.constants = nnx.data(constants[node.encoding])
        elif isinstance(node, Stack):
            node.constants = nnx.data([constants.get(one, EncodingParams()) for one in node.encodings])
