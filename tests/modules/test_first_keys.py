"""LM-Infinite and StreamingLLM in a config: refused without the window and the first keys that they are made for."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax.config import parse
from attnjax.modules import Decoder, TransformerConfig
from attnjax.train.model import transformer_config

STREAMING, INFINITE = aj.StreamingLLM(first=4, window=59), aj.LMInfinite(first=10, window=63, limit=70)
SIZES = {"vocab": 11, "model": 16, "layers": 2, "heads": 2, "hidden": 32}
CALL = "another mask goes into the call of the model, mask=Mask(window=..., first=...)"


def told(path, name, numbers, layer, got):
    (n, W), entry = numbers, f"{path}.window (or the entry of the layer in {path}.windows)"
    return (
        f"{path}.encoding has {name}(first={n}, window={W}) in layer {layer}, whose distances are those of a mask that shows "
        f"{W} keys back and the first {n}: {entry} must be ({W}, 0) or {W} and {path}.window_first {n}, got {got}; {CALL}"
    )


@pytest.mark.parametrize(
    ("encoding", "fields", "layer", "got"),
    [
        (STREAMING, {}, 0, "None and 0"),
        (STREAMING, {"window": (59, 0)}, 0, "(59, 0) and 0"),
        (STREAMING, {"window": (58, 0), "window_first": 4}, 0, "(58, 0) and 4"),
        (STREAMING, {"window_first": 4}, 0, "None and 4"),
        (STREAMING, {"windows": (59, None), "window_first": 4}, 1, "None and 4"),
        (STREAMING, {"window": 59, "window_first": 5}, 0, "59 and 5"),
        (aj.compose(aj.LogN(length=64), STREAMING), {}, 0, "None and 0"),
        ((aj.RoPE(), STREAMING), {"window_first": 4}, 1, "None and 4"),
        (INFINITE, {"window": 63}, 0, "63 and 0"),
    ],
)
def test_another_window_than_the_encoding_is_made_for_is_refused(encoding, fields, layer, got):
    numbers = (10, 63) if encoding is INFINITE else (4, 59)
    message = told("TransformerConfig", "LMInfinite" if encoding is INFINITE else "StreamingLLM", numbers, layer, got)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TransformerConfig(**SIZES, encoding=encoding, **fields)


@pytest.mark.parametrize(
    ("encoding", "fields"),
    [
        (STREAMING, {"window": (59, 0), "window_first": 4}),
        (INFINITE, {"window": 63, "window_first": 10}),
        ((aj.NoPE(), STREAMING), {"windows": (None, (59, 0)), "window_first": 4}),
        (aj.compose(aj.LogN(length=64), STREAMING), {"window": (59, 0), "window_first": 4}),
        (aj.ReRoPE(), {"window": 3}),
    ],
)
def test_the_window_that_it_is_made_for_passes(encoding, fields):
    assert TransformerConfig(**SIZES, encoding=encoding, **fields).encoding == encoding


def test_the_config_of_a_run_is_refused_by_the_names_of_its_fields():
    fields = {"layers": 2, "encoding": ["rope", {"name": "lm_infinite", "options": {"window": 63}}], "window": 63}
    message = told("model", "LMInfinite", (10, 63), 1, "63 and 0")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        transformer_config(parse({"model": fields}).model, vocab=5)
    made = transformer_config(parse({"model": {**fields, "window_first": 10}}).model, vocab=5)
    assert made.encodings[1] == aj.LMInfinite(window=63)


@pytest.mark.slow
def test_another_mask_goes_into_the_call():
    """Up to n + W tokens all distances of StreamingLLM are those of RoPE, so that under one mask both are one model."""
    fields = {"window": (59, 0), "window_first": 4}
    model = Decoder(TransformerConfig(**SIZES, encoding=STREAMING, **fields), rngs=nnx.Rngs(0))
    plain = Decoder(TransformerConfig(**SIZES, encoding=aj.RoPE(), window=3), rngs=nnx.Rngs(0))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 20)), jnp.int32)
    np.testing.assert_allclose(model(tokens, mask=aj.Mask(window=(3, 0))), plain(tokens), atol=1e-5)
    assert np.abs(np.asarray(model(tokens) - plain(tokens))).max() > 1e-3
