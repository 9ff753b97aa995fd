"""The configuration of a Transformer: one frozen, validated record from which every module is built."""

import dataclasses
import math
from typing import Any, Literal, Self

from attnjax.attention import Mask
from attnjax.attention.support import IMPLEMENTATIONS
from attnjax.positions import NoPE, PositionEncoding, Sinusoidal, Sizes
from attnjax.positions.checks import validate, validate_integer

Activation = Literal["relu", "gelu", "gelu_tanh", "swiglu", "geglu"]
Window = int | tuple[int, int]
Gated = Literal["head", "channel"]

CHOICES = (
    ("activation", ("relu", "gelu", "gelu_tanh", "swiglu", "geglu")),
    ("norm", ("layer", "rms")),
    ("norm_position", ("pre", "post")),
    ("dtype", ("float32", "bfloat16", "float16", "float64")),
    ("param_dtype", ("float32", "bfloat16", "float16", "float64")),
    ("implementation", (None, *IMPLEMENTATIONS)),
    ("feed_forward_bias", (None, True, False)),
    ("attention_output_bias", (None, True, False)),
    ("attention_gate", (None, "head", "channel")),
)
FLAGS = (
    "share_encoding",
    "bias",
    "qk_norm",
    "attention_sink",
    "embed_scale",
    "tie_embeddings",
    "output_bias",
    "parallel",
    "embedding_norm",
    "remat",
)


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The sizes and kinds of all parts of an encoder or a decoder.

    Args:
      vocab, model, layers, heads, hidden: vocabulary V, model width D, layers L, query heads N, feed-forward width F.
      kv_heads: number K of key heads, a divisor of N (grouped-query attention); N unless given.
      head_dim: width H of a head; D / N unless given.
      activation: of the feed-forward layer. "gelu" is exact, "gelu_tanh" its tanh approximation; "swiglu" and "geglu"
        are gated, and have a third matrix.
      norm, norm_position, norm_epsilon: LayerNorm or RMSNorm; before each sublayer ("pre"), or after it ("post").
      parallel: attention and feed-forward both read the layer's input, and both are added to it (GPT-J, GPT-NeoX).
      encoding: the positional encoding of every layer, or a tuple with one per layer.
      share_encoding: layers with the same encoding use one set of parameters, held by the first of them (T5).
      bias: whether the projections of attention have bias vectors.
      attention_output_bias: whether the output projection of attention has one; as `bias` unless given (Qwen2: no).
      feed_forward_bias: whether the feed-forward layer has bias vectors; as `bias` unless given.
      qk_norm, qk_norm_epsilon: an RMSNorm of the queries and keys of each head, before the encoding acts on them.
      attention_sink: a learned sink of each head; attention_gate: a gate per "head" or "channel", see `MultiHeadAttention`.
      scale: factor of the attention logits; 1/sqrt(H) unless given.
      embed_scale: multiplies token embeddings by sqrt(D).
      embed_std: initial standard deviation of the token embeddings; 1/sqrt(D) unless given.
      embedding_norm: a norm of the embeddings, after positions are added, before the first layer (BERT, BLOOM).
      token_types: number of token types (segments) that have a learned vector, added to the embedding (BERT); 0 is
        none.
      tie_embeddings: the output matrix is the transposed token embedding.
      output_bias: a bias vector of the logits.
      logits_scale: factor of the logits (T5 with tied embeddings: 1/sqrt(D)).
      attention_dropout, residual_dropout: dropout rates of the attention weights and of the output of each sublayer.
      embedding_dropout: dropout rate of the embeddings, positions included; as `residual_dropout` unless given.
      window: sliding window in indices: w or (left, right), as in `Mask`.
      windows: one window per layer in place of `window`; None is unlimited.
      dtype, param_dtype: names of the dtypes of activations and of parameters.
      implementation: of attention, as in `attend`.
      remat: the activations of a layer are computed again for its gradient, and not kept (`jax.checkpoint`). On a CPU this
        saves nothing: XLA finds there that they were computed before, and keeps them.

    Raises:
      ValueError: a value out of range, or a combination that cannot be built.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=4, hidden=64, encoding=Sinusoidal())
      >>> config.sizes[-1], config.layer_windows
      (4, (None, None))
    """

    vocab: int
    model: int
    layers: int
    heads: int
    hidden: int
    kv_heads: int | None = None
    head_dim: int | None = None
    activation: Activation = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    norm_position: Literal["pre", "post"] = "pre"
    norm_epsilon: float = 1e-6
    parallel: bool = False
    encoding: PositionEncoding | tuple[PositionEncoding, ...] = NoPE()
    share_encoding: bool = False
    bias: bool = True
    attention_output_bias: bool | None = None
    feed_forward_bias: bool | None = None
    qk_norm: bool = False
    qk_norm_epsilon: float = 1e-6
    attention_sink: bool = False
    attention_gate: Gated | None = None
    scale: float | None = None
    embed_scale: bool = False
    embed_std: float | None = None
    embedding_norm: bool = False
    token_types: int = 0
    tie_embeddings: bool = True
    output_bias: bool = False
    logits_scale: float = 1.0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    embedding_dropout: float | None = None
    window: Window | None = None
    windows: tuple[Window | None, ...] | None = None
    dtype: str = "float32"
    param_dtype: str = "float32"
    implementation: str | None = None
    remat: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab", "model", "layers", "heads", "hidden"):
            validate_integer("TransformerConfig", **{name: getattr(self, name)})
        validate_integer("TransformerConfig", minimum=0, token_types=self.token_types)
        check_heads("TransformerConfig", self.model, self.heads, self.kv_heads, self.head_dim)
        check_choices("TransformerConfig", {name: (getattr(self, name), choices) for name, choices in CHOICES})
        check_choices("TransformerConfig", {name: (getattr(self, name), (True, False)) for name in FLAGS})
        for name in ("norm_epsilon", "qk_norm_epsilon", "logits_scale"):
            validate("TransformerConfig", **{name: getattr(self, name)})
        for name in ("scale", "embed_std"):
            if getattr(self, name) is not None:
                validate("TransformerConfig", **{name: getattr(self, name)})
        for name in ("attention_dropout", "residual_dropout", "embedding_dropout"):
            if name != "embedding_dropout" or self.embedding_dropout is not None:
                check_rate("TransformerConfig", name, getattr(self, name))
        _check_encodings(self.encoding, self.layers)
        _check_windows(self.window, self.windows, self.layers)
        if self.parallel and self.norm_position == "post":
            raise ValueError("TransformerConfig: parallel=True needs norm_position='pre', got 'post'")

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
    def layer_windows(self) -> tuple[Window | None, ...]:
        """The sliding window of each layer, None where it is unlimited."""
        return (self.window,) * self.layers if self.windows is None else self.windows

    @property
    def input_dropout(self) -> float:
        """The dropout rate of the embeddings, with the default filled in."""
        return self.residual_dropout if self.embedding_dropout is None else self.embedding_dropout

    @property
    def sizes(self) -> Sizes:
        """The sizes D, N, K and H, with the defaults filled in."""
        return sizes(self.model, self.heads, self.kv_heads, self.head_dim)


def sizes(model: int, heads: int, kv_heads: int | None = None, head_dim: int | None = None) -> Sizes:
    """Returns the sizes D, N, K and H, where K = N and H = D / N unless given."""
    return Sizes(
        model, heads, heads if kv_heads is None else kv_heads, model // heads if head_dim is None else head_dim
    )


def check_heads(owner: str, model: int, heads: int, kv_heads: int | None, head_dim: int | None) -> None:
    """Raises ValueError unless D, N, K and H are whole numbers that fit together."""
    validate_integer(owner, model=model, heads=heads)
    for name, size in (("kv_heads", kv_heads), ("head_dim", head_dim)):
        if size is not None:
            validate_integer(owner, **{name: size})
    if head_dim is None and model % heads:
        raise ValueError(
            f"{owner}: model={model} is not a multiple of heads={heads}; give a head dimension, head_dim=..."
        )
    if kv_heads is not None and heads % kv_heads:
        raise ValueError(f"{owner}: heads must be a multiple of kv_heads, got heads={heads} and kv_heads={kv_heads}")


def check_choices(owner: str, fields: dict[str, tuple[Any, tuple[Any, ...]]]) -> None:
    """Raises ValueError unless each field, given as (value, choices), has one of its choices."""
    for name, (value, choices) in fields.items():
        # 1 == True, but a flag of 1 is a mistake.
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise ValueError(f"{owner}: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_rate(owner: str, name: str, rate: float) -> None:
    """Raises ValueError unless 0 <= rate < 1."""
    number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not number or math.isnan(rate) or not 0 <= rate < 1:
        raise ValueError(f"{owner}: {name} must be in [0, 1), got {rate!r}")


def _check_encodings(encoding: Any, layers: int) -> None:
    encodings = encoding if isinstance(encoding, tuple) else (encoding,) * layers
    for one in encodings:
        if not isinstance(one, PositionEncoding):
            raise ValueError(f"TransformerConfig: encoding must be a PositionEncoding such as RoPE(), got {one!r}")
    if len(encodings) != layers:
        raise ValueError(f"TransformerConfig: encoding must have one entry per layer, {layers}, got {len(encodings)}")


def _check_windows(window: Any, windows: Any, layers: int) -> None:
    Mask(window=window)
    if windows is None:
        return
    if window is not None:
        raise ValueError(f"TransformerConfig: give window or windows, not both; got {window!r} and {windows!r}")
    if not isinstance(windows, tuple) or len(windows) != layers:
        raise ValueError(
            f"TransformerConfig: windows must be a tuple with one entry per layer, {layers}, got {windows!r}"
        )
    for one in windows:
        Mask(window=one)
