"""BLOOM (Le Scao et al. 2022, arXiv:2211.05100): a decoder with ALiBi and a norm of the embeddings."""

import functools
from typing import Any

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Spec, Weight
from attnjax.models.config_json import COUNT, DEPTH, FLAG, POSITIVE, SHARE, Reader, key, written
from attnjax.modules import TransformerConfig
from attnjax.positions import ALiBi

KEYS = (
    key("vocab", "vocab_size", COUNT),
    key("model", "hidden_size", COUNT, ..., "n_embed"),
    key("layers", "n_layer", DEPTH, ..., "num_hidden_layers"),
    key("heads", "n_head", COUNT, ..., "num_attention_heads"),
    key("norm_epsilon", "layer_norm_epsilon", POSITIVE, 1e-5),
    key("tie_embeddings", "tie_word_embeddings", FLAG, True),
    key("attention_dropout", "attention_dropout", SHARE, 0.0),
    key("residual_dropout", "hidden_dropout", SHARE, 0.0),
)
OF_TRAINING = (
    *("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "seq_length"),
    *("skip_bias_add", "skip_bias_add_qkv", "slow_but_exact"),
)


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for what the modules cannot compute."""
    read = Reader("bloom", json)
    read.must("apply_residual_connection_post_layernorm", False)
    fields = read.fields(KEYS)
    hidden = 4 * fields["model"]
    read.must("n_inner", hidden)
    read.skip(*OF_TRAINING)
    read.finish()
    fixed: dict[str, Any] = {
        "activation": "gelu_tanh",
        "encoding": ALiBi(),
        "embedding_norm": True,
        "embedding_dropout": 0.0,
    }
    return Spec(TransformerConfig(**fields, hidden=hidden, **fixed))


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    return {"architectures": ["BloomForCausalLM"], **written(spec.config, KEYS)}


def weights(spec: Spec) -> tuple[Weight, ...]:
    """Returns the weight map of a spec."""
    c, output = spec.config, "lm_head.weight"
    first = [
        weight_map.embedding(c, "transformer.word_embeddings.weight", output),
        *weight_map.norm(("stack", "input_norm"), c, "transformer.word_embeddings_layernorm"),
    ]
    block = functools.partial(weight_map.fused_block, attention="self_attention")
    return weight_map.decoder(c, first, block, "transformer.h", "transformer.ln_f", output)


BLOOM = Architecture(
    model_type="bloom",
    config=config,
    to_json=to_json,
    weights=weights,
    prefix="transformer.",
)
