"""BLOOM (Le Scao et al. 2022, arXiv:2211.05100): a decoder with ALiBi and a norm of the embeddings."""

from typing import Any

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Path, Spec, Weight
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
    c = spec.config
    table = [
        weight_map.embedding(c, "transformer.word_embeddings.weight", "lm_head.weight"),
        *weight_map.norm(("stack", "input_norm"), c, "transformer.word_embeddings_layernorm"),
    ]
    for i in range(c.layers):
        table += _block(c, ("stack", "blocks", i), f"transformer.h.{i}")
    table += weight_map.norm(("stack", "norm"), c, "transformer.ln_f")
    return (*table, *weight_map.output_matrix(c, "lm_head.weight"))


def _block(c: TransformerConfig, path: Path, name: str) -> list[Weight]:
    attention = (*path, "attention")
    parts = {"in": f"{name}.mlp.dense_h_to_4h", "out": f"{name}.mlp.dense_4h_to_h"}
    return [
        *weight_map.norm((*path, "attention_norm"), c, f"{name}.input_layernorm"),
        *weight_map.per_head(attention, c, f"{name}.self_attention.query_key_value"),
        *weight_map.output_projection(attention, c, f"{name}.self_attention.dense"),
        *weight_map.norm((*path, "feed_forward_norm"), c, f"{name}.post_attention_layernorm"),
        *weight_map.feed_forward((*path, "feed_forward"), c, parts),
    ]


BLOOM = Architecture(
    model_type="bloom",
    config=config,
    to_json=to_json,
    weights=weights,
    build=lambda spec, rngs: Decoder(spec.config, rngs=rngs),
    prefix="transformer.",
)
