"""A stack of L Transformer layers over features, shared by encoders and decoders: it has positions, but no tokens.

Its layers are separate blocks that are unrolled, or with `config.scan_layers` one block of stacked parameters:

    unrolled    blocks[0] ... blocks[L-1], each traced and compiled on its own
    scanned     one block whose parameters have a leading axis [L], traced once, in `jax.lax.scan`

Both compute the same numbers from the same parameters, and start from the same ones. Of a training step with AdamW (D = 256,
N = 4, F = 1024, RoPE, B = 8, T = 128, float32), seconds of the processor to trace and to compile, and MiB of temporary memory,
on a CPU with jax 0.10.2:

    layers  remat    unrolled: trace  compile  memory    scanned: trace  compile  memory
         2     no                0.7      3.0      79               0.5      4.0     107
         2    yes                0.5      3.1      87               0.4      3.8      53
        12     no                2.3      8.9     429               0.4      3.9     495
        12    yes                2.7     10.5     478               0.4      3.7      94
        48     no                7.8    138.0    1690               0.4      4.4    1891
        48    yes               12.7    135.5    1883               0.3      4.0     238

In a loop `remat` saves memory on a CPU too. Two layers are compiled no faster. The last layer is computed for all positions,
also where `query_indices` ask for few. Decoding is unrolled.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.attention import KVCache, Mask
from attnjax.attention.masks import check_mask
from attnjax.config.architecture import Window
from attnjax.modules.attention import MultiHeadAttention, gather
from attnjax.modules.block import Memory, TransformerBlock
from attnjax.modules.config import TransformerConfig
from attnjax.modules.parameters import drop, encoding_parameters, encoding_values, norm, normalize, split
from attnjax.positions import PositionEncoding, embed, learns
from attnjax.positions.checks import described, is_array
from attnjax.positions.compose import parts_of
from attnjax.typing import Array, ArrayLike, Float, Int, Key, PyTree

Blocks = nnx.List | TransformerBlock
Caches = tuple[KVCache, ...]
Memories = tuple[Memory, ...]
Gate = Float[Array, "L *B N"]


class Stack(nnx.Module):
    """Maps features [B, T, D] to [B, T, D]: encodings of the input, the blocks, and a final norm if pre-norm.

    The learned parameters are `blocks`, with `config.scan_layers` one block of stacked parameters; `norm`; `input_norm` if
    `config.embedding_norm`; and `inputs`, those of encodings that act on the input.

    Arguments of its methods:
      x: features [B, T, D].
      memory: the input of cross-attention, in a stack built with `cross`.
      mask: of self-attention, as in `attend`. A window in it replaces those of the config.
      pos: positions [T] or [B, T], or [L, B, T] where every layer has its own; the input takes those of the first layer. For
        an encoding with A coordinates also [B, T, A] or [L, B, T, A]; without the last axis all coordinates are the same.
      gate: a factor of the output of each head of self-attention, [L, N] or [L, B, N].
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
        self.config, self.encodings = config, config.input_encodings
        initial = functools.partial(encoding_parameters, sizes=config.sizes, dtype=config.param_dtype, rngs=rngs)
        # What learns nothing takes no key, so that models of one seed start from the same weights with it and without it.
        self.inputs = nnx.data([initial(one) if learns(one) else {} for one in self.encodings])
        self.constants = nnx.data([{} for _ in self.encodings])
        self.blocks: Any = make_blocks(config, cross=cross, rngs=rngs)
        self.norm = norm(config, rngs) if config.norm_position == "pre" else None
        self.input_norm = norm(config, rngs) if config.embedding_norm else None

    def embed(self, x: Float[Array, "B T D"], pos: ArrayLike) -> Float[Array, "B T D"]:
        """Returns x after the hook `embed` of each distinct encoding, applied once, and after the norm of the input."""
        chex.assert_shape(x, (None, None, self.config.model))
        for encoding, params, constants in zip(self.encodings, self.inputs, self.constants, strict=True):
            x = embed(encoding, encoding_values(params, constants), x, self._pos(pos, 0))
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
        gate: Gate | None = None,
        key: Key[Array, ""] | None = None,
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the features of every position, or of `query_indices` alone (of which scanned layers compute all)."""
        L, scanned = self.config.layers, self.config.scan_layers
        *keys, last = split(key, L + 1)
        each: dict[str, Any] = {"key": keys, "gate": gate}
        if not scanned:
            each["query_indices"] = [None] * (L - 1) + [query_indices]
        layer = lambda block, x, **own: (block(x, memory, axis_name=axis_name, **own), None)
        x = drop(self.embed(x, pos), last, self.config.input_dropout)
        x, _ = self._run(layer, x, mask, pos, each, remat=self.config.remat)
        return normalize(self.norm, gather(x, query_indices, 1) if scanned and query_indices is not None else x)

    def hidden_states(
        self, x: Float[Array, "B T D"], *, mask: Mask = Mask(), pos: ArrayLike, gate: Gate | None = None
    ) -> Float[Array, "_ B T D"]:
        """Returns the input of each layer and the features of the last, [L + 1, B, T, D]."""
        layer = lambda block, x, **own: (block(x, **own), x)
        x, states = self._run(layer, self.embed(x, pos), mask, pos, {"gate": gate}, remat=self.config.remat)
        return jnp.concatenate([stacked(states), normalize(self.norm, x)[None]])

    def weights(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        *,
        mask: Mask = Mask(),
        pos: ArrayLike,
        gate: Gate | None = None,
    ) -> tuple[Float[Array, "L B N T T"], Float[Array, "L B N T S"] | None]:
        """Returns the weights of self-attention and of cross-attention (None without it) of every layer."""
        layer = lambda block, x, **own: (block(x, memory, **own), block.weights(x, memory, **own))
        return stacked(self._run(layer, self.embed(x, pos), mask, pos, {"gate": gate})[1])

    def cache(self, batch: int, capacity: int, *, window: Window | None = None, length: int | None = None) -> Caches:
        """Returns an empty KV cache per layer, in `config.dtype`; with a `window`, ring buffers (`KVCache.create`)."""
        options = {"dtype": jnp.dtype(self.config.dtype), "window": window, "length": length}
        return tuple(block.attention.cache(batch, capacity, **options) for block in self.layers)

    def project_memory(self, memory: Memory) -> Memories:
        """Returns the memory with its keys and values computed, one for each layer."""
        return tuple(block.project_memory(memory) for block in self.layers)

    def decode(
        self,
        x: Float[Array, "B T D"],
        caches: Caches,
        memories: Memories | None = None,
        *,
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
    ) -> tuple[Float[Array, "B T D"], Caches]:
        """Returns the features of the next T positions under a causal mask, and the caches with them appended.

        Layers are unrolled, also with `scan_layers`: a loop would copy the cache of a layer for every token.

        Args:
          x: embeddings of the new tokens, [B, T, D].
          caches: from `cache`.
          memories: from `project_memory`.
          pos: as above. Unless given, the first is the number of tokens in the cache, padding included, whatever the
            positions of these are.
          valid: booleans [T] or [B, T]; False marks padding.

        Raises:
          ValueError: a wrong number of caches.
        """
        if len(caches) != self.config.layers:
            raise ValueError(f"decode needs one cache per layer, {self.config.layers}, got {len(caches)}")
        pos = caches[0].index + np.arange(x.shape[1], dtype=np.int32) if pos is None else pos
        layer = lambda block, x, cache, memory, **own: block.decode(x, cache, memory, valid=valid, **own)
        each = {"cache": caches, "memory": memories}
        x, found = self._run(layer, self.embed(x, pos), Mask(causal=True), pos, each, loop=False)
        return normalize(self.norm, x), tuple(found)

    def _run(
        self,
        layer: Callable[..., tuple[Array, Any]],
        x: Float[Array, "B T D"],
        mask: Mask,
        pos: ArrayLike,
        each: dict[str, Any],
        *,
        remat: bool = False,
        loop: bool = True,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Returns x after `x, found = layer(block, x, **own)` of every layer, and all `found`: a list, or stacked by a `loop`.

        `own` has the mask and the positions of the layer, and its entries of `each`.
        """
        L = self.config.layers
        gate = each.get("gate")
        if gate is not None and gate.shape[0] != L:
            raise ValueError(f"gate must have one row per layer, {L}, got shape {gate.shape}")
        if self.config.scan_layers and loop:
            each = {name: stacked(entries) for name, entries in each.items()}
            each, same = ({**each, "pos": pos}, {}) if self._by_layer(pos, 0) else (each, {"pos": pos})
            body = lambda x, row: layer(row[0], x, mask=self._mask(mask, 0), **same, **row[1])
            # A loop keeps XLA from finding the numbers that were computed before, so that nothing need prevent it.
            return jax.lax.scan(jax.checkpoint(body, prevent_cse=False) if remat else body, x, (self.blocks, each))
        found, blocks = [], self.layers
        for i, (block, owner) in enumerate(zip(blocks, self.config.encoding_owners, strict=True)):
            own = {name: None if entries is None else entries[i] for name, entries in each.items()}
            own["params"] = blocks[owner].attention.encoding_params()
            run = functools.partial(layer, block, mask=self._mask(mask, i), pos=self._pos(pos, i), **own)
            x, one = (jax.checkpoint(run) if remat else run)(x)
            found.append(one)
        return x, found

    def _pos(self, pos: ArrayLike, layer: int) -> ArrayLike:
        """Returns the positions of one layer: its slice of those by layer, or the same for all layers."""
        return pos[layer] if self._by_layer(pos, layer) else pos

    def _by_layer(self, pos: ArrayLike, layer: int) -> bool:
        if not is_array(pos):
            raise ValueError(f"positions must be an array [T], [B, T] or [L, B, T], got {described(pos)}")
        axes = any(part.axes is not None for part in parts_of(self.config.attention_encodings[layer]))
        by_layer = pos.ndim == (4 if axes else 3)
        if by_layer and pos.shape[0] != self.config.layers:
            raise ValueError(f"positions [L, B, T] must have one row per layer, {self.config.layers}, got {pos.shape}")
        return by_layer

    def _mask(self, mask: Mask, layer: int) -> Mask:
        """Returns the mask with the window that the config gives this layer, unless the mask has one."""
        check_mask(mask)
        if mask.window is not None:
            return mask
        window = self.config.layer_windows[layer]
        return dataclasses.replace(mask, window=window, first=mask.first or self.config.window_first)


