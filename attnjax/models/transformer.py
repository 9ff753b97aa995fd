"""The original Transformer (Vaswani et al. 2017, arXiv:1706.03762): encoder-decoder, post-norm, sinusoidal positions.

Its weights were not published. Names and fused matrices of tensors are those of `torch.nn.TransformerEncoder` and
`torch.nn.TransformerDecoder` without their final norm, the keys of config.json those of `torch.nn.Transformer`;
`attention_bias` is false in the paper and true in PyTorch. Source, target and output share one embedding matrix.
"""

import dataclasses

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Path, Spec, Weight, encoder_decoder
from attnjax.models.config_json import COUNT, DEPTH, FLAG, POSITIVE, SHARE, Fields, choice, key, must
from attnjax.modules import TransformerConfig
from attnjax.positions import Sinusoidal

KEYS = (
    key("vocab", "vocab_size", COUNT),
    key("model", "d_model", COUNT, 512),
    key("layers", "num_decoder_layers", DEPTH, 6),
    key("heads", "nhead", COUNT, 8),
    key("hidden", "dim_feedforward", COUNT, 2048),
    key("activation", "activation", choice("relu", "gelu"), "relu"),
    key("norm_epsilon", "layer_norm_eps", POSITIVE, 1e-6),
    key("bias", "attention_bias", FLAG, False),
    key("tie_embeddings", "tie_word_embeddings", FLAG, True),
    key("residual_dropout", "dropout", SHARE, 0.1),
    key("encoder_layers", "num_encoder_layers", DEPTH, 6),
    must("norm_first", False),  # pre-norm has a final norm in PyTorch
)


def spec(fields: Fields) -> Spec:
    """Returns the spec."""
    layers = fields.pop("encoder_layers")
    decoder = TransformerConfig(**fields)
    return Spec(decoder, dataclasses.replace(decoder, layers=layers))


def weights(spec: Spec) -> tuple[Weight, ...]:
    """Returns the weight map of a spec."""
    assert spec.encoder is not None
    table = [weight_map.embedding(spec.config, "embedding.weight", "output.weight")]
    for side, c in (("encoder", spec.encoder), ("decoder", spec.config)):
        for i in range(c.layers):
            table += _block(c, (side, "blocks", i), f"{side}.layers.{i}", cross=side == "decoder")
    return (*table, *weight_map.output_matrix(spec.config, "output.weight"))


def _block(c: TransformerConfig, path: Path, name: str, *, cross: bool) -> list[Weight]:
    sublayers = [("attention", "self_attn"), *([("cross", "multihead_attn")] if cross else [])]
    table = []
    for i, (ours, theirs) in enumerate(sublayers, 1):
        table += _attention(c, (*path, ours), f"{name}.{theirs}")
        table += weight_map.norm((*path, f"{ours}_norm"), c, f"{name}.norm{i}")
    parts = {"in": f"{name}.linear1", "out": f"{name}.linear2"}
    table += weight_map.feed_forward((*path, "feed_forward"), c, parts)
    return [*table, *weight_map.norm((*path, "feed_forward_norm"), c, f"{name}.norm{len(sublayers) + 1}")]


def _attention(c: TransformerConfig, path: Path, name: str) -> list[Weight]:
    D, N, _, H = c.sizes
    matrices, vectors = ([(*path, f"{kind}_{letter}") for letter in "qkv"] for kind in "wb")
    table = weight_map.fused(matrices, f"{name}.in_proj_weight", (3 * N * H, D), (3, N, H, D), 0, (2, 0, 1))
    if c.bias:
        table += weight_map.fused(vectors, f"{name}.in_proj_bias", (3 * N * H,), (3, N, H), 0, (0, 1))
    return [*table, *weight_map.output_projection(path, c, f"{name}.out_proj")]


TRANSFORMER = Architecture(
    model_type="transformer",
    keys=KEYS,
    fixed={"norm_position": "post", "encoding": Sinusoidal(), "feed_forward_bias": True, "embed_scale": True},
    spec=spec,
    weights=weights,
    build=encoder_decoder,
)
