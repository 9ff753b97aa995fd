"""Assigns the encodings of a config to the input and to the layers of a model, and their parameters to layers.

An encoding of the embeddings (hook `embed`) acts once, on the input of the model, whatever the number of layers; every
other encoding acts in each layer. So compose(Learned(64), ALiBi()) in six layers is one table on the input and ALiBi
six times. With `share_encoding` the first layer that has an encoding holds its parameters for all layers that have it
(T5).
"""

import dataclasses
from typing import Any

from attnjax.modules.config import TransformerConfig
from attnjax.positions import Compose, NoPE, PositionEncoding, T5Bias, Trait, learns
from attnjax.positions.compose import joined, parts_of


def input_encodings(config: TransformerConfig) -> tuple[PositionEncoding, ...]:
    """Returns the distinct encodings that act on the embeddings, in the order of the layers.

    Raises:
      ValueError: an encoding with parameters that acts on the embeddings and in attention; it would need one set of
        parameters for the input and one for each layer.

    Example:
      >>> from attnjax.positions import ALiBi, Learned, compose
      >>> config = TransformerConfig(11, 16, 6, 2, 32, encoding=compose(Learned(64), ALiBi()))
      >>> input_encodings(config) == (Learned(64),), attention_encoding(config, 0) == ALiBi()
      (True, True)
    """
    parts = [part for encoding in config.encodings for part in parts_of(encoding) if Trait.EMBED in part.traits]
    for part in parts:
        if learns(part) and part.traits != Trait.EMBED:
            raise ValueError(
                f"{part} learns, and acts on the embeddings and in attention: write it as two encodings, compose(a, b)"
            )
    return tuple(dict.fromkeys(parts))


def bidirectional(encoding: PositionEncoding | tuple[PositionEncoding, ...]) -> Any:
    """Returns an encoding, or one per layer, with every `T5Bias` in it as an encoder needs it, which also sees later keys.

    Example:
      >>> from attnjax.positions import T5Bias
      >>> bidirectional(T5Bias()).bidirectional
      True
    """
    if isinstance(encoding, tuple):
        return tuple(map(bidirectional, encoding))
    if isinstance(encoding, Compose):
        return dataclasses.replace(encoding, parts=bidirectional(encoding.parts))
    return dataclasses.replace(encoding, bidirectional=True) if isinstance(encoding, T5Bias) else encoding


def attention_encoding(config: TransformerConfig, layer: int) -> PositionEncoding:
    """Returns the part of a layer's encoding that acts in its attention, NoPE where nothing is left."""
    encoding = config.encodings[layer]
    rest = tuple(part for part in parts_of(encoding) if part.traits != Trait.EMBED)
    if rest == parts_of(encoding):
        return encoding
    return joined(rest or (NoPE(),))


def encoding_owner(config: TransformerConfig, layer: int) -> int:
    """Returns the layer that holds the encoding parameters of `layer`.

    That is the layer itself, or with `share_encoding` the first layer with the same encoding.
    """
    if not config.share_encoding:
        return layer
    mine = attention_encoding(config, layer)
    return next(first for first in range(layer + 1) if attention_encoding(config, first) == mine)
