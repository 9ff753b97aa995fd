"""LLaMA 2 and 3 (Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783)."""

from typing import Any

from attnjax.models import llama_like
from attnjax.models.base import Json, Spec
from attnjax.models.config_json import Reader, checked_json
from attnjax.modules import TransformerConfig


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for what the modules cannot compute."""
    read = Reader("llama", json)
    read.must("rope_interleaved", False)
    bias, inner_bias = read.flag("attention_bias", default=False), read.flag("mlp_bias", default=False)
    made = TransformerConfig(**llama_like.read_sizes(read, kv_heads=None), bias=bias, feed_forward_bias=inner_bias)
    read.finish()
    return Spec(made)


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    c = spec.config
    own = {"attention_bias": c.bias, "mlp_bias": c.bias_of_feed_forward}
    return checked_json("llama", config, spec, llama_like.sizes_json(spec, "LlamaForCausalLM") | own)


LLAMA = llama_like.family("llama", config, to_json)
