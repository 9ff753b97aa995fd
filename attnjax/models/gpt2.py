"""GPT-2 (Radford et al. 2019): a pre-norm decoder with learned positions; files store [inputs, outputs]."""

from typing import Any

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Path, Spec, Weight
from attnjax.models.config_json import LAYERS, Reader, checked_json
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import Learned

ACTIVATIONS = (("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"), ("gelu", "gelu"), ("relu", "relu"))
OF_A_HEAD = (
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
)
OF_GPT = ("n_special", "predict_special_tokens")
"""Keys of the GPT of 2018, which released configs still have."""


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for scores scaled by layer, and for cross-attention."""
    read = Reader("gpt2", json)
    read.must("scale_attn_weights", True)
    read.must("scale_attn_by_inverse_layer_idx", False)
    read.skip("n_ctx", "reorder_and_upcast_attn", *OF_A_HEAD, *OF_GPT)
    D = read.integer("n_embd", "hidden_size")
    made = TransformerConfig(
        vocab=read.integer("vocab_size"),
        model=D,
        layers=read.integer("n_layer", "num_hidden_layers", highest=LAYERS),
        heads=read.integer("n_head", "num_attention_heads"),
        hidden=read.integer("n_inner", default=4 * D),
        activation=read.choice("activation_function", default="gelu_new", choices=dict(ACTIVATIONS)),
        norm_epsilon=read.number("layer_norm_epsilon", default=1e-5),
        encoding=Learned(read.integer("n_positions", "max_position_embeddings")),
        tie_embeddings=read.flag("tie_word_embeddings", default=True),
        attention_dropout=read.number("attn_pdrop", default=0.1, zero=True),
        residual_dropout=read.number("resid_pdrop", default=0.1, zero=True),
        embedding_dropout=read.number("embd_pdrop", default=0.1, zero=True),
    )
    read.finish()
    return Spec(made)


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    c = spec.config
    if not isinstance(c.encoding, Learned):
        raise ValueError(f"a config.json of gpt2 has no place for {c.encoding}")
    json = {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": c.vocab,
        "n_embd": c.model,
        "n_layer": c.layers,
        "n_head": c.heads,
        "n_inner": c.hidden,
        "activation_function": {ours: theirs for theirs, ours in reversed(ACTIVATIONS)}.get(c.activation),
        "layer_norm_epsilon": c.norm_epsilon,
        "n_positions": c.encoding.length,
        "tie_word_embeddings": c.tie_embeddings,
        "attn_pdrop": c.attention_dropout,
        "resid_pdrop": c.residual_dropout,
        "embd_pdrop": c.input_dropout,
    }
    return checked_json("gpt2", config, spec, json)


def weights(spec: Spec) -> tuple[Weight, ...]:
    """Returns the weight map of a spec."""
    c, output = spec.config, "lm_head.weight"
    first = [
        weight_map.embedding(c, "transformer.wte.weight", output),
        *weight_map.learned_positions(c, ("stack",), "transformer.wpe.weight"),
    ]
    return weight_map.decoder(c, first, _block, "transformer.h", "transformer.ln_f", output)


def _block(c: TransformerConfig, path: Path, name: str) -> list[Weight]:
    D, N, _, H = c.sizes
    attention, inner, F = (*path, "attention"), (*path, "feed_forward"), c.hidden
    matrices = [(*attention, f"w_{letter}") for letter in "qkv"]
    vectors = [(*attention, f"b_{letter}") for letter in "qkv"]
    return [
        *weight_map.norm((*path, "attention_norm"), c, f"{name}.ln_1"),
        *weight_map.fused(matrices, f"{name}.attn.c_attn.weight", (D, 3 * N * H), (D, 3, N, H), 1, (0, 1, 2)),
        *weight_map.fused(vectors, f"{name}.attn.c_attn.bias", (3 * N * H,), (3, N, H), 0, (0, 1)),
        weight_map.view((*attention, "w_o"), f"{name}.attn.c_proj.weight", (N * H, D), (N, H, D), (0, 1, 2)),
        weight_map.same((*attention, "b_o"), f"{name}.attn.c_proj.bias", D),
        *weight_map.norm((*path, "feed_forward_norm"), c, f"{name}.ln_2"),
        weight_map.same((*inner, "w_in"), f"{name}.mlp.c_fc.weight", D, F),
        weight_map.same((*inner, "b_in"), f"{name}.mlp.c_fc.bias", F),
        weight_map.same((*inner, "w_out"), f"{name}.mlp.c_proj.weight", F, D),
        weight_map.same((*inner, "b_out"), f"{name}.mlp.c_proj.bias", D),
    ]


GPT2 = Architecture(
    model_type="gpt2",
    config=config,
    to_json=to_json,
    weights=weights,
    build=lambda spec, rngs: Decoder(spec.config, rngs=rngs),
    prefix="transformer.",
    ignored=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),
)
