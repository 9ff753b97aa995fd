"""Encoder and decoder: from one sequence to another, as in the original Transformer and T5."""

import dataclasses
from typing import NamedTuple

from flax import nnx

from attnjax.attention import Mask
from attnjax.modules.block import Memory
from attnjax.modules.config import TransformerConfig, Window
from attnjax.modules.dropout import split
from attnjax.modules.embedding import TokenEmbedding
from attnjax.modules.stack import Caches, Stack
from attnjax.modules.token_model import positions
from attnjax.typing import Array, ArrayLike, Float, Int, Key


class Gates(NamedTuple):
    """Factors of each head's output, [L, N] or [L, B, N], in the three kinds of attention."""

    encoder: Float[Array, "L *B N"] | None = None
    decoder: Float[Array, "L *B N"] | None = None
    cross: Float[Array, "L *B N"] | None = None


NO_GATES = Gates()


class Weights(NamedTuple):
    """Attention weights of every layer, in the three kinds of attention."""

    encoder: Float[Array, "L B N S S"]
    decoder: Float[Array, "L B N T T"]
    cross: Float[Array, "L B N T S"]


class Session(NamedTuple):
    """What decoding remembers: a cache per layer, and the source as keys and values of each layer."""

    caches: Caches
    memories: tuple[Memory, ...]


class EncoderDecoder(nnx.Module):
    """Source ids [B, S] and target ids [B, T] to logits of the next target token [B, T, V].

    Args:
      encoder: config of the encoder.
      decoder: config of the decoder; the same as the encoder's unless given.
      share_embedding: source, target and (with `tie_embeddings`) the output use one matrix, as in 2017.

    Cross-attention has no positional encoding. Raises ValueError where the two do not fit together.
    Reference: Vaswani et al. 2017 (arXiv:1706.03762), figure 1.
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
        for name in ("model", "vocab") if share_embedding else ("model",):
            if getattr(encoder, name) != getattr(decoder, name):
                raise ValueError(
                    f"EncoderDecoder: {name} must be the same in encoder and decoder, got {getattr(encoder, name)} and "
                    f"{getattr(decoder, name)}"
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
        """Logits; the target is causal. Padding and segments of the masks hold in cross-attention too.

        Positions are the indices unless given. With a `key`, dropout.
        """
        keys = split(key, 2)
        memory = self.encode(source, pos=source_pos, mask=source_mask, gate=gates.encoder, key=keys[0])
        x = self.decoder(
            self.embedding(target),
            Memory(memory, _across(source_mask, target_mask)),
            mask=_causal(target_mask),
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
        """The encoder's features."""
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
        """Attention weights behind a call with the same arguments."""
        x, at = self._embed_source(source), positions(source, source_pos)
        encoder, _ = self.encoder.weights(x, mask=source_mask, pos=at, gate=gates.encoder)
        memory = self.encode(source, pos=source_pos, mask=source_mask, gate=gates.encoder)
        decoder, cross = self.decoder.weights(
            self.embedding(target),
            Memory(memory, _across(source_mask, target_mask)),
            mask=_causal(target_mask),
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
        """Encode the source, and empty caches for `capacity` target tokens. `pos` and `mask` belong to the source."""
        memory = Memory(self.encode(source, pos=pos, mask=mask), Mask(k_valid=mask.k_valid))
        caches = self.decoder.cache(source.shape[0], capacity, window=window)
        return Session(caches, self.decoder.remember(memory))

    def decode(
        self,
        tokens: Int[ArrayLike, "B T"],
        session: Session,
        *,
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
    ) -> tuple[Float[Array, "B T V"], Session]:
        """Logits of the next T target tokens, one or a chunk, and the session with them; as `Decoder.decode`."""
        x = self.embedding(tokens)
        x, caches = self.decoder.decode(x, session.caches, session.memories, pos=pos, valid=valid)
        return self.embedding.logits(x), session._replace(caches=caches)

    def _embed_source(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S D"]:
        return (self.embedding if self.source_embedding is None else self.source_embedding)(source)


def _causal(mask: Mask) -> Mask:
    return dataclasses.replace(mask, causal=True)


def _across(source: Mask, target: Mask) -> Mask:
    """Who in the target sees what in the source: what is not padding, and in packed sequences the same segment."""
    packed = source.k_segments is not None and target.q_segments is not None
    mask = Mask(k_valid=source.k_valid)
    return dataclasses.replace(mask, q_segments=target.q_segments, k_segments=source.k_segments) if packed else mask
