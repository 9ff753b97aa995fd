"""The options of a Transformer, each with its type, default, documentation and check: the one place where they are said.

`ModelConfig`, of runs, adds encodings by name; `attnjax.modules.TransformerConfig` adds the vocabulary and encodings as
objects; `attnjax.modules.MultiHeadAttention` takes those of attention alone. A new option is a field here, and its use.
"""

import dataclasses
import types
from typing import Any, Literal

from attnjax.config.kinds import Index, Layers, Positive, Rate, Size, Width, key_of, settle

Activation = Literal["relu", "gelu", "gelu_tanh", "swiglu", "geglu"]
DType = Literal["float32", "bfloat16", "float16", "float64"]
Gated = Literal["head", "channel"]
Implementation = Literal["dense", "chunked", "cudnn"]
Window = Index | tuple[Index, Index]


ADDED = types.MappingProxyType({"added": True})
"""Metadata of a field that is younger than stored runs: at its default it is left out of what a run id hashes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What can be chosen about multi-head attention, beside its sizes D and N and its encoding.

    Args:
      kv_heads: number K of key heads, a divisor of N (grouped-query attention, Ainslie et al. 2023, arXiv:2305.13245);
        N unless given.
      head_dim: width H of a head; D / N unless given.
      bias: whether the projections of queries, keys and values, and of the output, have bias vectors.
      attention_output_bias: whether the output projection has one; as `bias` unless given (Qwen2: no).
      qk_norm, qk_norm_epsilon: an RMSNorm over H of queries and keys before the encoding acts on them (after Henry et al.
        2020, arXiv:2010.04245, who divide by the L2 norm).
      attention_sink: each head learns the logit of a sink, 0 at first (as gpt-oss; Xiao et al. 2023, arXiv:2309.17453).
      attention_gate: a sigmoid gate on the output of each "head", or of each "channel" (`modules/attention.py`).
      scale: factor of the attention logits; 1/sqrt(H) unless given.
      implementation: of attention, as in `attend`; the one that suits unless given.
      param_dtype: name of the dtype of parameters, norms included; those of encodings are float32 or wider.

    Raises:
      ValueError: a value out of range, by the name of its field.

    Example:
      >>> AttentionOptions(kv_heads=2, scale=1).scale
      1.0
    """

    kv_heads: Width | None = None
    head_dim: Width | None = None
    bias: bool = True
    attention_output_bias: bool | None = dataclasses.field(default=None, metadata=ADDED)
    qk_norm: bool = False
    qk_norm_epsilon: Positive = dataclasses.field(default=1e-6, metadata=ADDED)
    attention_sink: bool = dataclasses.field(default=False, metadata=ADDED)
    attention_gate: Gated | None = dataclasses.field(default=None, metadata=ADDED)
    scale: Positive | None = None
    implementation: Implementation | None = None
    param_dtype: DType = "float32"

    def __post_init__(self) -> None:
        settle(self, type(self).__name__)

    @property
    def output_bias_of_attention(self) -> bool:
        """Whether the output projection of attention has a bias vector, with the default filled in."""
        return self.bias if self.attention_output_bias is None else self.attention_output_bias


