"""The config: defaults, what it refuses and how, and where encodings act."""

import jax.numpy as jnp
import pytest

from attnjax.modules.config import TransformerConfig
from attnjax.modules.encoding_sharing import attention_encoding, encoding_owner, input_encodings
from attnjax.positions import (
    ALiBi,
    CoPE,
    EncodingParams,
    Learned,
    NoPE,
    PositionEncoding,
    RoPE,
    Sinusoidal,
    T5Bias,
    compose,
)


class AddAndBias(PositionEncoding):
    """Acts on the embeddings and in attention, and learns."""

    def init(self, key, sizes):
        return EncodingParams(shared={"rate": jnp.ones(())})

    def embed(self, p, x, pos):
        return x

    def bias(self, p, n):
        return n


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab": 0}, "vocab must be a whole number of at least 1, got 0"),
        ({"layers": 1.5}, "layers must be a whole number of at least 1 and at most 1000, got 1.5"),
        ({"heads": 3}, "model=16 is no multiple of TransformerConfig.heads=3; give TransformerConfig.head_dim"),
        ({"kv_heads": 3}, "heads=4 is no multiple of TransformerConfig.kv_heads=3"),
        ({"kv_heads": 0}, "kv_heads must be a whole number of at least 1 and at most 4096, got 0"),
        ({"head_dim": -2}, "head_dim must be a whole number of at least 1 and at most 65536, got -2"),
        (
            {"activation": "tanh"},
            "activation must be one of 'relu', 'gelu', 'gelu_tanh', 'swiglu', 'geglu', got 'tanh'",
        ),
        ({"norm": "batch"}, "norm must be one of 'layer', 'rms', got 'batch'"),
        ({"norm_position": "both"}, "norm_position must be one of 'pre', 'post', got 'both'"),
        ({"norm_epsilon": 0.0}, "norm_epsilon must be a finite number above 0, got 0.0"),
        ({"scale": float("nan")}, "scale must be a finite number above 0, got nan"),
        ({"bias": 1}, "bias must be true or false, got 1"),
        ({"feed_forward_bias": 0}, "feed_forward_bias must be true or false or none, got 0"),
        ({"attention_dropout": 1.0}, "attention_dropout must be a finite number of at least 0 and below 1, got 1.0"),
        ({"residual_dropout": float("nan")}, "residual_dropout must be a finite number of at least 0 .* got nan"),
        ({"embedding_dropout": -0.1}, "embedding_dropout must be a finite number of at least 0 .* got -0.1"),
        ({"embed_std": 0.0}, "embed_std must be a finite number above 0, got 0.0"),
        ({"output_bias": None}, "output_bias must be true or false, got None"),
        ({"window": -1}, "window must be a whole number of at least 0, got -1"),
        ({"windows": (3,)}, "windows must have one entry for each of TransformerConfig.layers=2, .* got 1 entries"),
        ({"windows": (3, -1)}, r"windows\[1\] must be a whole number of at least 0, got -1"),
        (
            {"windows": (3, None), "window": 3},
            "windows must have .*TransformerConfig.window be none, got 2 entries and .*=3",
        ),
        (
            {"parallel": True, "norm_position": "post"},
            "parallel needs TransformerConfig.norm_position='pre', got 'post'",
        ),
        ({"parallel": 1}, "parallel must be true or false, got 1"),
        ({"token_types": -1}, "token_types must be a whole number of at least 0, got -1"),
        ({"logits_scale": 0.0}, "logits_scale must be a finite number above 0, got 0.0"),
        ({"qk_norm_epsilon": 0.0}, "qk_norm_epsilon must be a finite number above 0, got 0.0"),
        ({"attention_output_bias": "no"}, "attention_output_bias must be true or false or none, got 'no'"),
        ({"dtype": "int8"}, "dtype must be one of 'float32', 'bfloat16', 'float16', 'float64', got 'int8'"),
        (
            {"implementation": "flash"},
            "implementation must be one of 'dense', 'chunked', 'xla', 'cudnn', got 'flash'",
        ),
        ({"encoding": "rope"}, "encoding must be a PositionEncoding such as RoPE.*got 'rope'"),
        ({"encoding": {}}, "encoding must be a PositionEncoding such as RoPE.*got {}"),
        ({"encoding": (RoPE(), NoPE(), RoPE())}, "encoding has 3 entries for TransformerConfig.layers=2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_config_that_cannot_be_built_is_refused(config, fields, message):
    with pytest.raises(ValueError, match=f"TransformerConfig.{message}"):
        config(**fields)


def test_sizes_fill_in_the_defaults(config):
    assert config().sizes == (16, 4, 4, 4)
    assert config(kv_heads=2, head_dim=6).sizes == (16, 4, 2, 6)
    assert config(heads=3, head_dim=5).sizes == (16, 3, 3, 5)


def test_a_config_can_be_a_static_argument(config):
    assert hash(config(encoding=(RoPE(), NoPE()))) == hash(config(encoding=(RoPE(), NoPE())))
    assert config() != config(kv_heads=2)


def test_the_original_base_model_is_that_of_the_paper():
    base = TransformerConfig.original_base()
    assert (base.layers, base.model, base.heads, base.hidden, base.sizes.head_dim) == (6, 512, 8, 2048, 64)
    assert (base.norm_position, base.activation, base.residual_dropout) == ("post", "relu", 0.1)
    assert base.encodings == (Sinusoidal(),) * 6


def test_what_acts_on_embeddings_acts_on_the_input_once(config):
    mixed = config(encoding=(compose(Learned(8), ALiBi()), compose(Learned(8), Sinusoidal(), RoPE(), T5Bias())))
    assert input_encodings(mixed) == (Learned(8), Sinusoidal())
    assert [attention_encoding(mixed, i) for i in range(2)] == [ALiBi(), compose(RoPE(), T5Bias())]
    assert [attention_encoding(config(encoding=Learned(8)), i) for i in range(2)] == [NoPE(), NoPE()]
    assert input_encodings(config(encoding=(RoPE(), NoPE()))) == ()


def test_a_composition_in_attention_stays_as_it_is(config):
    nested = compose(compose(RoPE(), ALiBi()), CoPE())
    assert attention_encoding(config(encoding=nested), 1) is nested


def test_an_encoding_that_learns_in_two_places_is_refused(config):
    with pytest.raises(ValueError, match=r"learns, and acts on the embeddings and in attention.*compose\(a, b\)"):
        input_encodings(config(encoding=AddAndBias()))


def test_shared_encodings_belong_to_the_first_layer_that_has_them(config):
    alternating = config(layers=4, encoding=(T5Bias(), NoPE(), T5Bias(), NoPE()), share_encoding=True)
    assert [encoding_owner(alternating, i) for i in range(4)] == [0, 1, 0, 1]
    assert [encoding_owner(config(encoding=T5Bias()), i) for i in range(2)] == [0, 1]
