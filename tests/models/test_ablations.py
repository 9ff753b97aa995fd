"""Published architectures with another encoding: what fits is kept bit for bit, what is new or left over is told."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from attnjax.models import load, save, with_fields
from attnjax.models.matching import groups
from attnjax.models.param_paths import dotted, parameters
from attnjax.positions import ALiBi, Kerple, Learned, LogN, NoPE, RoPE, T5Bias, YaRN, compose
from tests.cases import slow_except
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


@pytest.mark.quick("gpt2 alibi", "t5 alibi", "llama kerple")
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


def test_every_bias_of_an_encoder_has_both_directions():
    one, both = T5Bias(8, 20), T5Bias(8, 20, bidirectional=True)
    spec = published.case("t5").spec
    layers = spec.config.layers
    for given, expected in (
        (one, both),
        (both, both),
        ((one,) * (layers - 1) + (NoPE(),), (both,) * (layers - 1) + (NoPE(),)),
        (compose(RoPE(), one), compose(RoPE(), both)),
        ((ALiBi(),) * layers, (ALiBi(symmetric=True),) * layers),
        (RoPE(), RoPE()),
    ):
        found = with_fields(spec, encoding=given, share_encoding=False)
        assert (found.config.encoding, found.encoder.encoding) == (given, expected)
    assert with_fields(spec, scale=0.5).encoder == dataclasses.replace(spec.encoder, scale=0.5)
    assert with_fields(published.case("bert").spec, encoding=one).config.encoding == both, "an encoder alone"
    decoder = published.case("llama").spec
    assert with_fields(decoder, encoding=one).config.encoding == one, "no encoder"
    assert with_fields(decoder, encoding=T5Bias(7)).config.encoding == T5Bias(7), "which needs no two halves"
    with pytest.raises(ValueError, match="buckets must be even .* where bidirectional, got 7"):
        with_fields(spec, encoding=T5Bias(7))
    with pytest.raises(ValueError, match="LogN.*causal"):
        with_fields(spec, encoding=compose(one, LogN()))


OTHER_PARTS = {
    "gpt2 bias=False": (
        {"bias": False},
        ("attn.c_attn.bias", "attn.c_proj.bias", "mlp.c_fc.bias", "mlp.c_proj.bias"),
        (),
    ),
    "gpt2 feed_forward_bias=False": ({"feed_forward_bias": False}, ("mlp.c_fc.bias", "mlp.c_proj.bias"), ()),
    "gpt2 attention_output_bias=False": ({"attention_output_bias": False}, ("attn.c_proj.bias",), ()),
    "gpt2 norm_position=post": ({"norm_position": "post"}, ("ln_f.weight", "ln_f.bias"), ()),
    "bloom norm_position=post": ({"norm_position": "post"}, ("ln_f.weight", "ln_f.bias"), ()),
    "llama norm_position=post": ({"norm_position": "post"}, ("model.norm.weight",), ()),
    "t5 norm_position=post": ({"norm_position": "post"}, ("final_layer_norm.weight",), ()),
    "gpt2 kv_heads=1": ({"kv_heads": 1}, (), ("w_k", "w_v", "b_k", "b_v")),
    "bloom kv_heads=1": ({"kv_heads": 1}, (), ("w_k", "w_v", "b_k", "b_v")),
    "gpt_neox kv_heads=1": ({"kv_heads": 1}, (), ("w_k", "w_v", "b_k", "b_v")),
    "bert embedding_norm=False": (
        {"embedding_norm": False},
        ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"),
        (),
    ),
    "bloom embedding_norm=False": (
        {"embedding_norm": False},
        ("embeddings_layernorm.weight", "embeddings_layernorm.bias"),
        (),
    ),
    "llama activation=gelu": ({"activation": "gelu"}, ("mlp.gate_proj.weight",), ()),
}
"""Name -> the fields; the ends of the names of all tensors left over; the last parts of the paths of all new parameters."""
QUICK = ("gpt2 bias=False", "llama norm_position=post", "bloom kv_heads=1", "llama activation=gelu")


@pytest.mark.quick("bloom kv_heads=1")
@pytest.mark.parametrize("name", slow_except(OTHER_PARTS, *QUICK))
def test_parts_that_the_new_model_lacks_or_has_in_another_shape(tmp_path, name):
    fields, unused, new = OTHER_PARTS[name]
    path = folder(tmp_path / "model", name.split()[0])
    before, found = load(path), load(path, fields=fields)
    assert all(one.endswith(unused) for one in found.unused) if unused else found.unused == ()
    assert {end for end in unused if any(one.endswith(end) for one in found.unused)} == set(unused)
    assert {one.split(".")[-1] for one in found.new} == set(new)
    kept, mine = parameters(before.model), parameters(found.model)
    held = {one for one in mine if dotted(one) not in found.new}
    gone = {one for one in kept if one not in held}
    assert held <= kept.keys()
    assert gone, "the ablation changes something"
    assert all(one not in mine or kept[one].shape != mine[one].shape for one in gone), "what fits is kept"
    for one in held:
        assert np.asarray(mine[one]).tobytes() == np.asarray(kept[one]).tobytes(), one
    logits = jax.jit(lambda model: published.logits(model, published.case(name.split()[0]).arrays))(found.model)
    assert np.isfinite(np.asarray(logits)).all()
    with pytest.raises(ValueError, match="cannot say this: .* would be read back as something else"):
        save(found, tmp_path / "second")


@pytest.mark.slow
def test_what_is_kept_makes_the_same_numbers(tmp_path):
    """A LLaMA without RoPE is the same at position 0, where nothing turns, and another behind it."""
    path = folder(tmp_path / "model", "llama")
    tokens = np.array([[3, 7, 5, 2]], np.int32)
    before, after = (np.asarray(load(path, fields=one).model(tokens)) for one in ({}, {"encoding": NoPE()}))
    np.testing.assert_allclose(after[:, 0], before[:, 0], rtol=1e-5, atol=1e-6)
    assert np.abs(after[:, 1:] - before[:, 1:]).max(-1).min() > 1e-3