@dataclasses.dataclass(frozen=True)
class TransformerOptions(AttentionOptions):
    """The sizes and kinds of all parts of an encoder or a decoder; those of attention are in `AttentionOptions`.

    Args:
      model, layers, heads, hidden: width D, layers L, query heads N, width F of the feed-forward layer.
      encoding: the positional encoding of every layer, or a tuple with one per layer.
      share_encoding: layers with the same encoding use one set of parameters, held by the first of them (T5).
      activation: of the feed-forward layer. "gelu" is exact, "gelu_tanh" its tanh approximation; "swiglu" and "geglu" are
        gated, and have a third matrix.
      feed_forward_bias: whether the feed-forward layer has bias vectors; as `bias` unless given.
      norm, norm_position, norm_epsilon: LayerNorm or RMSNorm; before each sublayer ("pre"), or after it ("post").
      parallel: attention and feed-forward both read the layer's input, and both are added to it (GPT-J, GPT-NeoX).
      embed_scale: multiplies token embeddings by sqrt(D).
      embed_std: initial standard deviation of the token embeddings; 1/sqrt(D) unless given.
      kernel_std: initial standard deviation of the matrices of all layers; 1/sqrt(inputs) unless given (GPT-2: 0.02).
      residual_start: divides the initial matrices whose output is added to the residual stream by sqrt(2 L) (GPT-2).
      embedding_norm: a norm of the embeddings, after positions are added, before the first layer (BERT, BLOOM).
      tie_embeddings: the output matrix is the transposed token embedding.
      output_bias: a bias vector of the logits.
      logits_scale: factor of the logits (T5 with tied embeddings: 1/sqrt(D)).
      attention_dropout, residual_dropout: dropout rates of the attention weights and of the output of each sublayer.
      embedding_dropout: dropout rate of the embeddings, positions included; as `residual_dropout` unless given.
      window: sliding window in indices: w or (left, right), as in `Mask`.
      windows: one window per layer in place of `window`; None is unlimited.
      window_first: so many keys at the start of the sequence stay visible beside a window, as `first` in `Mask`.
      dtype: name of the dtype of activations.
      remat: the activations of a layer are computed again for its gradient, and not kept (`jax.checkpoint`). On a CPU this
        saves nothing without `scan_layers`: XLA finds there that they were computed before, and keeps them.
      scan_layers: parameters of all layers are stacked, and one layer is compiled, in a loop (`jax.lax.scan`): many layers
        take the time of one to compile. The numbers are those of unrolled layers; see `modules/stack.py`.
    """

    model: Width = 64
    layers: Layers = 2
    heads: Width = 4
    hidden: Size = 256
    _: dataclasses.KW_ONLY
    encoding: Any = None
    share_encoding: bool = False
    activation: Activation = "gelu"
    feed_forward_bias: bool | None = None
    norm: Literal["layer", "rms"] = "layer"
    norm_position: Literal["pre", "post"] = "pre"
    norm_epsilon: Positive = 1e-6
    parallel: bool = dataclasses.field(default=False, metadata=ADDED)
    embed_scale: bool = False
    embed_std: Positive | None = None
    kernel_std: Positive | None = dataclasses.field(default=None, metadata=ADDED)
    residual_start: bool = dataclasses.field(default=False, metadata=ADDED)
    embedding_norm: bool = dataclasses.field(default=False, metadata=ADDED)
    tie_embeddings: bool = True
    output_bias: bool = False
    logits_scale: Positive = dataclasses.field(default=1.0, metadata=ADDED)
    attention_dropout: Rate = 0.0
    residual_dropout: Rate = 0.0
    embedding_dropout: Rate | None = None
    window: Window | None = None
    windows: tuple[Window | None, ...] | None = dataclasses.field(default=None, metadata=ADDED)
    window_first: Index = dataclasses.field(default=0, metadata=ADDED)
    dtype: DType = "float32"
    remat: bool = dataclasses.field(default=False, metadata=ADDED)
    scan_layers: bool = dataclasses.field(default=False, metadata=ADDED)

    def check(self, path: str) -> None:
        """Checks every field, and those that must fit together. Raises ValueError, with the names of fields below `path`."""
        settle(self, path)
        check_heads(path, self.model, self.heads, self)
        if self.windows is not None and (self.window is not None or len(self.windows) != self.layers):
            raise ValueError(
                f"{path}.windows must have one entry for each of {path}.layers={self.layers}, and {path}.window be none, "
                f"got {len(self.windows)} entries and {path}.window={self.window}"
            )
        if self.parallel and self.norm_position == "post":
            raise ValueError(f"{path}.parallel needs {path}.norm_position='pre', got 'post'")
        if isinstance(self.encoding, tuple) and len(self.encoding) != self.layers:
            count = len(self.encoding)
            raise ValueError(
                f"{path}.encoding has {count} entries for {path}.layers={self.layers}: give one for each layer"
            )

        various = isinstance(self.encoding, tuple) and any(one != self.encoding[0] for one in self.encoding)
        if self.scan_layers and (various or self.share_encoding or len(set(self.layer_windows)) > 1):
            raise ValueError(
                f"{path}.scan_layers is for layers that are alike: one {path}.encoding and one window for all of them, and no "
                f"{path}.share_encoding"
            )

    @property
    def layer_windows(self) -> tuple[Window | None, ...]:
        """The sliding window of each layer, None where it is unlimited."""
        return (self.window,) * self.layers if self.windows is None else self.windows

    @property
    def input_dropout(self) -> float:
        """The dropout rate of the embeddings, with the default filled in."""
        return self.residual_dropout if self.embedding_dropout is None else self.embedding_dropout

    @property
    def bias_of_feed_forward(self) -> bool:
        """Whether the feed-forward layer has bias vectors, with the default filled in."""
        return self.bias if self.feed_forward_bias is None else self.feed_forward_bias


def check_heads(path: str, model: int, heads: int, options: AttentionOptions) -> None:
    """Raises ValueError unless the sizes D, N, K and H of attention fit together.

    Example:
      >>> check_heads("model", 64, 3, AttentionOptions())
      Traceback (most recent call last):
      ValueError: model.model=64 is no multiple of model.heads=3; give model.head_dim
    """
    if options.head_dim is None and model % heads:
        head_dim = next(key_of(field) for field in dataclasses.fields(options) if field.name == "head_dim")
        raise ValueError(f"{path}.model={model} is no multiple of {path}.heads={heads}; give {path}.{head_dim}")
    if options.kv_heads is not None and heads % options.kv_heads:
        raise ValueError(f"{path}.heads={heads} is no multiple of {path}.kv_heads={options.kv_heads}")
