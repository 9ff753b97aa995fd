"""LLaMA and its descendants: RMSNorm, RoPE, a gated feed-forward layer, grouped-query attention.

    llama       LLaMA 2 and 3 (Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783)
    mistral     a sliding window in every layer (Jiang et al. 2023, arXiv:2310.06825)
    qwen2       bias vectors of queries, keys and values, none of the output (Yang et al. 2024, arXiv:2407.10671)
    qwen3       an RMSNorm of queries and keys in their place (2025, arXiv:2505.09388)
    smollm3     no positional encoding in every fourth layer (Hugging Face 2025, after arXiv:2501.18795)

Qwen has a sliding window in the layers from `max_window_layers` on, where `use_sliding_window` is true. Qwen 2.5 with a
context of a million tokens has the key `dual_chunk_attention_config` (arXiv:2501.15383), read as `DualChunk`; the factor by
which its inference code also scales keys in texts longer than 262,144 tokens is left out.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attnjax.config.architecture import Window
from attnjax.models import weight_map
from attnjax.models.base import Architecture, Path, Spec, Weight
from attnjax.models.config_json import (
    COUNT,
    FLAG,
    POSITIVE,
    SHARE,
    SIZES,
    Fields,
    Part,
    Reader,
    choice,
    key,
    must,
    per_layer,
    whole,
)
from attnjax.models.encodings_json import Rope
from attnjax.modules import TransformerConfig
from attnjax.positions import DualChunk, NoPE

heads = lambda fields: fields["heads"]
KEYS = (
    *SIZES,
    key("activation", "hidden_act", choice(silu="swiglu", gelu_pytorch_tanh="geglu", gelu_new="geglu"), "swiglu"),
    key("norm_epsilon", "rms_norm_eps", POSITIVE, 1e-6),
    key("attention_dropout", "attention_dropout", SHARE, 0.0),
    key("kv_heads", "num_key_value_heads", COUNT, null=heads),
    key("head_dim", "head_dim", COUNT, lambda fields: fields["model"] // fields["heads"]),
    key("tie_embeddings", "tie_word_embeddings", FLAG, False),
)
BIAS = key("bias", "attention_bias", FLAG, False)
BIASES = (BIAS, key("feed_forward_bias", "mlp_bias", FLAG, False))
OUTPUT = "lm_head.weight"


class Windows(NamedTuple):
    """The sliding windows of the layers. `sliding_window` counts the token itself, and null is unlimited.

    Attributes:
      used: returns which layers have a window where the config does not list `layer_types`.
      missing: `sliding_window` of a config without the key, the default of its class in transformers.
      switched: whether the config has `use_sliding_window`, which is false unless given, and `layer_types`.
    """

    used: Callable[[Reader, Fields], list[bool]]
    missing: int | None = 4096
    switched: bool = True

    def read(self, reader: Reader, fields: Fields) -> Fields:
        """Returns the field `window` or `windows`. Raises ValueError where only `layer_types` asks for a window."""
        size = reader.get(COUNT, "sliding_window", default=self.missing, null=None)
        used, kinds = self.used(reader, fields), None
        if self.switched:
            size = size if reader.get(FLAG, "use_sliding_window", default=False) else None
            values = per_layer(fields["layers"], "full_attention", "sliding_attention")
            kinds = reader.get(values, "layer_types", default=None)
        if kinds is not None:
            used = [kind == "sliding_attention" for kind in kinds]
            if size is None and any(used):
                raise ValueError(
                    f"{reader.owner}: layer_types has sliding_attention, but use_sliding_window or the window is off"
                )
        windows: list[Window | None] = [size - 1 if one and size is not None else None for one in used]
        return {"window": windows[0]} if len(set(windows)) == 1 else {"windows": tuple(windows)}


def last_layers(reader: Reader, fields: Fields) -> list[bool]:
    """Returns which layers of a Qwen have a window."""
    first = reader.get(whole(0), "max_window_layers", default=28)
    return [layer >= first for layer in range(fields["layers"])]


class DualChunks(NamedTuple):
    """The dual chunks of a Qwen 2.5 with a context of a million tokens, in place of its RoPE."""

    name: str = "dual_chunk_attention_config"

    def read(self, reader: Reader, fields: Fields) -> Fields:
        """Returns the encoding, the RoPE where the config has no such table."""
        inside = {name for name in reader.json if name.startswith(f"{self.name}.")}
        if not inside:
            return {}
        sparse = (f"{self.name}.sparse_attention_", f"{self.name}.original_max_position_embeddings")
        reader.used.update(name for name in inside if name.startswith(sparse))
        chunk, local = (reader.get(COUNT, f"{self.name}.{name}_size") for name in ("chunk", "local"))
        return {"encoding": DualChunk.of(fields["encoding"], chunk=chunk, local=local)}


class LayersWithoutRope(NamedTuple):
    """The layers of a SmolLM3 that have no encoding, unless the config lists them every fourth."""

    name: str = "no_rope_layers"

    def read(self, reader: Reader, fields: Fields) -> Fields:
        """Returns the encoding of each layer."""
        layers = fields["layers"]
        every = reader.get(COUNT, "no_rope_layer_interval", default=4)
        usual = [int((layer + 1) % every != 0) for layer in range(layers)]
        listed = reader.get(per_layer(layers, 0, 1), self.name, default=usual)
        return {"encoding": tuple(fields["encoding"] if one else NoPE() for one in listed)}


def weights(spec: Spec) -> tuple[Weight, ...]:
    """Returns the weight map of a spec."""
    first = [weight_map.embedding(spec.config, "model.embed_tokens.weight", OUTPUT)]
    return weight_map.decoder(spec.config, first, _block, "model.layers", "model.norm", OUTPUT)


def _block(c: TransformerConfig, path: Path, name: str) -> list[Weight]:
    attention, theirs = (*path, "attention"), f"{name}.self_attn"
    projections = (f"{theirs}.q_proj", f"{theirs}.k_proj", f"{theirs}.v_proj", f"{theirs}.o_proj")
    parts = {"gate": f"{name}.mlp.gate_proj", "in": f"{name}.mlp.up_proj", "out": f"{name}.mlp.down_proj"}
    head_norms = [(f"{letter}_norm", f"{theirs}.{letter}_norm.weight") for letter in "qk"] if c.qk_norm else []
    return [
        *weight_map.norm((*path, "attention_norm"), c, f"{name}.input_layernorm"),
        *weight_map.projections(attention, c, projections),
        *(weight_map.same((*attention, ours, "scale"), norm, c.sizes.head_dim) for ours, norm in head_norms),
        *weight_map.norm((*path, "feed_forward_norm"), c, f"{name}.post_attention_layernorm"),
        *weight_map.feed_forward((*path, "feed_forward"), c, parts),
    ]


def family(
    model_type: str,
    *parts: Part,
    theta: float = 10_000.0,
    defaults: Mapping[str, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
    unused: tuple[str, ...] = (),
) -> Architecture:
    """Returns a family with the keys and weights of LLaMA, and what it has of its own.

    Args:
      model_type: as in config.json.
      parts: keys beside those of LLaMA.
      theta: default of the base of RoPE.
      defaults: of keys of LLaMA, by field, where they are other ones.
      fixed, unused: as in `Architecture`.
    """
    keys = tuple(one._replace(default=(defaults or {}).get(one.field, one.default)) for one in KEYS)
    return Architecture(
        model_type=model_type,
        keys=(*keys, Rope(theta), *parts),
        fixed={"norm": "rms", **(fixed or {})},
        unused=unused,
        weights=weights,
        prefix="model.",
        ignored=(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
    )


LLAMA = family(
    "llama",
    *BIASES,
    must("rope_interleaved", False),
    defaults={"kv_heads": heads},  # the first release had no key of their number
)
MISTRAL = family(
    "mistral",
    Windows(lambda reader, fields: [True] * fields["layers"], switched=False),
    fixed={"bias": False},
)
QWEN2 = family(
    "qwen2",
    DualChunks(),
    Windows(last_layers),
    must("use_mrope", False),
    fixed={"bias": True, "attention_output_bias": False, "feed_forward_bias": False},
)
QWEN3 = family(
    "qwen3",
    BIAS,
    Windows(last_layers),
    must("use_mrope", False),
    key("qk_norm_epsilon", "rms_norm_eps", POSITIVE, 1e-6),
    defaults={"head_dim": 128},
    fixed={"feed_forward_bias": False, "qk_norm": True},
)
SMOLLM3 = family(
    "smollm3",
    *BIASES,
    LayersWithoutRope(),
    Windows(lambda reader, fields: [isinstance(one, NoPE) for one in fields["encoding"]], missing=None),
    theta=2_000_000.0,
    defaults={"tie_embeddings": True},
    unused=("max_window_layers",),  # Qwen's key; here the layers without RoPE have the window
)
