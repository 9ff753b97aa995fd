"""T5 v1.0 and v1.1 (Raffel et al. 2020, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202): encoder and decoder.

Attention logits are not scaled, and have a learned bias per bucket of the distance; all layers of a stack share one
table. In v1.0, whose embeddings are tied, the output logits are divided by sqrt(D).

In training, the T5 of transformers also drops inside the feed-forward layer, before its second matrix, and after the final
norm of each stack; the modules do not. Without dropout, as in inference, the numbers are the same.
"""

import dataclasses

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Path, Spec, Weight, encoder_decoder
from attnjax.models.config_json import COUNT, DEPTH, FLAG, POSITIVE, SHARE, Fields, choice, key
from attnjax.modules import TransformerConfig
from attnjax.modules.block import GATED
from attnjax.positions import T5Bias

FEED_FORWARD = choice("relu", "gelu", **{"gated-gelu": "geglu", "gated-silu": "swiglu"})
KEYS = (
    key("vocab", "vocab_size", COUNT),
    key("model", "d_model", COUNT, ..., "hidden_size"),
    key("heads", "num_heads", COUNT, ..., "num_attention_heads"),
    key("hidden", "d_ff", COUNT),
    key("activation", "feed_forward_proj", FEED_FORWARD, "relu"),
    key("norm_epsilon", "layer_norm_epsilon", POSITIVE, 1e-6),
    key("residual_dropout", "dropout_rate", SHARE, 0.1),
    key("attention_dropout", "dropout_rate", SHARE, 0.1),
    key("encoder_layers", "num_layers", DEPTH, ..., "num_hidden_layers"),
    key("layers", "num_decoder_layers", DEPTH, lambda fields: fields["encoder_layers"]),
    key("head_dim", "d_kv", COUNT, ..., "head_dim"),
    key("buckets", "relative_attention_num_buckets", COUNT, 32),
    key("max_distance", "relative_attention_max_distance", COUNT, 128),
    key("tie_embeddings", "tie_word_embeddings", FLAG, True),
    key("scaled", "scale_decoder_outputs", FLAG, None),
)
TABLE = "relative_attention_bias.weight"
OUTPUT = "lm_head.weight"


def spec(fields: Fields) -> Spec:
    """Returns the spec. Logits are scaled where the embeddings are tied, unless the config says otherwise.

    transformers 5 writes tie_word_embeddings=true whether or not the files hold an output matrix, and marks v1.1 by
    scale_decoder_outputs=false. Such a config is ambiguous, and raises ValueError.
    """
    scaled, layers = fields.pop("scaled"), fields.pop("encoder_layers")
    bias = T5Bias(fields.pop("buckets"), fields.pop("max_distance"))
    if fields["tie_embeddings"] and scaled is False:
        raise ValueError(
            "t5: config.json has tie_word_embeddings=true and scale_decoder_outputs=false, which transformers 5 writes of "
            "T5 v1.1 although its files have an lm_head.weight; write tie_word_embeddings=false if this one has"
        )
    factor = fields["model"] ** -0.5 if (fields["tie_embeddings"] if scaled is None else scaled) else 1.0
    decoder = TransformerConfig(**fields, encoding=bias, logits_scale=factor)
    both_sides = dataclasses.replace(bias, bidirectional=True)
    return Spec(decoder, dataclasses.replace(decoder, layers=layers, encoding=both_sides))


def weights(spec: Spec) -> tuple[Weight, ...]:
    """Returns the weight map of a spec."""
    assert spec.encoder is not None
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return (
        weight_map.embedding(spec.config, names, OUTPUT),
        *_stack(spec.encoder, "encoder", cross=False),
        *_stack(spec.config, "decoder", cross=True),
        *weight_map.output_matrix(spec.config, OUTPUT),
    )


def _stack(c: TransformerConfig, side: str, *, cross: bool) -> list[Weight]:
    table = weight_map.t5_bias(c, (side,), f"{side}.block.0.layer.0.SelfAttention.{TABLE}")
    for i in range(c.layers):
        path, name = (side, "blocks", i), f"{side}.block.{i}.layer"
        table += _attention(c, path, "attention", f"{name}.0", "SelfAttention")
        table += _attention(c, path, "cross", f"{name}.1", "EncDecAttention") if cross else []
        table += _feed_forward(c, path, f"{name}.{2 if cross else 1}")
    return [*table, *weight_map.norm((side, "norm"), c, f"{side}.final_layer_norm")]


def _attention(c: TransformerConfig, path: Path, ours: str, name: str, kind: str) -> list[Weight]:
    inside = f"{name}.{kind}"
    letters = (f"{inside}.q", f"{inside}.k", f"{inside}.v", f"{inside}.o")
    norm = weight_map.norm((*path, f"{ours}_norm"), c, f"{name}.layer_norm")
    return [*norm, *weight_map.projections((*path, ours), c, letters)]


def _feed_forward(c: TransformerConfig, path: Path, name: str) -> list[Weight]:
    inside, gated = f"{name}.DenseReluDense", c.activation in GATED
    parts = {"gate": f"{inside}.wi_0", "in": f"{inside}.wi_1"} if gated else {"in": f"{inside}.wi"}
    return [
        *weight_map.norm((*path, "feed_forward_norm"), c, f"{name}.layer_norm"),
        *weight_map.feed_forward((*path, "feed_forward"), c, {**parts, "out": f"{inside}.wo"}),
    ]


T5 = Architecture(
    model_type="t5",
    keys=KEYS,
    fixed={"norm": "rms", "share_encoding": True, "bias": False, "scale": 1.0},
    unused=("is_gated_act", "dense_act_fn", "n_positions"),
    spec=spec,
    weights=weights,
    build=encoder_decoder,
    ignored=(
        # The first releases hold it, no code reads it: cross-attention has no bias.
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
)
