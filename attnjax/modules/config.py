"""The configuration of a Transformer: one frozen, validated record from which every module is built.

It also says where an encoding acts, and which layer holds its parameters. An encoding of the embeddings (hook `embed`) acts
once, on the input of the model, whatever the number of layers; every other one acts in each layer. So compose(Learned(64),
ALiBi()) in six layers is one table on the input and ALiBi six times. With `share_encoding` the first layer that has an encoding
holds its parameters for all layers that have it (T5).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

from attnjax.config.architecture import AttentionOptions, TransformerOptions, Window
from attnjax.config.kinds import Count, Index
from attnjax.positions import LMInfinite, NoPE, PositionEncoding, Sinusoidal, Sizes, StreamingLLM, learns
from attnjax.positions.base import IN_ATTENTION, validate_encoding
from attnjax.positions.compose import joined, parts_of


@dataclasses.dataclass(frozen=True)
class _Vocabulary:
    vocab: Count


@dataclasses.dataclass(frozen=True)
class TransformerConfig(TransformerOptions, _Vocabulary):
    """The sizes and kinds of all parts of an encoder or a decoder, with encodings as objects.

    The other options are those of `TransformerOptions` and `AttentionOptions`, which describe them for runs and modules alike.

    Args:
      vocab, model, layers, heads, hidden: vocabulary V, model width D, layers L, query heads N, feed-forward width F; the
        only ones that may be given by position, in this order.
      encoding: the positional encoding of every layer, or a tuple with one per layer; `NoPE()` unless given.
      token_types: number of token types (segments) that have a learned vector, added to the embedding (BERT); 0 is none.

    Raises:
      ValueError: a value out of range, a combination that cannot be built, or an encoding that is made for a window and first
        keys (`LMInfinite`, `StreamingLLM`) without these.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=4, hidden=64, encoding=Sinusoidal())
      >>> config.sizes[-1], config.layer_windows
      (4, (None, None))
    """

    encoding: PositionEncoding | tuple[PositionEncoding, ...] = dataclasses.field(default=NoPE(), kw_only=True)
    token_types: Index = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        for one in self.encoding if isinstance(self.encoding, tuple) else (self.encoding,):
            validate_encoding("TransformerConfig.encoding", one)
        self.check("TransformerConfig")
        check_windows("TransformerConfig", self.encodings, self)

    @classmethod
    def original_base(cls, vocab: int = 37_000) -> Self:
        """Returns the base model of Vaswani et al. 2017 (arXiv:1706.03762, table 3), for the encoder and the decoder.

        The projections of attention have no bias vectors; the feed-forward layer has them (equation 2 of the paper).
        """
        sizes = {"vocab": vocab, "model": 512, "layers": 6, "heads": 8, "hidden": 2048}
        kinds: dict[str, Any] = {
            "activation": "relu",
            "norm": "layer",
            "norm_position": "post",
            "encoding": Sinusoidal(),
        }
        biases = {"bias": False, "feed_forward_bias": True}
        return cls(**sizes, **kinds, **biases, embed_scale=True, tie_embeddings=True, residual_dropout=0.1)

    @property
    def sizes(self) -> Sizes:
        """The sizes D, N, K and H, with the defaults filled in."""
        return sizes(self.model, self.heads, self)

    @property
    def encodings(self) -> tuple[PositionEncoding, ...]:
        """The encoding of each layer, L of them."""
        return self.encoding if isinstance(self.encoding, tuple) else (self.encoding,) * self.layers

    @property
    def input_encodings(self) -> tuple[PositionEncoding, ...]:
        """The distinct encodings that act on the embeddings, in the order of the layers.

        Raises ValueError for an encoding with parameters that acts on the embeddings and in attention: it would need one set of
        parameters for the input and one for each layer.

        Example:
          >>> from attnjax.positions import ALiBi, Learned, compose
          >>> config = TransformerConfig(11, 16, 2, 2, 32, encoding=compose(Learned(64), ALiBi()))
          >>> config.input_encodings == (Learned(64),), config.attention_encodings == (ALiBi(), ALiBi())
          (True, True)
        """
        parts = [part for one in self.encodings for part in parts_of(one) if part.has("embed")]
        for part in parts:
            if learns(part) and part.has(*IN_ATTENTION):
                raise ValueError(
                    f"{part} learns, and acts on the embeddings and in attention: write it as two encodings, compose(a, b)"
                )
        return tuple(dict.fromkeys(parts))

    @property
    def attention_encodings(self) -> tuple[PositionEncoding, ...]:
        """The parts of each layer's encoding that act in its attention, NoPE where none does; L of them."""
        acts = lambda part: part.has(*IN_ATTENTION) or not part.has("embed")
        return tuple(joined([part for part in parts_of(one) if acts(part)] or [NoPE()]) for one in self.encodings)

    @property
    def encoding_owners(self) -> tuple[int, ...]:
        """The layer that holds the encoding parameters of each layer: itself, or with `share_encoding` the first one with the
        same encoding.
        """
        found = self.attention_encodings
        return tuple(found.index(one) if self.share_encoding else layer for layer, one in enumerate(found))

    def for_encoder(self) -> Self:
        """Returns the config with encodings for an encoder, whose queries see later keys too: `T5Bias` bidirectional, `ALiBi`
        symmetric. Raises ValueError for an encoding that exists for causal masks alone, such as `XPos`.

        Example:
          >>> from attnjax.positions import T5Bias
          >>> TransformerConfig(11, 16, 2, 2, 32, encoding=T5Bias()).for_encoder().encoding.bidirectional
          True
        """
        found = tuple(one.for_encoder() for one in self.encodings)
        return dataclasses.replace(self, encoding=found if isinstance(self.encoding, tuple) else found[0])


