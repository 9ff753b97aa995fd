"""Qwen2 (Yang et al. 2024, arXiv:2407.10671) and Qwen3 (2025, arXiv:2505.09388).

Qwen2 has bias vectors of queries, keys and values, and none of the output. Qwen3 has an RMSNorm of queries and keys in
their place. Both have a sliding window in the layers from `max_window_layers` on, where `use_sliding_window` is true.
"""

from typing import Any

from attnjax.models import llama_like
from attnjax.models.base import Json, Spec
from attnjax.models.config_json import Reader, checked_json
from attnjax.modules import TransformerConfig


def qwen2(json: Json) -> Spec:
    """Returns the spec of a config.json of Qwen2. Raises ValueError for what the modules cannot compute."""
    read = Reader("qwen2", json)
    return _spec(read, llama_like.read_sizes(read), bias=True, attention_output_bias=False, feed_forward_bias=False)


def qwen3(json: Json) -> Spec:
    """Returns the spec of a config.json of Qwen3. Raises ValueError for what the modules cannot compute."""
    read = Reader("qwen3", json)
    sizes, bias = llama_like.read_sizes(read, head_dim=128), read.flag("attention_bias", default=False)
    norms = {"qk_norm": True, "qk_norm_epsilon": sizes["norm_epsilon"]}
    return _spec(read, sizes, bias=bias, feed_forward_bias=False, **norms)


def qwen2_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    return checked_json(
        "qwen2", qwen2, spec, llama_like.sizes_json(spec, "Qwen2ForCausalLM") | llama_like.windows_json(spec.config)
    )


def qwen3_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    own = {"attention_bias": spec.config.bias, **llama_like.windows_json(spec.config)}
    return checked_json("qwen3", qwen3, spec, llama_like.sizes_json(spec, "Qwen3ForCausalLM") | own)


def _spec(read: Reader, sizes: dict[str, Any], **fields: Any) -> Spec:
    read.must("use_mrope", False)
    first = read.integer("max_window_layers", default=28, lowest=0)
    windows = llama_like.read_windows(read, sizes["layers"], [i >= first for i in range(sizes["layers"])])
    made = TransformerConfig(**sizes, **windows, **fields)
    read.finish()
    return Spec(made)


QWEN2 = llama_like.family("qwen2", qwen2, qwen2_json)
QWEN3 = llama_like.family("qwen3", qwen3, qwen3_json)
