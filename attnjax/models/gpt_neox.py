"""GPT-NeoX and Pythia (Black et al. 2022, arXiv:2204.06745; Biderman et al. 2023, arXiv:2304.01373).

RoPE acts on a quarter of the channels of each head; attention and feed-forward are parallel with
`use_parallel_residual`.
"""

import functools
from typing import Any

from attnjax.models import weight_map
from attnjax.models.base import Architecture, Json, Spec, Weight
from attnjax.models.config_json import LAYERS, Reader, checked_json
from attnjax.models.rotary_json import read_rope, rope_json, trained_length
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import RoPE

ACTIVATIONS = (("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("gelu_fast", "gelu_tanh"), ("relu", "relu"))

OUTPUT = ("embed_out.weight", "lm_head.weight")


def config(json: Json) -> Spec:
    """Returns the spec of a config.json. Raises ValueError for what the modules cannot compute."""
    read = Reader("gpt_neox", json)
    trained = read.integer("max_position_embeddings", default=None)
    made = TransformerConfig(
        vocab=read.integer("vocab_size"),
        model=read.integer("hidden_size"),
        layers=read.integer("num_hidden_layers", highest=LAYERS),
        heads=read.integer("num_attention_heads"),
        hidden=read.integer("intermediate_size"),
        activation=read.choice("hidden_act", default="gelu", choices=dict(ACTIVATIONS)),
        norm_epsilon=read.number("layer_norm_eps", default=1e-5),
        parallel=read.flag("use_parallel_residual", default=True),
        encoding=read_rope(read, trained, theta="rotary_emb_base", share="rotary_pct", part=0.25),
        bias=read.flag("attention_bias", default=True),
        feed_forward_bias=True,
        tie_embeddings=read.flag("tie_word_embeddings", default=False),
        attention_dropout=read.number("attention_dropout", default=0.0, zero=True),
        residual_dropout=read.number("hidden_dropout", default=0.0, zero=True),
    )
    read.skip("attention_probs_dropout_prob", "hidden_dropout_prob")  # of GPT-NeoX-20B; the library reads neither
    _check_width(made)
    read.finish()
    return Spec(made)


def to_json(spec: Spec) -> dict[str, Any]:
    """Returns the config.json of a spec."""
    c, encoding = spec.config, spec.config.encodings[0]
    trained = trained_length(encoding)
    turning = rope_json(encoding, trained)
    json = {
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": c.vocab,
        "hidden_size": c.model,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "intermediate_size": c.hidden,
        "hidden_act": {ours: theirs for theirs, ours in reversed(ACTIVATIONS)}.get(c.activation),
        "layer_norm_eps": c.norm_epsilon,
        "max_position_embeddings": trained,
        "use_parallel_residual": c.parallel,
        "rotary_emb_base": turning.pop("rope_theta"),
        "rotary_pct": getattr(encoding, "fraction", None),
        **turning,
        "attention_bias": c.bias,
        "tie_word_embeddings": c.tie_embeddings,
        "attention_dropout": c.attention_dropout,
        "hidden_dropout": c.residual_dropout,
    }
    return checked_json("gpt_neox", config, spec, json)


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
    build=lambda spec, rngs: Decoder(spec.config, rngs=rngs),
    prefix="gpt_neox.",
    ignored=(
        r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
        r"gpt_neox\.rotary_emb\.inv_freq",
    ),
)
