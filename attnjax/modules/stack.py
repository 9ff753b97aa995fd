"""A stack of L Transformer layers over features, shared by encoders and decoders: it has positions, but no tokens."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.attention import KVCache, Mask
from attnjax.attention.masks import check_mask
from attnjax.config.architecture import Window
from attnjax.modules.attention import MultiHeadAttention
from attnjax.modules.block import Memory, TransformerBlock
from attnjax.modules.config import TransformerConfig
from attnjax.modules.dropout import drop, split
from attnjax.modules.encoding_sharing import attention_encoding, encoding_owner, input_encodings
from attnjax.modules.layers import make_blocks, separate, stacked
from attnjax.modules.parameters import encoding_parameters, norm, normalize, values
from attnjax.modules.query_subset import gather_vectors
from attnjax.positions import EncodingParams, PositionEncoding, Trait, embed
from attnjax.positions.base import replaced
from attnjax.positions.checks import described, is_array
from attnjax.typing import Array, ArrayLike, Float, Int, Key, PyTree

Model = TypeVar("Model", bound=nnx.Module)

Caches = tuple[KVCache, ...] | KVCache
Memories = tuple[Memory, ...] | Memory


class Stack(nnx.Module):
    """Maps features [B, T, D] to [B, T, D]: encodings of the input, the blocks, and a final norm if pre-norm.

    The learned parameters are `blocks`, with `config.scan_layers` one block of stacked parameters (`layers.py`); `norm`;
    `input_norm` if `config.embedding_norm`; and `inputs`, those of encodings that act on the input.

    Arguments of its methods:
      x: features [B, T, D].
      memory: what cross-attention reads, in a stack built with `cross`.
      mask: of self-attention, as in `attend`. A window in it replaces those of the config.
      pos: positions [T] or [B, T], or [L, B, T] where every layer has its own; the input takes those of the first
        layer.
      gate, cross_gate: a factor of the output of each head, [L, N] or [L, B, N].
      key: applies dropout at the rates of the config; without it nothing is dropped.
      query_indices: [B, M], the indices at which the last layer is computed; all T unless given.
      axis_name: inside `jax.shard_map`, the mesh axis over which the T tokens are spread, as in `attend`.

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
        self.blocks: Any = make_blocks(config, cross=cross, rngs=rngs)
        self.norm = norm(config, rngs) if config.norm_position == "pre" else None
        self.input_norm = norm(config, rngs) if config.embedding_norm else None

    def embed(self, x: Float[Array, "B T D"], pos: ArrayLike) -> Float[Array, "B T D"]:
        """Returns x after the hook `embed` of each distinct encoding, applied once, and after the norm of the input."""
        chex.assert_shape(x, (None, None, self.config.model))
        for encoding, params, constants in zip(self.encodings, self.inputs, self.constants, strict=True):
            x = embed(encoding, replaced(encoding, constants, values(params)), x, self._pos(pos, 0))
        return normalize(self.input_norm, x)

    @property
    def layers(self) -> list[TransformerBlock]:
        """The blocks one by one, with `scan_layers` as slices of the stacked one, so that changes of them are lost."""
        return separate(self.blocks)

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
        axis_name: str | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the features of every position, or of `query_indices` alone (of which scanned layers compute all)."""
        *keys, last = split(key, self.config.layers + 1)
        each: dict[str, Any] = {"key": None if key is None else keys, "gate": gate, "cross_gate": cross_gate}
        if query_indices is not None and not self.config.scan_layers:
            each["query_indices"] = [None] * (self.config.layers - 1) + [query_indices]
        layer = lambda block, x, **options: (block(x, memory, axis_name=axis_name, **options), None)
        x = drop(self.embed(x, pos), last, self.config.input_dropout)
        x, _ = self._run(layer, x, mask, pos, each, remat=self.config.remat)
        x = gather_vectors(x, query_indices) if query_indices is not None and self.config.scan_layers else x
        return normalize(self.norm, x)

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
        layer = lambda block, x, **options: (block(x, memory, **options), x)
        each = {"gate": gate, "cross_gate": cross_gate}
        x, states = self._run(layer, self.embed(x, pos), mask, pos, each, remat=self.config.remat)
        return jnp.concatenate([stacked(states), normalize(self.norm, x)[None]])

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

        def layer(block: TransformerBlock, x: Array, cross_gate: Array | None, **options: Any) -> tuple[Array, Any]:
            return block(x, memory, cross_gate=cross_gate, **options), block.weights(x, memory, **options)

        _, found = self._run(layer, self.embed(x, pos), mask, pos, {"gate": gate, "cross_gate": cross_gate})
        return stacked(found)

    def cache(self, batch: int, capacity: int, *, window: Window | None = None, pos_dtype=jnp.int32) -> Caches:
        """Returns an empty KV cache per layer, in `config.dtype`; with a `window`, ring buffers (`KVCache.create`).

        With `scan_layers` it is one cache whose arrays have a leading axis [L].
        """
        options = {"dtype": jnp.dtype(self.config.dtype), "window": window, "pos_dtype": pos_dtype}
        if not self.config.scan_layers:
            return tuple(block.attention.cache(batch, capacity, **options) for block in self.blocks)
        one = self.blocks.attention.cache(batch, capacity, **options)
        rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.config.layers, *leaf.shape)), one)
        return dataclasses.replace(rows, index=one.index)

    def project_memory(self, memory: Memory) -> Memories:
        """Returns the memory with its keys and values computed, one for each layer, or one of [L, ...] with `scan_layers`."""
        if self.config.scan_layers:
            return jax.vmap(lambda block: block.project_memory(memory))(self.blocks)
        return tuple(block.project_memory(memory) for block in self.blocks)

    def decode(
        self,
        x: Float[Array, "B T D"],
        caches: Caches,
        memories: Memories | None = None,
        *,
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        gate: Float[Array, "L *B N"] | None = None,
        cross_gate: Float[Array, "L *B N"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Caches]:
        """Returns the features of the next T positions under a causal mask, and the caches with them appended.

        Args:
          x: embeddings of the new tokens, [B, T, D].
          caches: from `cache`.
          memories: from `project_memory`.
          pos: as above. Unless given, the first is the number of tokens in the cache, padding included, whatever the
            positions of these are.
          valid: booleans [T] or [B, T]; False marks padding.
          gate, cross_gate: as above.

        Raises:
          ValueError: a wrong number of caches.
        """
        L, scanned = self.config.layers, self.config.scan_layers
        uncounted: dict[str, Any] = {"index": None}
        came = "one of all layers" if isinstance(caches, KVCache) else len(caches)
        if came != ("one of all layers" if scanned else L):
            wanted = "the one of all layers that `cache` makes" if scanned else f"one cache per layer, {L}"
            raise ValueError(f"decode needs {wanted}, got {came}")
        index = caches.index if isinstance(caches, KVCache) else caches[0].index
        pos = index + np.arange(x.shape[1], dtype=np.int32) if pos is None else pos

        def layer(block: TransformerBlock, x: Array, cache: KVCache, memory: Memory | None, **options: Any):
            if not scanned:
                return block.decode(x, cache, memory, valid=valid, **options)
            # The count of tokens stays outside of the loop, so that eager decoding knows its value.
            x, cache = block.decode(x, dataclasses.replace(cache, index=index), memory, valid=valid, **options)
            return x, dataclasses.replace(cache, **uncounted)

        inside = dataclasses.replace(caches, **uncounted) if isinstance(caches, KVCache) else caches
        each = {"cache": inside, "memory": memories, "gate": gate, "cross_gate": cross_gate}
        x, found = self._run(layer, self.embed(x, pos), Mask(causal=True), pos, each)
        new = dataclasses.replace(found, index=index + x.shape[1]) if scanned else tuple(found)
        return normalize(self.norm, x), new

    def _run(
        self,
        layer: Callable[..., tuple[Array, Any]],
        x: Float[Array, "B T D"],
        mask: Mask,
        pos: ArrayLike,
        each: dict[str, Any],
        *,
        remat: bool = False,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Returns x after `x, found = layer(block, x, **options)` of every layer, and all `found`: a list, or stacked.

        Options are the mask and the positions of the layer, and its entries of `each`.
        """
        L = self.config.layers
        for name in each.keys() & {"gate", "cross_gate"}:
            if each[name] is not None and each[name].shape[0] != L:
                raise ValueError(f"gate must have one row per layer, {L}, got shape {each[name].shape}")
        if self.config.scan_layers:
            same: dict[str, Any] = {"mask": self._layer_mask(mask, 0)}
            (each if self._by_layer(pos, 0) else same)["pos"] = pos
            if isinstance(each.get("key"), list):
                each["key"] = jnp.stack(each["key"])
            body = lambda x, inputs: layer(inputs[0], x, **same, **inputs[1])
            # A loop keeps XLA from finding what was computed before, so that nothing need prevent it.
            return jax.lax.scan(jax.checkpoint(body, prevent_cse=False) if remat else body, x, (self.blocks, each))
        found = []
        for i, block in enumerate(self.blocks):
            own = {name: None if entries is None else entries[i] for name, entries in each.items()}
            own |= {"mask": self._layer_mask(mask, i), "pos": self._pos(pos, i), "params": self._params(i)}
            run = functools.partial(layer, block, **own)
            x, one = (jax.checkpoint(run) if remat else run)(x)
            found.append(one)
        return x, found

    def _params(self, layer: int) -> EncodingParams | None:
        return self.blocks[encoding_owner(self.config, layer)].attention.encoding_params()

    def _pos(self, pos: ArrayLike, layer: int) -> ArrayLike:
        """Returns the positions of one layer: its slice of [L, B, T], or the same [T] or [B, T] for all layers."""
        return pos[layer] if self._by_layer(pos, layer) else pos

    def _by_layer(self, pos: ArrayLike, layer: int) -> bool:
        if not is_array(pos):
            raise ValueError(f"positions must be an array [T], [B, T] or [L, B, T], got {described(pos)}")
        traits = attention_encoding(self.config, layer).traits
        by_layer = pos.ndim == (4 if Trait.AXES in traits and Trait.CONTEXT not in traits else 3)
        if by_layer and pos.shape[0] != self.config.layers:
            raise ValueError(f"positions [L, B, T] must have one row per layer, {self.config.layers}, got {pos.shape}")
        return by_layer

    def _layer_mask(self, mask: Mask, layer: int) -> Mask:
        """Returns the mask with the window that the config gives this layer, unless the mask has one."""
        check_mask(mask)
        if mask.window is not None:
            return mask
        window = self.config.layer_windows[layer]
        return dataclasses.replace(mask, window=window, first=mask.first or self.config.window_first)


def with_parameters(make: Callable[[], Model], parameters: PyTree) -> Model:
    """Returns the model that `make` makes, with these parameters, a pure dict, in place of its own; none are drawn.

    Example:
      >>> from attnjax.modules import Encoder
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32)
      >>> make = lambda: Encoder(config, rngs=nnx.Rngs(0))
      >>> model = make()
      >>> same = with_parameters(make, nnx.to_pure_dict(nnx.split(model, graph=False)[1]))
      >>> bool((same(np.arange(3)[None]) == model(np.arange(3)[None])).all())
      True
    """
    graph, state = nnx.split(nnx.eval_shape(make), graph=False)
    nnx.replace_by_pure_dict(state, parameters)
    return nnx.merge(graph, state)


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
            if node.config.scan_layers and node.blocks.attention.encoding in constants:
                of_one = constants[node.blocks.attention.encoding]
                of_layers = stacked([of_one] * node.config.layers)
                node.blocks.attention.constants = nnx.data(of_layers)
