"""Where the encodings of a model act, and who owns their parameters.

What acts on the embeddings acts once, on the input, whatever the number of layers; the rest acts in each layer. So
compose(Learned(64), ALiBi()) in six layers is one table on the input and six times ALiBi.
"""

from attnjax.modules.config import TransformerConfig
from attnjax.positions import Compose, NoPE, PositionEncoding, compose

ON_INPUT = frozenset({"embed"})


def input_encodings(config: TransformerConfig) -> tuple[PositionEncoding, ...]:
    """The distinct encodings that act on the embeddings, in the order of the layers.

    Raises ValueError for one that learns and also acts elsewhere: its parameters would belong to every layer.
    """
    parts = [part for encoding in config.encodings for part in _parts(encoding) if part.has("embed")]
    for part in parts:
        if part.learns and part.hooks() != ON_INPUT:
            raise ValueError(
                f"{part} learns, and acts on the embeddings and in attention: write it as two encodings, compose(a, b)"
            )
    return tuple(dict.fromkeys(parts))


def attention_encoding(config: TransformerConfig, layer: int) -> PositionEncoding:
    """What is left of a layer's encoding for its attention."""
    encoding = config.encodings[layer]
    rest = tuple(part for part in _parts(encoding) if part.hooks() != ON_INPUT)
    if rest == _parts(encoding):
        return encoding
    return compose(*rest) if len(rest) > 1 else (*rest, NoPE())[0]


def owner(config: TransformerConfig, layer: int) -> int:
    """The layer whose parameters this layer's encoding uses: its own, or the first with the same encoding if shared."""
    if not config.share_encoding:
        return layer
    mine = attention_encoding(config, layer)
    return next(first for first in range(layer + 1) if attention_encoding(config, first) == mine)


def _parts(encoding: PositionEncoding) -> tuple[PositionEncoding, ...]:
    if isinstance(encoding, Compose):
        return tuple(part for inner in encoding.parts for part in _parts(inner))
    return (encoding,)
