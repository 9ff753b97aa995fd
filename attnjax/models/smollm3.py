"""SmolLM3 (Hugging Face 2025): LLaMA with no positional encoding in every fourth layer (after arXiv:2501.18795)."""

from typing import Any

from attnjax.models import llama_like
from attnjax.models.base import Json, Spec
from attnjax.models.config_json import Reader, checked_json
from attnjax.modules import TransformerConfig
from attnjax.positions import NoPE, RoPE


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for what the modules cannot compute."""
    read = Reader("smollm3", json)
    read.skip("max_window_layers")  # Qwen's key; here the layers without RoPE have the window
    sizes = llama_like.read_sizes(read, theta=2_000_000.0, tie=True)
    layers, every = sizes["layers"], read.integer("no_rope_layer_interval", default=4)
    listed = read.per_layer("no_rope_layers", layers, 0, 1)
    rotated = [(i + 1) % every != 0 for i in range(layers)] if listed is None else [one == 1 for one in listed]
    sizes["encoding"] = tuple(sizes["encoding"] if one else NoPE() for one in rotated)
    windows = llama_like.read_windows(read, layers, [not one for one in rotated], missing=None)
    bias, inner_bias = read.flag("attention_bias", default=False), read.flag("mlp_bias", default=False)
    made = TransformerConfig(**sizes, **windows, bias=bias, feed_forward_bias=inner_bias)
    read.finish()
    return Spec(made)


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    c = spec.config
    own = {
        "no_rope_layers": [int(isinstance(encoding, RoPE)) for encoding in c.encodings],
        "attention_bias": c.bias,
        "mlp_bias": c.bias_of_feed_forward,
    }
    return checked_json(
        "smollm3", config, spec, llama_like.sizes_json(spec, "SmolLM3ForCausalLM") | llama_like.windows_json(c) | own
    )


SMOLLM3 = llama_like.family("smollm3", config, to_json)
