"""The models: token ids to features and logits, through one stack (`Encoder`, `Decoder`) or two (`EncoderDecoder`).

    features = stack(embedding(tokens), mask, positions)
    logits   = embedding.logits(features)

A token without a position is at its index in the sequence, or in its document where the mask has segments.
"""

import dataclasses
from typing import NamedTuple

from flax import nnx

from attnjax.attention import Mask
from attnjax.attention.masks import causal, check_mask
from attnjax.config.architecture import Window
from attnjax.modules.attention import default_positions, gather
from attnjax.modules.block import Memory
from attnjax.modules.config import TransformerConfig
from attnjax.modules.embedding import OF_EMBEDDING, TokenEmbedding, Tokens
from attnjax.modules.parameters import split
from attnjax.modules.stack import Caches, Gate, Memories, Stack
from attnjax.typing import Array, ArrayLike, Float, Int, Key

Source = Int[ArrayLike, "B S"]


def _positions(tokens: Tokens, pos: ArrayLike | None, mask: Mask, axis_name: str | None = None) -> ArrayLike:
    check_mask(mask)
    return default_positions(tokens.shape[1], mask, axis_name) if pos is None else pos


class TokenModel(nnx.Module):
    """Maps token ids [B, T] to features [B, T, D] and to logits [B, T, V]; the base of `Encoder` and `Decoder`.

    Arguments of its methods:
      tokens: [B, T] in 0 .. V-1.
      pos: positions [T] or [B, T], or [L, B, T] where every layer has its own; for an encoding with A coordinates also
        [B, T, A] or [L, B, T, A]. Unless given they are 0, 1, ..., and restart at each document of the mask.
      mask: padding, packing and windows; see `Mask`. A window in it replaces those of the config.
      gate: a factor of the output of each head, [L, N] or [L, B, N]; 0 removes a head.
      key: applies dropout at the rates of the config; without it nothing is dropped.
      query_indices: [B, M], the indices at which the last layer and the logits are computed; all T unless given.
      types: [B, T], the type of each token where the config has `token_types`; 0 unless given, and where a method takes none.
      axis_name: inside `jax.shard_map`, the mesh axis over which the T tokens are spread, as in `attend`.

    Raises:
      ValueError: tokens, types or shapes that do not fit the config.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embedding = TokenEmbedding(config, rngs=rngs)
        self.stack = Stack(config, rngs=rngs)

    def __call__(
        self,
        tokens: Tokens,
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        gate: Gate | None = None,
        key: Key[Array, ""] | None = None,
        types: Tokens | None = None,
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, "B M V"]:
        """Returns the logits over the vocabulary, [B, T, V], or [B, M, V] at `query_indices`."""
        options = {"pos": pos, "mask": mask, "gate": gate, "key": key, "types": types, "axis_name": axis_name}
        return self.output(self.features(tokens, query_indices=query_indices, **options))

    def features(
        self,
        tokens: Tokens,
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        gate: Gate | None = None,
        key: Key[Array, ""] | None = None,
        types: Tokens | None = None,
        query_indices: Int[Array, "B M"] | None = None,
        axis_name: str | None = None,
    ) -> Float[Array, "B M D"]:
        """Returns the output of the last layer after the final norm, [B, T, D], or [B, M, D] at `query_indices`."""
        mask = self.rules(mask)
        x, pos = self.embedding(tokens, types), _positions(tokens, pos, mask, axis_name)
        options = {"gate": gate, "key": key, "query_indices": query_indices, "axis_name": axis_name}
        return self.stack(x, mask=mask, pos=pos, **options)

    def hidden_states(
        self, tokens: Tokens, *, pos: ArrayLike | None = None, mask: Mask = Mask(), gate: Gate | None = None
    ) -> Float[Array, "_ B T D"]:
        """Returns the input of each layer and the features of the last, [L + 1, B, T, D]."""
        mask = self.rules(mask)
        pos = _positions(tokens, pos, mask)
        return self.stack.hidden_states(self.embedding(tokens), mask=mask, pos=pos, gate=gate)

    def weights(
        self, tokens: Tokens, *, pos: ArrayLike | None = None, mask: Mask = Mask(), gate: Gate | None = None
    ) -> Float[Array, "L B N T T"]:
        """Returns the attention weights of every layer: row t is those of position t over the keys that it sees.

        A row sums to 1, or to less with `attention_sink` and under encodings without a softmax, such as `StickBreaking`.
        """
        mask = self.rules(mask)
        pos = _positions(tokens, pos, mask)
        return self.stack.weights(self.embedding(tokens), mask=mask, pos=pos, gate=gate)[0]

    def output(self, features: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Returns the logits of features: the output layer alone."""
        return self.embedding.logits(features)

    def rules(self, mask: Mask) -> Mask:
        """Returns the mask with the rules of this kind of model."""
        return mask


