"""L layers over vectors: the part that encoders and decoders share. It knows positions, but no tokens."""

import dataclasses

import jax.numpy as jnp
from flax import nnx

from attnjax.attention import KVCache, Mask
from attnjax.modules.block import Memory, TransformerBlock
from attnjax.modules.config import TransformerConfig, Window
from attnjax.modules.dropout import drop, split
from attnjax.modules.parameters import encoding_parameters, norm, normalize, values
from attnjax.modules.placement import input_encodings, owner
from attnjax.positions import EncodingParams, embed
from attnjax.typing import Array, ArrayLike, Float, Int, Key

Caches = tuple[KVCache, ...]


class Stack(nnx.Module):
    """[B, T, D] -> [B, T, D]: positions into the input, `config.layers` blocks, and for pre-norm a last norm.

    Gates are [L, N] or [L, B, N]. Positions are [T] or [B, T], or [L, B, T] with their own for each layer; the input has
    those of the first. Parameters: `blocks`, `norm`, `input_norm` if `config.embedding_norm`, and `inputs`, what encodings
    of the input learn.
    """

    def __init__(self, config: TransformerConfig, *, cross: bool = False, rngs: nnx.Rngs):
        self.config = config
        self.encodings = input_encodings(config)
        dtype = config.param_dtype
        self.inputs = nnx.data([encoding_parameters(e, config.sizes, dtype=dtype, rngs=rngs) for e in self.encodings])
        self.blocks = nnx.List([TransformerBlock(config, i, cross=cross, rngs=rngs) for i in range(config.layers)])
        self.norm = norm(config, rngs) if config.norm_position == "pre" else None
        self.input_norm = norm(config, rngs) if config.embedding_norm else None

    def embed(self, x: Float[Array, "B T D"], pos: ArrayLike) -> Float[Array, "B T D"]:
        """x with the hook `embed` of each distinct encoding applied once, and the norm of the input."""
        for encoding, params in zip(self.encodings, self.inputs, strict=True):
            x = embed(encoding, values(params), x, self._pos(pos, 0))
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
        rows: Int[Array, "B M"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Features of every position, or of `rows` alone. Arguments as in `TransformerBlock`."""
        return self._layers(x, memory, mask, pos, gate, cross_gate, key, rows)[-1]

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
        """The input of each layer, and last the features."""
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
        """Attention weights of every layer, of self-attention and of cross-attention (None without)."""
        states = self._layers(x, memory, mask, pos, gate, cross_gate, None)
        found = []
        for i, block in enumerate(self.blocks):
            options = {"pos": self._pos(pos, i), "gate": self._gate(gate, i), "params": self._params(i)}
            found.append(block.weights(states[i], memory, mask=self._rules(mask, i), **options))
        own, cross = zip(*found, strict=True)
        return jnp.stack(own), None if memory is None else jnp.stack(cross)

    def cache(self, batch: int, capacity: int, *, window: Window | None = None, pos_dtype=jnp.int32) -> Caches:
        """An empty cache per layer for `decode`, in `config.dtype`; with a `window`, rings. See `KVCache.create`."""
        options = {"dtype": jnp.dtype(self.config.dtype), "window": window, "pos_dtype": pos_dtype}
        return tuple(block.attention.cache(batch, capacity, **options) for block in self.blocks)

    def remember(self, memory: Memory) -> tuple[Memory, ...]:
        """The memory as keys and values of each layer."""
        return tuple(block.remember(memory) for block in self.blocks)

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
        """Features of the next T positions, causal, and the caches with them appended.

        `pos` defaults to the running index; `valid=False` is padding. Raises ValueError for a wrong number of caches.
        """
        if len(caches) != len(self.blocks):
            raise ValueError(f"decode needs one cache per layer, {len(self.blocks)}, got {len(caches)}")
        pos = caches[0].index + jnp.arange(x.shape[1], dtype=jnp.int32) if pos is None else pos
        x, new = self.embed(x, pos), []
        for i, block in enumerate(self.blocks):
            x, cache = block.decode(
                x,
                caches[i],
                None if memories is None else memories[i],
                mask=self._rules(Mask(causal=True), i),
                pos=self._pos(pos, i),
                valid=valid,
                gate=self._gate(gate, i),
                cross_gate=self._gate(cross_gate, i),
                params=self._params(i),
            )
            new.append(cache)
        return normalize(self.norm, x), tuple(new)

    def _layers(self, x, memory, mask: Mask, pos, gate, cross_gate, key, rows=None) -> list[Float[Array, "B T D"]]:
        keys = split(key, len(self.blocks) + 1)
        states = [drop(self.embed(x, pos), keys[-1], self.config.input_dropout)]
        for i, block in enumerate(self.blocks):
            options = {"gate": self._gate(gate, i), "cross_gate": self._gate(cross_gate, i), "pos": self._pos(pos, i)}
            options["rows"] = rows if i == len(self.blocks) - 1 else None
            rules, params = self._rules(mask, i), self._params(i)
            states.append(block(states[i], memory, mask=rules, **options, params=params, key=keys[i]))
        return [*states[:-1], normalize(self.norm, states[-1])]

    def _params(self, layer: int) -> EncodingParams | None:
        return self.blocks[owner(self.config, layer)].attention.encoding_params()

    def _gate(self, gate: Float[Array, "L *B N"] | None, layer: int) -> Float[Array, "*B N"] | None:
        if gate is not None and gate.shape[0] != len(self.blocks):
            raise ValueError(f"gate must have one row per layer, {len(self.blocks)}, got shape {gate.shape}")
        return None if gate is None else gate[layer]

    def _pos(self, pos: ArrayLike, layer: int) -> ArrayLike:
        """The positions of one layer: a row of [L, B, T], or the same [T] or [B, T] for all."""
        if pos.ndim == 3 and pos.shape[0] != len(self.blocks):
            raise ValueError(f"positions [L, B, T] must have one row per layer, {len(self.blocks)}, got {pos.shape}")
        return pos[layer] if pos.ndim == 3 else pos

    def _rules(self, mask: Mask, layer: int) -> Mask:
        """The mask with the layer's window of the config, unless it has its own."""
        return mask if mask.window is not None else dataclasses.replace(mask, window=self.config.layer_windows[layer])
