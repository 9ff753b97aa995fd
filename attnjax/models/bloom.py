"""BLOOM (Le Scao et al. 2022, arXiv:2211.05100): a decoder with ALiBi and a norm of the embeddings."""

import functools
from typing import Any

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Spec, Weight
from attnjax.models.config_json import LAYERS, Reader, checked_json
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import ALiBi

OF_TRAINING = (
    *("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "seq_length"),
    *("skip_bias_add", "skip_bias_add_qkv", "slow_but_exact"),
)


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for what the modules cannot compute."""
    read = Reader("bloom", json)
    read.must("apply_residual_connection_post_layernorm", False)
    D = read.integer("n_embed", "hidden_size")
    read.must("n_inner", 4 * D)
    read.skip(*OF_TRAINING)
    dropout = read.number("hidden_dropout", default=0.0, zero=True)
    made = TransformerConfig(
        vocab=read.integer("vocab_size"),
        model=D,
        layers=read.integer("n_layer", "num_hidden_layers", highest=LAYERS),
        heads=read.integer("n_head", "num_attention_heads"),
        hidden=4 * D,
        activation="gelu_tanh",
        norm_epsilon=read.number("layer_norm_epsilon", default=1e-5),
        encoding=ALiBi(),
        embedding_norm=True,
        tie_embeddings=read.flag("tie_word_embeddings", default=True),
        attention_dropout=read.number("attention_dropout", default=0.0, zero=True),
        residual_dropout=dropout,
        embedding_dropout=0.0,
    )
    read.finish()
    return Spec(made)


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    c = spec.config
    json = {
        "architectures": ["BloomForCausalLM"],
        "vocab_size": c.vocab,
        "hidden_size": c.model,
        "n_layer": c.layers,
        "n_head": c.heads,
        "layer_norm_epsilon": c.norm_epsilon,
        "tie_word_embeddings": c.tie_embeddings,
        "attention_dropout": c.attention_dropout,
        "hidden_dropout": c.residual_dropout,
    }
    return checked_json("bloom", config, spec, json)


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
    build=lambda spec, rngs: Decoder(spec.config, rngs=rngs),
    prefix="transformer.",
)