def make_blocks(config: TransformerConfig, *, cross: bool, rngs: nnx.Rngs) -> Blocks:
    """Returns the blocks of a stack; stacked ones start from the numbers that separate ones would have.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=3, heads=2, hidden=32, scan_layers=True)
      >>> make_blocks(config, cross=False, rngs=nnx.Rngs(0)).attention.w_q.shape
      (3, 16, 2, 8)
    """
    if not config.scan_layers:
        return nnx.List([TransformerBlock(config, i, cross=cross, rngs=rngs) for i in range(config.layers)])
    stream = rngs.params

    def make(count: Array, _: None) -> tuple[Array, TransformerBlock]:
        """The next block, which draws its keys where the one before it stopped."""
        own = nnx.Rngs(params=stream.key[...])
        own.params.count[...] = count
        block = TransformerBlock(config, cross=cross, rngs=own)
        return own.params.count[...], block

    stream.count[...], blocks = jax.lax.scan(make, stream.count[...], length=config.layers)
    return blocks


def separate(blocks: Blocks) -> list[TransformerBlock]:
    """Returns the blocks of the layers one by one, those of a stacked block as slices of it."""
    if isinstance(blocks, nnx.List):
        return list(blocks)
    leaves, structure = jax.tree.flatten(blocks)
    return [jax.tree.unflatten(structure, [leaf[i] for leaf in leaves]) for i in range(leaves[0].shape[0])]


