"""BLOOM (Le Scao et al. 2022, arXiv:2211.05100): a decoder with ALiBi and a norm of the embeddings."""

import functools

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Spec, Weight, one_stack
from attnjax.models.config_json import COUNT, DEPTH, FLAG, POSITIVE, SHARE, Fields, key, must
from attnjax.positions import ALiBi

KEYS = (
    key("vocab", "vocab_size", COUNT),
    key("model", "hidden_size", COUNT, ..., "n_embed"),
    key("layers", "n_layer", DEPTH, ..., "num_hidden_layers"),
    key("heads", "n_head", COUNT, ..., "num_attention_heads"),
    key("hidden", "n_inner", COUNT, lambda fields: 4 * fields["model"]),
    key("norm_epsilon", "layer_norm_epsilon", POSITIVE, 1e-5),
    key("tie_embeddings", "tie_word_embeddings", FLAG, True),
    key("attention_dropout", "attention_dropout", SHARE, 0.0),
    key("residual_dropout", "hidden_dropout", SHARE, 0.0),
    must("apply_residual_connection_post_layernorm", False),
)
UNUSED = (
    *("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "seq_length"),
    *("skip_bias_add", "skip_bias_add_qkv", "slow_but_exact"),
)


def spec(fields: Fields) -> Spec:
    """Returns the spec. Raises ValueError for another feed-forward width than the one that transformers gives BLOOM."""
    if fields["hidden"] != 4 * fields["model"]:
        raise ValueError(f"bloom: n_inner must be {4 * fields['model']}, 4 times hidden_size, got {fields['hidden']}")
    return one_stack(fields)


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
    keys=KEYS,
    fixed={"activation": "gelu_tanh", "encoding": ALiBi(), "embedding_norm": True, "embedding_dropout": 0.0},
    unused=UNUSED,
    spec=spec,
    weights=weights,
    prefix="transformer.",
)
