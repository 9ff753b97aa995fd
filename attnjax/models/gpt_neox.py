"""GPT-NeoX and Pythia (Black et al. 2022, arXiv:2204.06745; Biderman et al. 2023, arXiv:2304.01373).

RoPE acts on a quarter of the channels of each head; attention and feed-forward are parallel with
`use_parallel_residual`.
"""

import functools
from typing import Any

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Spec, Weight
from attnjax.models.config_json import COUNT, FLAG, POSITIVE, SHARE, SIZES, Reader, choice, key, written
from attnjax.models.rotary_json import LONGEST, read_rope, rope_json, trained_length
from attnjax.modules import TransformerConfig
from attnjax.positions import RoPE

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
)
OUTPUT = ("embed_out.weight", "lm_head.weight")


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for what the modules cannot compute."""
    read = Reader("gpt_neox", json)
    trained = read.get(COUNT, LONGEST, default=None)
    rope = read_rope(read, trained, theta="rotary_emb_base", share="rotary_pct", part=0.25)
    made = TransformerConfig(**read.fields(KEYS), feed_forward_bias=True, encoding=rope)
    read.skip("attention_probs_dropout_prob", "hidden_dropout_prob")  # of GPT-NeoX-20B; the library reads neither
    _check_width(made)
    read.finish()
    return Spec(made)


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    c, encoding = spec.config, spec.config.encodings[0]
    trained = trained_length(encoding)
    turning = rope_json(encoding, trained)
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        **written(c, KEYS),
        LONGEST: trained,
        "rotary_emb_base": turning.pop("rope_theta"),
        "rotary_pct": getattr(encoding, "fraction", None),
        **turning,
    }


def weights(spec: Spec) -> tuple[Weight, ...]:
    """Returns the weight map of a spec."""
    first = [weight_map.embedding(spec.config, "gpt_neox.embed_in.weight", OUTPUT)]
    block = functools.partial(weight_map.fused_block, attention="attention")
    return weight_map.decoder(spec.config, first, block, "gpt_neox.layers", "gpt_neox.final_layer_norm", OUTPUT)


def _check_width(c: TransformerConfig) -> None:
    """Raises ValueError where the rotary width is odd: published code counts channels, ours counts pairs of them."""
    rope, head = c.encoding, c.sizes.head_dim
    assert isinstance(rope, RoPE)
    if int(head * rope.fraction) != 2 * rope.pairs(head)[0]:
        raise ValueError(f"gpt_neox: rotary_pct={rope.fraction} of a head of {head} is an odd number of channels")


GPT_NEOX = Architecture(
    model_type="gpt_neox",
    config=config,
    to_json=to_json,
    weights=weights,
    prefix="gpt_neox.",
    ignored=(
        r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
        r"gpt_neox\.rotary_emb\.inv_freq",
    ),
)