class Encoder(TokenModel):
    """Maps tokens to logits in both directions, as BERT; its `features` are the memory of a decoder.

    Its methods and their arguments are those of `TokenModel`. Encodings are those of `TransformerConfig.for_encoder`.

    Args:
      config: sizes and options.
      rngs: the stream `params` draws the initial values.

    Raises:
      ValueError: an encoding that exists for causal masks alone, such as `XPos`.

    Example:
      >>> import numpy as np
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32)
      >>> encoder = Encoder(config, rngs=nnx.Rngs(0))
      >>> encoder(np.array([[1, 2, 3]])).shape
      (1, 3, 11)
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        super().__init__(config.for_encoder(), rngs=rngs)


class Decoder(TokenModel):
    """Maps tokens [B, T] to logits of the next token [B, T, V], all at once or in parts through KV caches.

    Every token sees itself and the tokens before it. Its methods and their arguments are those of `TokenModel`, and `cache` and
    `decode`:

        caches = model.cache(batch, capacity)
        logits, caches = model.decode(tokens, caches)       one token or a chunk, as often as the capacity allows

    The logits of `decode` equal those of one call with all tokens. Under encodings that depend on the length (`DynamicNTK`,
    `LongRoPE`) that is a call with as many tokens as the cache has room for.

    Args:
      config: sizes and options.
      rngs: the stream `params` draws the initial values.

    Example:
      >>> import jax.numpy as jnp
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32)
      >>> decoder = Decoder(config, rngs=nnx.Rngs(0))
      >>> tokens = jnp.array([[1, 2, 3]])
      >>> decoder(tokens).shape
      (1, 3, 11)
      >>> logits, caches = decoder.decode(tokens[:, :1], decoder.cache(batch=1, capacity=3))
      >>> bool(jnp.allclose(logits, decoder(tokens)[:, :1], atol=1e-5))
      True
    """

    def rules(self, mask: Mask) -> Mask:
        """Returns the mask with `causal=True`."""
        return causal(mask)

    def cache(self, batch: int, capacity: int, *, window: Window | None = None, length: int | None = None) -> Caches:
        """Returns an empty KV cache per layer for `capacity` tokens; with a `window`, ring buffers that keep so many tokens.

        `length`: of the sequence, for encodings that depend on it; the capacity unless given.
        """
        return self.stack.cache(batch, capacity, window=window, length=length)

    def decode(
        self,
        tokens: Tokens,
        caches: Caches,
        *,
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        query_indices: Int[Array, "B M"] | None = None,
    ) -> tuple[Float[Array, "B M V"], Caches]:
        """Returns the logits at the next T tokens, [B, T, V], and the caches with these tokens appended.

        Args:
          tokens: the new tokens, [B, T].
          caches: from `cache`, or returned by an earlier call.
          pos: positions of the new tokens. Unless given, the first is the number of tokens in the cache, padding included,
            whatever the positions of these are.
          valid: booleans [T] or [B, T]; False marks padding.
          query_indices: [B, M], those of the T tokens at which logits are computed; all T unless given.

        Raises:
          ValueError: shapes that do not fit, or more tokens than the capacity.
        """
        x, caches = self.stack.decode(self.embedding(tokens), caches, pos=pos, valid=valid)
        return self.output(x if query_indices is None else gather(x, query_indices, 1)), caches


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

    Cross-attention has no positional encoding. Encodings of the encoder are those of `TransformerConfig.for_encoder`. Source,
    target and (with `tie_embeddings`) the output layer use one embedding matrix, which both configs must describe alike:
    `vocab`, `model`, `embed_scale`, `embed_std`, `token_types` and the dtypes.

    Args:
      encoder: config of the encoder.
      decoder: config of the decoder; the encoder's unless given.
      rngs: the stream `params` draws the initial values.

    Raises:
      ValueError: configs that do not fit together, or an encoding of the encoder that exists for causal masks alone.

    Reference: Vaswani et al. 2017 (arXiv:1706.03762), figure 1.

    Example:
      >>> import numpy as np
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32)
      >>> model = EncoderDecoder(config, rngs=nnx.Rngs(0))
      >>> source, target = np.array([[3, 1, 4, 1]]), np.array([[0, 2]])
      >>> model(source, target).shape
      (1, 2, 11)
    """

    def __init__(self, encoder: TransformerConfig, decoder: TransformerConfig | None = None, *, rngs: nnx.Rngs):
        decoder = encoder if decoder is None else decoder
        for name in ("model", *OF_EMBEDDING):
            ours, theirs = getattr(encoder, name), getattr(decoder, name)
            if ours != theirs:
                why = "" if name == "model" else ", which share an embedding"
                raise ValueError(
                    f"EncoderDecoder: {name} must be the same in encoder and decoder{why}, got {ours} and {theirs}"
                )
        self.config = decoder
        self.embedding = TokenEmbedding(decoder, rngs=rngs)
        self.encoder = Stack(encoder.for_encoder(), rngs=rngs)
        self.decoder = Stack(decoder, cross=True, rngs=rngs)

    def __call__(
        self,
        source: Source,
        target: Tokens,
        *,
        source_pos: ArrayLike | None = None,
        target_pos: ArrayLike | None = None,
        source_mask: Mask = Mask(),
        target_mask: Mask = Mask(),
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns the logits [B, T, V]; the mask of the target is made causal.

        Args:
          source, target: token ids [B, S] and [B, T].
          source_pos, target_pos: positions, as in `TokenModel`.
          source_mask, target_mask: padding, segments and windows; padding of the source and equal segments also hold in
            cross-attention.
          key: applies dropout at the rates of the configs; without it nothing is dropped.
        """
        keys, mask = split(key, 2), causal(target_mask)
        memory = self.encode(source, pos=source_pos, mask=source_mask, key=keys[0])
        memory = Memory(memory, _cross_mask(source_mask, target_mask))
        x, pos = self.embedding(target), _positions(target, target_pos, mask)
        return self.embedding.logits(self.decoder(x, memory, mask=mask, pos=pos, key=keys[1]))

    def encode(
        self,
        source: Source,
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B S D"]:
        """Returns the features of the encoder, [B, S, D]."""
        pos = _positions(source, pos, mask)
        return self.encoder(self.embedding(source), mask=mask, pos=pos, key=key)

    def weights(
        self,
        source: Source,
        target: Tokens,
        *,
        source_pos: ArrayLike | None = None,
        target_pos: ArrayLike | None = None,
        source_mask: Mask = Mask(),
        target_mask: Mask = Mask(),
    ) -> Weights:
        """Returns the attention weights of a call with the same arguments."""
        mask, at = causal(target_mask), _positions(source, source_pos, source_mask)
        encoder, _ = self.encoder.weights(self.embedding(source), mask=source_mask, pos=at)
        memory = self.encode(source, pos=source_pos, mask=source_mask)
        memory = Memory(memory, _cross_mask(source_mask, target_mask))
        x, pos = self.embedding(target), _positions(target, target_pos, mask)
        decoder, cross = self.decoder.weights(x, memory, mask=mask, pos=pos)
        assert cross is not None
        return Weights(encoder, decoder, cross)

    def start(
        self,
        source: Source,
        capacity: int,
        *,
        pos: ArrayLike | None = None,
        mask: Mask = Mask(),
        window: Window | None = None,
        length: int | None = None,
    ) -> Session:
        """Encodes the source, and returns it with empty KV caches for `capacity` target tokens, ready for `decode`.

        `pos` and `mask` are those of the source; `window` and `length` are those of the caches, as in `Decoder.cache`.
        """
        memory = Memory(self.encode(source, pos=pos, mask=mask), Mask(k_valid=mask.k_valid))
        caches = self.decoder.cache(source.shape[0], capacity, window=window, length=length)
        return Session(caches, self.decoder.project_memory(memory))

    def decode(
        self,
        tokens: Tokens,
        session: Session,
        *,
        pos: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        query_indices: Int[Array, "B M"] | None = None,
    ) -> tuple[Float[Array, "B M V"], Session]:
        """Returns the logits at the next T target tokens, and the session with them appended; as `Decoder.decode`."""
        x, caches = self.decoder.decode(self.embedding(tokens), session.caches, session.memories, pos=pos, valid=valid)
        x = x if query_indices is None else gather(x, query_indices, 1)
        return self.embedding.logits(x), session._replace(caches=caches)


def _cross_mask(source: Mask, target: Mask) -> Mask:
    """Returns the mask of cross-attention: source padding is hidden, and in packed sequences other segments are too."""
    packed = source.k_segments is not None and target.q_segments is not None
    mask = Mask(k_valid=source.k_valid)
    return dataclasses.replace(mask, q_segments=target.q_segments, k_segments=source.k_segments) if packed else mask
