"""The config: what it refuses, the sizes and windows it fills in, and where encodings act."""

import dataclasses

import jax.numpy as jnp
import pytest

import attnjax as aj
from attnjax.config import parse
from attnjax.positions import CoPE, Learned, NoPE, PositionEncoding, RoPE, Sinusoidal, T5Bias, XPos, compose
from attnjax.train.model import transformer_config
from tests.modules.by_hand import config

ALIBI = aj.ALiBi()
STREAMING, INFINITE = aj.StreamingLLM(first=4, window=59), aj.LMInfinite(first=10, window=63, limit=70)


@dataclasses.dataclass(frozen=True)
class AddAndBias(PositionEncoding):
    """Acts on the embeddings and in attention, and learns."""

    def init(self, key, sizes):
        return {"rate": jnp.ones(())}

    def embed(self, p, x, pos):
        return x

    def bias(self, p, n):
        return n


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab": 0}, "vocab .*at least 1, got 0"),
        ({"heads": 3}, "model=16 .*heads=3.*head_dim"),
        ({"activation": "tanh"}, "activation .*'relu', .*got 'tanh'"),
        ({"norm_epsilon": 0.0}, "norm_epsilon .*above 0, got 0.0"),
        ({"attention_dropout": 1.0}, "attention_dropout .*1, got 1.0"),
        ({"attention_gate": "all"}, "attention_gate .*'head', 'channel' .*got 'all'"),
        ({"implementation": "flash"}, "implementation .*'dense', .*got 'flash'"),
        ({"window": -1}, "window .*at least 0 .*got -1"),
        ({"windows": (3,)}, "windows .*layers=2.* got 1 entries"),
        ({"windows": (3, None), "window": 3}, "windows .*TransformerConfig.window.* got 2 entries.*window=3"),
        ({"parallel": True, "norm_position": "post"}, "parallel .*norm_position='pre', got 'post'"),
        ({"encoding": "rope"}, "encoding .*PositionEncoding.*got 'rope'"),
        ({"encoding": (RoPE(), NoPE(), RoPE())}, "encoding has 3 entries for TransformerConfig.layers=2"),
        ({"scan_layers": True, "encoding": (RoPE(), ALIBI)}, "scan_layers .*encoding"),
        ({"scan_layers": True, "windows": (2, None)}, "scan_layers .*window"),
        ({"scan_layers": True, "encoding": T5Bias(), "share_encoding": True}, "scan_layers .*share_encoding"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_a_config_that_cannot_be_built_is_refused(fields, message):
    with pytest.raises(ValueError, match=f"TransformerConfig.{message}"):
        config(**fields)


def test_embeddings_get_each_encoding_once_and_attention_gets_the_rest():
    mixed = config(encoding=(compose(Learned(8), ALIBI), compose(Learned(8), Sinusoidal(), RoPE(), T5Bias())))
    assert mixed.input_encodings == (Learned(8), Sinusoidal())
    assert mixed.attention_encodings == (ALIBI, compose(RoPE(), T5Bias()))
    assert config(encoding=Learned(8)).attention_encodings == (NoPE(), NoPE())
    assert config(encoding=(RoPE(), NoPE())).input_encodings == ()
    assert config(encoding=compose(compose(RoPE(), ALIBI), CoPE())).attention_encodings[1] == compose(
        RoPE(), ALIBI, CoPE()
    )
    with pytest.raises(ValueError, match="AddAndBias.* learns"):
        _ = config(encoding=AddAndBias()).input_encodings


def test_shared_encodings_belong_to_the_first_layer_that_has_them():
    alternating = config(layers=4, encoding=(T5Bias(), NoPE(), T5Bias(), NoPE()), share_encoding=True)
    assert alternating.encoding_owners == (0, 1, 0, 1)
    assert config(encoding=T5Bias()).encoding_owners == (0, 1)


def test_an_encoder_has_encodings_of_both_directions():
    both = config(encoding=(T5Bias(), compose(RoPE(), ALIBI))).for_encoder().encodings
    assert both == (T5Bias(bidirectional=True), compose(RoPE(), aj.ALiBi(symmetric=True)))
    with pytest.raises(ValueError, match="XPos.*causal"):
        config(encoding=(NoPE(), XPos())).for_encoder()


@pytest.mark.parametrize(
    ("encoding", "fields", "layer", "got"),
    [
        (STREAMING, {}, 0, "None and 0"),
        (STREAMING, {"window": (58, 0), "window_first": 4}, 0, r"\(58, 0\) and 4"),
        (STREAMING, {"windows": (59, None), "window_first": 4}, 1, "None and 4"),
        ((RoPE(), STREAMING), {"window_first": 4}, 1, "None and 4"),
        (INFINITE, {"window": 63}, 0, "63 and 0"),
    ],
)
def test_a_window_that_the_encoding_is_not_made_for_is_refused(encoding, fields, layer, got):
    made_for = r"LMInfinite\(first=10, window=63\)" if encoding is INFINITE else r"StreamingLLM\(first=4, window=59\)"
    with pytest.raises(ValueError, match=f"TransformerConfig.encoding .*{made_for} in layer {layer}.*got {got}"):
        config(encoding=encoding, **fields)


def test_the_window_that_the_encoding_is_made_for_passes():
    config(encoding=STREAMING, window=(59, 0), window_first=4)
    config(encoding=INFINITE, window=63, window_first=10)
    config(encoding=(NoPE(), STREAMING), windows=(None, (59, 0)), window_first=4)
    config(encoding=aj.ReRoPE(), window=3)
    fields = {"layers": 2, "encoding": ["rope", {"name": "lm_infinite", "options": {"window": 63}}], "window": 63}
    with pytest.raises(ValueError, match=r"^model.encoding .*in layer 1.*got 63 and 0"):
        transformer_config(parse({"model": fields}).model, vocab=5)
    made = transformer_config(parse({"model": {**fields, "window_first": 10}}).model, vocab=5)
    assert made.encodings[1] == aj.LMInfinite(window=63)
