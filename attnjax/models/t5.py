"""T5 v1.0 and v1.1 (Raffel et al. 2020, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202): encoder and decoder.

Attention logits are not scaled, and have a learned bias per bucket of the distance; all layers of a stack share one
table. In v1.0, whose embeddings are tied, the output logits are divided by sqrt(D).

In training, the T5 of transformers also drops inside the feed-forward layer, before its second matrix, and after the final
norm of each stack; the modules do not. Without dropout, as in inference, the numbers are the same.
"""

import dataclasses
from typing import Any

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Path, Spec, Weight, encoder_decoder
from attnjax.models.config_json import COUNT, DEPTH, FLAG, POSITIVE, SHARE, Reader, choice, key, written
from attnjax.modules import TransformerConfig
from attnjax.modules.block import GATED
from attnjax.positions import T5Bias

FEED_FORWARD = choice(**{"relu": "relu", "gated-gelu": "geglu", "gated-silu": "swiglu", "gelu": "gelu"})
KEYS = (
    key("vocab", "vocab_size", COUNT),
    key("model", "d_model", COUNT, ..., "hidden_size"),
    key("heads", "num_heads", COUNT, ..., "num_attention_heads"),
    key("hidden", "d_ff", COUNT),
    key("activation", "feed_forward_proj", FEED_FORWARD, "relu"),
    key("norm_epsilon", "layer_norm_epsilon", POSITIVE, 1e-6),
    key("residual_dropout", "dropout_rate", SHARE, 0.1),
)
TABLE = "relative_attention_bias.weight"
OUTPUT = "lm_head.weight"


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for what the modules cannot compute."""
    read = Reader("t5", json)
    fields = read.fields(KEYS)
    layers = read.get(DEPTH, "num_layers", "num_hidden_layers")
    tie, scaled = _output(read)
    read.must("is_gated_act", fields["activation"] in GATED)
    read.skip("dense_act_fn", "n_positions")
    bias = T5Bias(
        buckets=read.get(COUNT, "relative_attention_num_buckets", default=32),
        max_distance=read.get(COUNT, "relative_attention_max_distance", default=128),
    )
    decoder = TransformerConfig(
        **fields,
        layers=read.get(DEPTH, "num_decoder_layers", default=layers),
        head_dim=read.get(COUNT, "d_kv", "head_dim"),
        norm="rms",
        encoding=bias,
        share_encoding=True,
        bias=False,
        scale=1.0,
        tie_embeddings=tie,
        logits_scale=fields["model"] ** -0.5 if scaled else 1.0,
        attention_dropout=fields["residual_dropout"],
    )
    read.finish()
    both_sides = dataclasses.replace(bias, bidirectional=True)
    return Spec(decoder, dataclasses.replace(decoder, layers=layers, encoding=both_sides))


def _output(read: Reader) -> tuple[bool, bool]:
    """Returns whether embeddings are tied, and whether logits are scaled, which is the same unless the config says so.

    transformers 5 writes tie_word_embeddings=true whether or not the files hold an output matrix, and marks v1.1 by
    scale_decoder_outputs=false. Such a config is ambiguous, and raises ValueError.
    """
    tie = read.get(FLAG, "tie_word_embeddings", default=True)
    scaled = read.get(FLAG, "scale_decoder_outputs", default=None)
    if tie and scaled is False:
        raise ValueError(
            "t5: config.json has tie_word_embeddings=true and scale_decoder_outputs=false, which transformers 5 writes of "
            "T5 v1.1 although its files have an lm_head.weight; write tie_word_embeddings=false if this one has"
        )
    return tie, tie if scaled is None else scaled


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    c, encoder, bias = spec.config, spec.encoder, spec.config.encoding
    if encoder is None or not isinstance(bias, T5Bias):
        raise ValueError(
            f"a config.json of t5 needs an encoder, a decoder and T5Bias, got {bias} and encoder {encoder}"
        )
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        **written(c, KEYS),
        "num_layers": encoder.layers,
        "num_decoder_layers": c.layers,
        "d_kv": c.sizes.head_dim,
        "relative_attention_num_buckets": bias.buckets,
        "relative_attention_max_distance": bias.max_distance,
        "tie_word_embeddings": c.tie_embeddings,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }


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
    config=config,
    to_json=to_json,
    weights=weights,
    build=encoder_decoder,
    ignored=(
        # The first releases hold it, no code reads it: cross-attention has no bias.
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
)
