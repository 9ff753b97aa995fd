"""The configuration of a Transformer: one frozen, validated record from which every module is built."""

import dataclasses
from typing import Self

from attnjax.config.architecture import AttentionOptions, TransformerOptions
from attnjax.config.kinds import Count, Index
from attnjax.modules.first_keys import check_first_keys
from attnjax.positions import NoPE, PositionEncoding, Sinusoidal, Sizes
from attnjax.positions.base import validate_encoding


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
        check_first_keys("TransformerConfig", self.encodings, self)

    @classmethod
    def original_base(cls, vocab: int = 37_000) -> Self:
        """Returns the base model of Vaswani et al. 2017 (arXiv:1706.03762, table 3), for the encoder and the decoder.

        The projections of attention have no bias vectors; the feed-forward layer has them (equation 2 of the paper).
        """
        return cls(
            vocab=vocab,
            model=512,
            layers=6,
            heads=8,
            hidden=2048,
            activation="relu",
            norm="layer",
            norm_position="post",
            encoding=Sinusoidal(),
            bias=False,
            feed_forward_bias=True,
            embed_scale=True,
            tie_embeddings=True,
            residual_dropout=0.1,
        )

    @property
    def encodings(self) -> tuple[PositionEncoding, ...]:
        """The encoding of each layer, L of them."""
        return self.encoding if isinstance(self.encoding, tuple) else (self.encoding,) * self.layers

    @property
    def sizes(self) -> Sizes:
        """The sizes D, N, K and H, with the defaults filled in."""
        return sizes(self.model, self.heads, self)


def sizes(model: int, heads: int, options: AttentionOptions) -> Sizes:
    """Returns the sizes D, N, K and H, where K = N and H = D / N unless given.

    Example:
      >>> sizes(64, 4, AttentionOptions(kv_heads=2))
      Sizes(model=64, heads=4, kv_heads=2, head_dim=16)
    """
    K, H = options.kv_heads, options.head_dim
    return Sizes(model, heads, heads if K is None else K, model // heads if H is None else H)
