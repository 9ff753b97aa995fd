"""GPT-NeoX and Pythia (Black et al. 2022, arXiv:2204.06745; Biderman et al. 2023, arXiv:2304.01373).

RoPE acts on a quarter of the channels of each head; attention and feed-forward are parallel with
`use_parallel_residual`.
"""

import functools

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Spec, Weight, one_stack
from attnjax.models.config_json import FLAG, POSITIVE, SHARE, SIZES, Fields, choice, key
from attnjax.models.encodings_json import Rope

ACTIVATIONS = choice(gelu="gelu", gelu_new="gelu_tanh", gelu_fast="gelu_tanh", relu="relu")
KEYS = (
    *SIZES,
    key("activation", "hidden_act", ACTIVATIONS, "gelu"),
    key("norm_epsilon", "layer_norm_eps", POSITIVE, 1e-5),
    key("parallel", "use_parallel_residual", FLAG, True),
    key("bias", "attention_bias", FLAG, True),
    key("tie_embeddings", "tie_word_embeddings", FLAG, False),
    key("attention_dropout", "attention_dropout", SHARE, 0.0),
    key("residual_dropout", "hidden_dropout", SHARE, 0.0),
    Rope(fraction=0.25, names=("rotary_emb_base", "rotary_pct")),
)
OUTPUT = ("embed_out.weight", "lm_head.weight")


def spec(fields: Fields) -> Spec:
    """Returns the spec. Raises ValueError for an odd rotary width: published code counts channels, ours counts pairs."""
    made = one_stack(fields)
    rope, head = fields["encoding"], made.config.sizes.head_dim
    if int(head * rope.fraction) != 2 * rope.pairs(head)[0]:
        raise ValueError(f"gpt_neox: rotary_pct={rope.fraction} of a head of {head} is an odd number of channels")
    return made


def weights(spec: Spec) -> tuple[Weight, ...]:
    """Returns the weight map of a spec."""
    first = [weight_map.embedding(spec.config, "gpt_neox.embed_in.weight", OUTPUT)]
    block = functools.partial(weight_map.fused_block, attention="attention")
    return weight_map.decoder(spec.config, first, block, "gpt_neox.layers", "gpt_neox.final_layer_norm", OUTPUT)


GPT_NEOX = Architecture(
    model_type="gpt_neox",
    keys=KEYS,
    fixed={"feed_forward_bias": True},
    unused=("attention_probs_dropout_prob", "hidden_dropout_prob"),  # of GPT-NeoX-20B; its library reads neither
    spec=spec,
    weights=weights,
    prefix="gpt_neox.",
    ignored=(
        r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
        r"gpt_neox\.rotary_emb\.inv_freq",
    ),
)
