"""Published architectures with another encoding: what fits is kept bit for bit, what is new or left over is told."""

import dataclasses
import json

import numpy as np
import pytest

from attnjax.models import load, save, with_fields
from attnjax.models.matching import groups
from attnjax.models.param_paths import dotted, parameters
from attnjax.positions import ALiBi, Kerple, Learned, LogN, NoPE, RoPE, T5Bias, YaRN, compose
from tests.golden import drawn
from tests.models import published
from tests.models.toys import encoded

T5_TABLES = tuple(
    f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight" for side in ("encoder", "decoder")
)
WPE = "transformer.wpe.weight"
ABLATIONS = {
    "gpt2 alibi": (ALiBi(), (WPE,), 0),
    "gpt2 longer": (Learned(40), (WPE,), 1),
    "gpt2 both": (compose(Learned(12), ALiBi()), (), 0),
    "bert rope": (RoPE(), ("bert.embeddings.position_embeddings.weight",), 0),
    "t5 alibi": (ALiBi(symmetric=True), T5_TABLES, 0),
    "bloom rope": (RoPE(), (), 0),
    "llama alibi": (ALiBi(), (), 0),
    "llama yarn": (RoPE(scaling=YaRN(4.0, 8)), (), 0),
    "llama kerple": (Kerple(), (), 4),
    "llama t5": (T5Bias(), (), 2),
    "smollm3 none": (NoPE(), (), 0),
}
"""Name -> the encoding; tensors left over; how many parameters are new."""


def folder(path, name: str):
    """The model of a golden case with drawn weights."""
    case = published.case(name)
    tensors = {rows[0].names[0]: drawn.weight(rows[0].names[0], rows[0].shape) for rows in groups(case.table())}
    path.mkdir()
    (path / "config.json").write_text(str(case.arrays["config"]))
    (path / "model.safetensors").write_bytes(encoded({key: x.astype(np.float32) for key, x in tensors.items()}))
    return path


@pytest.mark.parametrize("name", ABLATIONS)
def test_weights_are_kept_where_they_fit(tmp_path, name):
    encoding, unused, count = ABLATIONS[name]
    path = folder(tmp_path / "model", name.split()[0])
    before, found = load(path), load(path, fields={"encoding": encoding})
    assert (before.new, before.unused) == ((), ())
    assert found.spec.config.encodings == (encoding,) * found.spec.config.layers
    assert found.unused == unused
    assert len(found.new) == count
    kept, mine = parameters(before.model), parameters(found.model)
    new = {one for one in mine if dotted(one) in found.new}
    assert all("position" in one or "inputs" in one for one in new)
    assert mine.keys() - new <= kept.keys()
    assert len(kept) - len(mine.keys() - new) == len(unused)
    for one in mine.keys() - new:
        assert np.asarray(mine[one]).tobytes() == np.asarray(kept[one]).tobytes(), one


def test_the_encoder_of_a_t5_sees_distances_in_both_directions(tmp_path):
    """The encoding of the decoder, given as a field, changes nothing, and the model can be saved again."""
    path = folder(tmp_path / "model", "t5")
    before = load(path)
    again = load(path, fields={"encoding": before.spec.config.encoding})
    assert again.spec == before.spec
    assert json.loads((save(again, tmp_path / "again") / "config.json").read_text()) == {
        **before.json,
        "torch_dtype": "float32",
    }
    assert load(tmp_path / "again").spec == before.spec


def test_every_t5_bias_of_an_encoder_is_bidirectional():
    one, both = T5Bias(8, 20), T5Bias(8, 20, bidirectional=True)
    spec = published.case("t5").spec
    layers = spec.config.layers
    for given, expected in (
        (one, both),
        (both, both),
        ((one,) * (layers - 1) + (NoPE(),), (both,) * (layers - 1) + (NoPE(),)),
        (compose(RoPE(), one), compose(RoPE(), both)),
        ((compose(one, LogN()),) * layers, (compose(both, LogN()),) * layers),
        (RoPE(), RoPE()),
    ):
        found = with_fields(spec, encoding=given, share_encoding=False)
        assert (found.config.encoding, found.encoder.encoding) == (given, expected)
    assert with_fields(spec, scale=0.5).encoder == dataclasses.replace(spec.encoder, scale=0.5)
    assert with_fields(published.case("bert").spec, encoding=one).config.encoding == both, "an encoder alone"
    decoder = published.case("llama").spec
    assert with_fields(decoder, encoding=one).config.encoding == one, "no encoder"
    assert with_fields(decoder, encoding=T5Bias(7)).config.encoding == T5Bias(7), "which needs no two halves"
    with pytest.raises(ValueError, match="buckets must be even where bidirectional, got 7"):
        with_fields(spec, encoding=T5Bias(7))


@pytest.mark.slow
def test_what_is_kept_makes_the_same_numbers(tmp_path):
    """A LLaMA without RoPE is the same at position 0, where nothing turns, and another behind it."""
    path = folder(tmp_path / "model", "llama")
    tokens = np.array([[3, 7, 5, 2]], np.int32)
    before, after = (np.asarray(load(path, fields=one).model(tokens)) for one in ({}, {"encoding": NoPE()}))
    np.testing.assert_allclose(after[:, 0], before[:, 0], rtol=1e-5, atol=1e-6)
    assert np.abs(after[:, 1:] - before[:, 1:]).max(-1).min() > 1e-3
