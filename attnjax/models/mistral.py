"""Mistral (Jiang et al. 2023, arXiv:2310.06825): LLaMA with a sliding window in every layer."""

from typing import Any

from attnjax.models import llama_like
from attnjax.models.base import Json, Spec
from attnjax.models.config_json import Reader, checked_json
from attnjax.modules import TransformerConfig


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for what the modules cannot compute."""
    read = Reader("mistral", json)
    made = TransformerConfig(**llama_like.read_sizes(read), window=llama_like.read_width(read), bias=False)
    read.finish()
    return Spec(made)


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    own = {"sliding_window": llama_like.windows_json(spec.config)["sliding_window"]}
    return checked_json("mistral", config, spec, llama_like.sizes_json(spec, "MistralForCausalLM") | own)


MISTRAL = llama_like.family("mistral", config, to_json)