def stacked(found: Any) -> PyTree:
    """Returns the results of all layers with a leading axis of layers: a list is stacked, those of `jax.lax.scan` have it."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found) if isinstance(found, list) else found


def replace_constants(model: nnx.Module, constants: Mapping[PositionEncoding, PyTree]) -> None:
    """Puts other constants, traced or not, in place of those of these encodings, in every layer and on the input.

    So the runs of a population differ in bases, scalings or slopes and share one program; see
    `attnjax.positions.stacked_constants`. The model keeps them until others are put in their place.

    Example:
      >>> from attnjax.modules import Encoder
      >>> from attnjax.positions import RoPE
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32, encoding=RoPE())
      >>> model = Encoder(config, rngs=nnx.Rngs(0))
      >>> replace_constants(model, {RoPE(): RoPE(theta=500.0).constants(config.sizes)})
      >>> float(model.stack.blocks[1].attention.constants["frequencies"].radians[1])
      0.21147425268811282
    """
    for _, node in nnx.iter_graph(model):
        if isinstance(node, MultiHeadAttention) and node.encoding in constants:
            node.constants = nnx.data(constants[node.encoding])
        elif isinstance(node, Stack):
            node.constants = nnx.data([constants.get(one, {}) for one in node.encodings])
            if node.config.scan_layers and node.blocks.attention.encoding in constants:
                of_layers = stacked([constants[node.blocks.attention.encoding]] * node.config.layers)
                node.blocks.attention.constants = nnx.data(of_layers)