def sizes(model: int, heads: int, options: AttentionOptions) -> Sizes:
    """Returns the sizes D, N, K and H, where K = N and H = D / N unless given.

    Example:
      >>> sizes(64, 4, AttentionOptions(kv_heads=2))
      Sizes(model=64, heads=4, kv_heads=2, head_dim=16)
    """
    K, H = options.kv_heads, options.head_dim
    return Sizes(model, heads, heads if K is None else K, model // heads if H is None else H)


def windowed(encoding: PositionEncoding) -> tuple[LMInfinite | StreamingLLM, ...]:
    """Returns the parts of an encoding whose distances are made for a mask with a window and first keys.

    Example:
      >>> from attnjax.positions import LogN, compose
      >>> windowed(compose(LogN(length=64), StreamingLLM(first=4, window=59)))[0].window
      59
    """
    return tuple(part for part in parts_of(encoding) if isinstance(part, LMInfinite | StreamingLLM))


def left_of(window: Window | None) -> int | None:
    """Returns how many keys back a window shows; None is all.

    Example:
      >>> left_of((59, 0)), left_of(3), left_of(None)
      (59, 3, None)
    """
    return window[0] if isinstance(window, tuple) else window


def check_windows(path: str, encodings: Sequence[PositionEncoding], options: TransformerOptions) -> None:
    """Raises ValueError unless each layer sees the window and the first keys that its encoding is made for.

    Under another mask LM-Infinite and StreamingLLM compute something else: without a window, StreamingLLM moves the first keys
    nearer while all keys between stay visible. `path` precedes the names of fields in the error.

    Example:
      >>> from attnjax.config import ModelConfig
      >>> check_windows("model", [StreamingLLM(window=59)] * 2, ModelConfig(window=(59, 0), window_first=4))
      >>> check_windows("model", [StreamingLLM(window=59)] * 2, ModelConfig(window=59))
      Traceback (most recent call last):
      ValueError: model.encoding has StreamingLLM(first=4, window=59) in layer 0, whose distances are those of a mask ...
    """
    for layer, (encoding, window) in enumerate(zip(encodings, options.layer_windows, strict=True)):
        for part in windowed(encoding):
            n, W = part.first, part.window
            if (left_of(window), options.window_first) != (W, n):
                raise ValueError(
                    f"{path}.encoding has {type(part).__name__}(first={n}, window={W}) in layer {layer}, whose distances are "
                    f"those of a mask that shows {W} keys back and the first {n}: {path}.window (or the entry of the layer in "
                    f"{path}.windows) must be {(W, 0)} or {W} and {path}.window_first {n}, got {window} and "
                    f"{options.window_first}; another mask goes into the call of the model, mask=Mask(window=..., first=...)"
                )
