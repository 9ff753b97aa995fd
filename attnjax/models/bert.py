"""BERT (Devlin et al. 2019, arXiv:1810.04805): post-norm, learned positions and token types, a norm of the embeddings.

It has two output layers. "masked_lm" predicts tokens; checkpoints of `BertForMaskedLM` and `BertForPreTraining` have it
(the next-sentence head of the latter is left out). "pooler" returns features and one vector per sequence, as
`BertModel`.
"""

from types import MappingProxyType

import jax.numpy as jnp
from flax import nnx

from attnjax.attention import Mask
from attnjax.models import weight_map
from attnjax.models.base import Architecture, Path, Spec, Weight
from attnjax.models.config_json import COUNT, FLAG, POSITIVE, SHARE, SIZES, Fields, Kind, choice, key, must
from attnjax.models.encodings_json import LONGEST, TABLE
from attnjax.modules import Encoder, TransformerConfig
from attnjax.modules.block import activate
from attnjax.modules.parameters import add, kernel, linear, norm, normalize, zeros
from attnjax.typing import Array, ArrayLike, Float, Int

HEADS = MappingProxyType({"BertForMaskedLM": "masked_lm", "BertForPreTraining": "masked_lm", "BertModel": "pooler"})
HEAD = Kind(
    lambda v: isinstance(v, list) and len(v) == 1 and v[0] in [*HEADS], f"a list with one of {', '.join(HEADS)}"
)
KEYS = (
    *SIZES,
    key("activation", "hidden_act", choice(gelu="gelu", gelu_new="gelu_tanh", relu="relu"), "gelu"),
    key("norm_epsilon", "layer_norm_eps", POSITIVE, 1e-12),
    key("token_types", "type_vocab_size", COUNT),
    key("attention_dropout", "attention_probs_dropout_prob", SHARE, 0.1),
    key("residual_dropout", "hidden_dropout_prob", SHARE, 0.1),
    key("tie_embeddings", "tie_word_embeddings", FLAG, True),
    key("architectures", "architectures", HEAD, ["BertForMaskedLM"]),
    key("encoding", LONGEST, TABLE),
    must("position_embedding_type", "absolute"),
    must("pooler_type", "first_token_transform"),
)
OUTPUT = "cls.predictions.decoder.weight"


class BertMaskedLM(Encoder):
    """Maps tokens to logits: features, a dense layer, its activation, a norm, and the transposed token embedding."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.w_dense = kernel((config.model, config.model), 1, dtype=config.param_dtype, rngs=rngs)
        self.b_dense = zeros((config.model,), dtype=config.param_dtype)
        self.dense_norm = norm(config, rngs)

    def output(self, features: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Returns the logits of features."""
        x = activate(self.config.activation, _dense(features, self.w_dense, self.b_dense))
        return self.embedding.logits(normalize(self.dense_norm, x))


class BertPooler(Encoder):
    """Maps tokens to features [B, T, D], and with `pooled` to one vector per sequence [B, D]."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.w_dense = kernel((config.model, config.model), 1, dtype=config.param_dtype, rngs=rngs)
        self.b_dense = zeros((config.model,), dtype=config.param_dtype)

    def output(self, features: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns the features unchanged: this model has no logits."""
        return features

    def pooled(
        self, tokens: Int[ArrayLike, "B T"], *, mask: Mask = Mask(), types: Int[ArrayLike, "B T"] | None = None
    ) -> Float[Array, "B D"]:
        """Returns tanh of a dense layer over the features of the first token."""
        first = self.features(tokens, mask=mask, types=types)[:, :1]
        return jnp.tanh(_dense(first, self.w_dense, self.b_dense))[:, 0]


def spec(fields: Fields) -> Spec:
    """Returns the spec, that of a `BertForMaskedLM` where the config names no class."""
    head = HEADS[fields.pop("architectures")[0]]
    fields["tie_embeddings"] |= head == "pooler"  # which has no output matrix that could be one of its own
    return Spec(TransformerConfig(**fields, output_bias=head == "masked_lm"), head=head, bidirectional=True)


def weights(spec: Spec) -> tuple[Weight, ...]:
    """Returns the weight map of a spec."""
    c, name = spec.config, "bert.embeddings"
    output = OUTPUT if spec.head == "masked_lm" else ()
    table = [
        weight_map.embedding(c, f"{name}.word_embeddings.weight", output),
        *weight_map.learned_positions(c, ("stack",), f"{name}.position_embeddings.weight"),
        weight_map.same(("embedding", "types"), f"{name}.token_type_embeddings.weight", c.token_types, c.model),
        *weight_map.norm(("stack", "input_norm"), c, f"{name}.LayerNorm"),
    ]
    for i in range(c.layers):
        table += _block(c, ("stack", "blocks", i), f"bert.encoder.layer.{i}")
    return (*table, *(_masked_lm(c) if spec.head == "masked_lm" else _dense_rows(c, "bert.pooler.dense")))


def _block(c: TransformerConfig, path: Path, name: str) -> list[Weight]:
    inside = f"{name}.attention.self"
    projections = (f"{inside}.query", f"{inside}.key", f"{inside}.value", f"{name}.attention.output.dense")
    parts = {"in": f"{name}.intermediate.dense", "out": f"{name}.output.dense"}
    return [
        *weight_map.projections((*path, "attention"), c, projections),
        *weight_map.norm((*path, "attention_norm"), c, f"{name}.attention.output.LayerNorm"),
        *weight_map.feed_forward((*path, "feed_forward"), c, parts),
        *weight_map.norm((*path, "feed_forward_norm"), c, f"{name}.output.LayerNorm"),
    ]


def _masked_lm(c: TransformerConfig) -> list[Weight]:
    name = "cls.predictions"
    bias = (f"{name}.bias", f"{name}.decoder.bias")
    return [
        *_dense_rows(c, f"{name}.transform.dense"),
        *weight_map.norm(("dense_norm",), c, f"{name}.transform.LayerNorm"),
        *weight_map.output_matrix(c, OUTPUT),
        *([weight_map.same(("embedding", "b_out"), bias, c.vocab)] if c.output_bias else []),
    ]


def _dense_rows(c: TransformerConfig, name: str) -> list[Weight]:
    weight, bias = f"{name}.weight", f"{name}.bias"
    return [weight_map.linear(("w_dense",), weight, c.model, c.model), weight_map.same(("b_dense",), bias, c.model)]


def _dense(x: Float[Array, "B T D"], w: nnx.Param, b: nnx.Param) -> Float[Array, "B T D"]:
    return add(linear(x, w[...]), b)


BERT = Architecture(
    model_type="bert",
    keys=KEYS,
    fixed={"norm_position": "post", "embedding_norm": True},
    unused=("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"),
    spec=spec,
    weights=weights,
    build=lambda spec, rngs: {"masked_lm": BertMaskedLM, "pooler": BertPooler}[spec.head](spec.config, rngs=rngs),
    prefix="bert.",
    ignored=(
        r"bert\.embeddings\.position_ids",
        r"bert\.pooler\.dense\.(weight|bias)",
        r"cls\.(predictions\.(decoder|transform\.dense)|seq_relationship)\.(weight|bias)",
        r"cls\.predictions\.(bias|transform\.LayerNorm\.(weight|bias|gamma|beta))",
    ),
)
