"""The encoder-decoder model of sequence to sequence tasks: the original Transformer and T5."""

import dataclasses
from typing import NamedTuple

from flax import nnx

from attnjax.attention import Mask
from attnjax.attention.masks import causal
from attnjax.config.architecture import Window
from attnjax.modules.block import Memory
from attnjax.modules.config import TransformerConfig
from attnjax.modules.dropout import split
from attnjax.modules.embedding import TokenEmbedding
from attnjax.modules.query_subset import gathered
from attnjax.modules.stack import Caches, Memories, Stack
from attnjax.modules.token_model import positions
from attnjax.typing import Array, ArrayLike, Float, Int, Key

OF_EMBEDDING = ("vocab", "embed_scale", "embed_std", "token_types", "dtype", "param_dtype")
"""Fields of a config that describe its embedding."""


class Gates(NamedTuple):
    """A factor of the output of each head, [L, N] or [L, B, N], in the three kinds of attention; 0 removes a head.

    Example:
      >>> import jax.numpy as jnp
      >>> Gates(cross=jnp.zeros((2, 4))).encoder is None
      True
    """

    encoder: Float[Array, "L *B N"] | None = None
    decoder: Float[Array, "L *B N"] | None = None
    cross: Float[Array, "L *B N"] | None = None


NO_GATES = Gates()


class Weights(NamedTuple):
    """The attention weights of every layer, in the three kinds of attention."""

    encoder: Float[Array, "L B N S S"]
    decoder: Float[Array, "L B N T T"]
    cross: Float[Array, "L B N T S"]


class Session(NamedTuple):
    """The state of decoding: a KV cache of the target per layer, and the keys and values of the source per layer."""

    caches: Caches
    memories: Memories


