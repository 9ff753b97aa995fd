"""The original Transformer (Vaswani et al. 2017, arXiv:1706.03762): encoder-decoder, post-norm, sinusoidal positions.

Its weights were not published. Names and fused matrices of tensors are those of `torch.nn.TransformerEncoder` and
`torch.nn.TransformerDecoder` without their final norm, the keys of config.json those of `torch.nn.Transformer`;
`attention_bias` is false in the paper and true in PyTorch. Source, target and output share one embedding matrix.
"""

import dataclasses
from typing import Any

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Path, Spec, Weight, encoder_decoder
from attnjax.models.config_json import LAYERS, Reader, checked_json
from attnjax.modules import TransformerConfig
from attnjax.positions import Sinusoidal

ACTIVATIONS = (("relu", "relu"), ("gelu", "gelu"))


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for pre-norm, which needs a final norm in PyTorch."""
    read = Reader("transformer", json)
    read.must("norm_first", False)
    dropout = read.number("dropout", default=0.1, zero=True)
    decoder = TransformerConfig(
        vocab=read.integer("vocab_size"),
        model=read.integer("d_model", default=512),
        layers=read.integer("num_decoder_layers", default=6, highest=LAYERS),
        heads=read.integer("nhead", default=8),
        hidden=read.integer("dim_feedforward", default=2048),
        activation=read.choice("activation", default="relu", choices=dict(ACTIVATIONS)),
        norm_position="post",
        norm_epsilon=read.number("layer_norm_eps", default=1e-6),
        encoding=Sinusoidal(),
        bias=read.flag("attention_bias", default=False),
        feed_forward_bias=True,
        embed_scale=True,
        tie_embeddings=read.flag("tie_word_embeddings", default=True),
        residual_dropout=dropout,
    )
    layers = read.integer("num_encoder_layers", default=6, highest=LAYERS)
    read.finish()
    return Spec(decoder, dataclasses.replace(decoder, layers=layers))


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    c, encoder = spec.config, spec.encoder
    json = {
        "vocab_size": c.vocab,
        "d_model": c.model,
        "nhead": c.heads,
        "num_encoder_layers": 0 if encoder is None else encoder.layers,
        "num_decoder_layers": c.layers,
        "dim_feedforward": c.hidden,
        "activation": {ours: theirs for theirs, ours in ACTIVATIONS}.get(c.activation),
        "layer_norm_eps": c.norm_epsilon,
        "attention_bias": c.bias,
        "tie_word_embeddings": c.tie_embeddings,
        "dropout": c.residual_dropout,
    }
    return checked_json("transformer", config, spec, json)


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
    config=config,
    to_json=to_json,
    weights=weights,
    build=encoder_decoder,
)
