"""GPT-2 (Radford et al. 2019): a pre-norm decoder with learned positions; files store [inputs, outputs]."""

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Path, Spec, Weight
from attnjax.models.config_json import COUNT, DEPTH, FLAG, POSITIVE, SHARE, choice, key, must
from attnjax.models.encodings_json import LONGEST, TABLE
from attnjax.modules import TransformerConfig

ACTIVATIONS = choice(gelu_new="gelu_tanh", gelu_pytorch_tanh="gelu_tanh", gelu="gelu", relu="relu")
KEYS = (
    key("vocab", "vocab_size", COUNT),
    key("model", "n_embd", COUNT, ..., "hidden_size"),
    key("layers", "n_layer", DEPTH, ..., "num_hidden_layers"),
    key("heads", "n_head", COUNT, ..., "num_attention_heads"),
    key("hidden", "n_inner", COUNT, lambda fields: 4 * fields["model"]),
    key("activation", "activation_function", ACTIVATIONS, "gelu_tanh"),
    key("norm_epsilon", "layer_norm_epsilon", POSITIVE, 1e-5),
    key("tie_embeddings", "tie_word_embeddings", FLAG, True),
    key("attention_dropout", "attn_pdrop", SHARE, 0.1),
    key("residual_dropout", "resid_pdrop", SHARE, 0.1),
    key("embedding_dropout", "embd_pdrop", SHARE, 0.1),
    must("scale_attn_weights", True),
    must("scale_attn_by_inverse_layer_idx", False),
    key("encoding", "n_positions", TABLE, ..., LONGEST),
)
UNUSED = (
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("n_ctx", "reorder_and_upcast_attn", "n_special", "predict_special_tokens"),
)
"""Keys of a classifier, and of the GPT of 2018, which released configs still have."""


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
    keys=KEYS,
    unused=UNUSED,
    weights=weights,
    prefix="transformer.",
    ignored=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),
)