class EncoderDecoder(nnx.Module):
    """Maps source tokens [B, S] and target tokens [B, T] to logits of the next target token [B, T, V].

    Cross-attention has no positional encoding.

    Args:
      encoder: config of the encoder.
      decoder: config of the decoder; the encoder's unless given.
      share_embedding: source, target and (with `tie_embeddings`) the output layer use one embedding matrix. Then
        both configs must describe the same one: `vocab`, `embed_scale`, `embed_std`, `token_types` and the dtypes.
      rngs: the stream `params` draws the initial values.

    Raises:
      ValueError: configs that do not fit together.

    Reference: Vaswani et al. 2017 (arXiv:1706.03762), figure 1.

    Example:
      >>> import numpy as np
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32)
      >>> model = EncoderDecoder(config, rngs=nnx.Rngs(0))
      >>> source, target = np.array([[3, 1, 4, 1]]), np.array([[0, 2]])
      >>> model(source, target).shape
      (1, 2, 11)
    """

    def __init__(
        self,
        encoder: TransformerConfig,
        decoder: TransformerConfig | None = None,
        *,
        share_embedding: bool = True,
        rngs: nnx.Rngs,
    ):
        decoder = encoder if decoder is None else decoder
        for name in ("model", *OF_EMBEDDING) if share_embedding else ("model",):
            if getattr(encoder, name) != getattr(decoder, name):
                shared = ", which share an embedding" if name in OF_EMBEDDING else ""
                raise ValueError(
                    f"EncoderDecoder: {name} must be the same in encoder and decoder{shared}, got "
                    f"{getattr(encoder, name)} and {getattr(decoder, name)}"
                )
        self.config = decoder
        self.embedding = TokenEmbedding(decoder, rngs=rngs)
        self.source_embedding = None if share_embedding else TokenEmbedding(encoder, logits=False, rngs=rngs)
        self.encoder = Stack(encoder, rngs=rngs)
        self.decoder = Stack(decoder, cross=True, rngs=rngs)

    def __call__(
        self,
        source: Int[ArrayLike, "B S"],
        target: Int[ArrayLike, "B T"],
        *,
        source_pos: ArrayLike | None = None,
        target_pos: ArrayLike | None = None,
        source_mask: Mask = Mask(),
        target_mask: Mask = Mask(),
        gates: Gates = NO_GATES,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns the logits [B, T, V]; the mask of the target is made causal.

        Args:
          source, target: token ids [B, S] and [B, T].
          source_pos, target_pos: positions [S] or [B, S], [T] or [B, T]; the indices unless given.
          source_mask, target_mask: padding, segments and windows; padding of the source and equal segments also hold in
            cross-attention.
          gates: factors of heads.
          key: applies dropout at the rates of the configs; without it nothing is dropped.
        """
        keys = split(key, 2)
        memory = self.encode(source, pos=source_pos, mask=source_mask, gate=gates.encoder, key=keys[0])
        x = self.decoder(
            self.embedding(target),
            Memory(memory, _cross_mask(source_mask, target_mask)),
            mask=causal(target_mask),
            pos=positions(target, target_pos),
            gate=gates.decoder,
            cross_gate=gates.cross,
            key=keys[1],
        )
        return self.embedding.logits(x)

    def encode(
        self,
        source: Int[ArrayLike, "B S"],
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        gate: Float[Array, "L *B N"] | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B S D"]:
        """Returns the features of the encoder, [B, S, D]."""
        return self.encoder(self._embed_source(source), mask=mask, pos=positions(source, pos), gate=gate, key=key)

    def weights(
        self,
        source: Int[ArrayLike, "B S"],
        target: Int[ArrayLike, "B T"],
        *,
        source_pos: ArrayLike | None = None,
        target_pos: ArrayLike | None = None,
        source_mask: Mask = Mask(),
        target_mask: Mask = Mask(),
        gates: Gates = NO_GATES,
    ) -> Weights:
        """Returns the attention weights of a call with the same arguments."""
        x, at = self._embed_source(source), positions(source, source_pos)
        encoder, _ = self.encoder.weights(x, mask=source_mask, pos=at, gate=gates.encoder)
        memory = self.encode(source, pos=source_pos, mask=source_mask, gate=gates.encoder)
        decoder, cross = self.decoder.weights(
            self.embedding(target),
            Memory(memory, _cross_mask(source_mask, target_mask)),
            mask=causal(target_mask),
            pos=positions(target, target_pos),
            gate=gates.decoder,
            cross_gate=gates.cross,
        )
        assert cross is not None
        return Weights(encoder, decoder, cross)

    def start(
        self,
        source: Int[ArrayLike, "B S"],
        capacity: int,
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        window: Window | None = None,
    ) -> Session:
        """Encodes the source, and returns it with empty KV caches for `capacity` target tokens, ready for `decode`.

        `pos` and `mask` are those of the source; `window` is that of the caches, as in `Decoder.cache`.
        """
        memory = Memory(self.encode(source, pos=pos, mask=mask), Mask(k_valid=mask.k_valid))
        caches = self.decoder.cache(source.shape[0], capacity, window=window)
        return Session(caches, self.decoder.project_memory(memory))

    def decode(
        self,
        tokens: Int[ArrayLike, "B T"],
        session: Session,
        *,
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        query_indices: Int[Array, "B M"] | None = None,
    ) -> tuple[Float[Array, "B M V"], Session]:
        """Returns the logits at the next T target tokens, and the session with them appended; as `Decoder.decode`."""
        x = self.embedding(tokens)
        x, caches = self.decoder.decode(x, session.caches, session.memories, pos=pos, valid=valid)
        return self.embedding.logits(gathered(x, query_indices)), session._replace(caches=caches)

    def _embed_source(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S D"]:
        return (self.embedding if self.source_embedding is None else self.source_embedding)(source)


def _cross_mask(source: Mask, target: Mask) -> Mask:
    """Returns the mask of cross-attention: source padding is hidden, and in packed sequences other segments are too."""
    packed = source.k_segments is not None and target.q_segments is not None
    mask = Mask(k_valid=source.k_valid)
    return dataclasses.replace(mask, q_segments=target.q_segments, k_segments=source.k_segments) if packed else mask
