"""Folders of weights to models: values, dtypes and places; other encodings; and everything that does not fit, in one error."""

import dataclasses

import jax
import numpy as np
import pytest

from attnjax.models import ModelError, load, save, with_fields
from attnjax.models.param_paths import dotted, parameters
from attnjax.positions import ALiBi, Kerple, Learned, LogN, NoPE, RoPE, T5Bias, YaRN, compose
from tests.models import published
from tests.models.folders import BFLOAT16, GPT2, LLAMA, T5, folder, sharded, tensors

D, N, H, QKV = 8, 2, 4, "transformer.h.0.attn.c_attn.weight"
EMBEDDING, OUTPUT = "transformer.wte.weight", "lm_head.weight"


def values(path, **options) -> dict[tuple, np.ndarray]:
    return {name: np.asarray(value) for name, value in parameters(load(path, **options).model).items()}


def test_one_file_or_several(tmp_path):
    """Parts of a fused tensor are cut where they belong; each dtype is that of the file."""
    one, two = values(folder(tmp_path / "one", GPT2)), values(sharded(tmp_path / "two", GPT2))
    fused = tensors(GPT2)[QKV]
    for i, letter in enumerate("qkv"):
        expected = fused[:, i * D : (i + 1) * D].reshape(D, N, H)
        np.testing.assert_array_equal(one["stack", "blocks", 0, "attention", f"w_{letter}"], expected)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, two[name])
    found = load(tmp_path / "one")
    assert (found.architecture.model_type, found.json, found.folder) == ("gpt2", GPT2, tmp_path / "one")


def rounded(value: np.ndarray) -> np.ndarray:
    """float32 to bfloat16, ties to even, by the bits."""
    bits = value.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def test_dtypes_that_are_asked_for(tmp_path):
    held = tensors(GPT2)
    held[QKV] = np.random.default_rng(0).normal(size=(D, 3 * D)).astype(np.float32)
    found = load(folder(tmp_path / "model", GPT2, held), dtype="bfloat16")
    assert (found.spec.config.dtype, found.spec.config.param_dtype) == ("bfloat16", "bfloat16")
    made = parameters(found.model)
    w = np.asarray(made["stack", "blocks", 0, "attention", "w_q"])
    np.testing.assert_array_equal(w.reshape(D, D).view(np.uint16), rounded(held[QKV])[:, :D])
    table = made["stack", "inputs", 0, "table"]
    assert table.dtype == np.float32, "what an encoding learns keeps its digits"
    np.testing.assert_array_equal(table, held["transformer.wpe.weight"])
    small = tensors(GPT2, BFLOAT16)
    made = values(folder(tmp_path / "model", GPT2, small), dtype="float32")
    assert {value.dtype.name for value in made.values()} == {"float32"}
    np.testing.assert_array_equal(made["embedding", "table"], small[EMBEDDING].astype(np.float32))


def test_dtypes_are_those_of_the_files_unless_given(tmp_path):
    norm = {"model.norm.weight": tensors(LLAMA)["model.norm.weight"]}
    found = load(folder(tmp_path / "model", LLAMA, tensors(LLAMA, BFLOAT16) | norm))
    made = parameters(found.model)
    assert made.pop(("stack", "norm", "scale")).dtype == np.float32
    assert {value.dtype.name for value in made.values()} == {"bfloat16"}
    assert (found.spec.config.dtype, found.spec.config.param_dtype) == ("bfloat16", "bfloat16")
    path = folder(tmp_path / "wide", LLAMA, tensors(LLAMA, np.float64))
    with pytest.raises(ModelError, match=r"jax_enable_x64.*dtype='float32'"):
        load(path)
    with jax.enable_x64(True):
        made = values(path)
        expected = tensors(LLAMA, np.float64)["model.embed_tokens.weight"]
        np.testing.assert_array_equal(made["embedding", "table"], expected)


def test_a_bare_model_lacks_the_prefix_and_may_have_buffers(tmp_path):
    held = {name.removeprefix("transformer."): value for name, value in tensors(GPT2).items()}
    held["h.0.attn.bias"] = np.ones(3, bool)
    np.testing.assert_array_equal(values(folder(tmp_path, GPT2, held))["embedding", "table"], held["wte.weight"])


def test_straight_into_a_sharding(tmp_path):
    path = folder(tmp_path, LLAMA)
    mesh = jax.make_mesh((2,), ("heads",), devices=jax.devices()[:2])
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "heads"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    places = lambda path, shape: spread if path[-1] == "w_q" else whole
    plain = values(path)
    for name, value in parameters(load(path, sharding=places).model).items():
        assert value.sharding == places(name, value.shape)
        np.testing.assert_array_equal(value, plain[name])
        shards = {shard.data.shape for shard in value.addressable_shards}
        assert shards == {(D, N // 2, H) if name[-1] == "w_q" else value.shape}


WRONG = {
    "missing": ({"transformer.ln_f.weight": None, "transformer.ln_f.bias": None}, "missing: transformer.ln_f.weight, "),
    "left over": ({f"extra.{i}": np.zeros(1, np.float32) for i in range(150)}, "extra.99 and 50 more"),
    "wrong shape": ({QKV: np.zeros((3 * D, D), np.float32)}, f"{QKV} is [24, 8] and must be [8, 24]"),
    "wrong type": ({QKV: np.zeros((D, 3 * D), np.int8)}, f"{QKV} is I8 "),
}


@pytest.mark.parametrize("kinds", [*([kind] for kind in WRONG), ["missing", "left over", "wrong shape"]])
def test_all_that_does_not_fit_is_in_one_error(tmp_path, kinds):
    held = tensors(GPT2)
    for kind in kinds:
        held |= WRONG[kind][0]
    with pytest.raises(ModelError) as error:
        load(folder(tmp_path, GPT2, {name: value for name, value in held.items() if value is not None}))
    for kind, (_, message) in WRONG.items():
        assert (f"{kind}: " in str(error.value)) == (kind in kinds)
        assert kind not in kinds or message in str(error.value)


# Another encoding, and other parts ------------------------------------------------------------------------------------

WPE = ("transformer.wpe.weight",)
BIASES = ("attn.c_attn.bias", "attn.c_proj.bias", "mlp.c_fc.bias", "mlp.c_proj.bias")
KV = ("w_k", "w_v", "b_k", "b_v")
ABLATIONS = {
    "gpt2 alibi": ({"encoding": ALiBi()}, WPE, ()),
    "gpt2 longer": ({"encoding": Learned(40)}, WPE, ("table",)),
    "gpt2 both": ({"encoding": compose(Learned(12), ALiBi())}, (), ()),
    "t5 alibi": ({"encoding": ALiBi(symmetric=True)}, ("SelfAttention.relative_attention_bias.weight",), ()),
    "llama yarn": ({"encoding": RoPE(scaling=YaRN(4.0, 8))}, (), ()),
    "llama kerple": ({"encoding": Kerple()}, (), ("r1", "r2")),
    "gpt2 bias": ({"bias": False}, BIASES, ()),
    "t5 post": ({"norm_position": "post"}, ("final_layer_norm.weight",), ()),
    "gpt2 kv_heads": ({"kv_heads": 1}, (), KV),
    "llama activation": ({"activation": "gelu"}, ("mlp.gate_proj.weight",), ()),
}
"""Name -> the fields; the ends of the names of tensors left over; the last parts of the paths of new parameters."""


@pytest.mark.parametrize("name", ABLATIONS)
def test_weights_are_kept_where_they_fit(tmp_path, name):
    """To the last bit; what is new is drawn from the seed and told, and so is what is left over."""
    fields, unused, new = ABLATIONS[name]
    path = folder(tmp_path / "model", published.case(name.split()[0]).json)
    before, found = load(path), load(path, fields=fields)
    assert (before.new, before.unused) == ((), ())
    assert all(one.endswith(unused) for one in found.unused)
    assert all(any(one.endswith(end) for one in found.unused) for end in unused)
    assert {one.split(".")[-1] for one in found.new} == set(new)
    kept, mine = (parameters(one.model) for one in (before, found))
    held = {one for one in mine if dotted(one) not in found.new}
    assert held <= kept.keys()
    assert all(one not in mine or kept[one].shape != mine[one].shape for one in kept.keys() - held), "what fits is kept"
    for one in mine:
        assert np.isfinite(np.asarray(mine[one])).all()
        assert one not in held or np.asarray(mine[one]).tobytes() == np.asarray(kept[one]).tobytes(), one
    if name == "gpt2 longer":
        other = parameters(load(path, fields=fields, seed=1).model)
        assert any(not np.array_equal(mine[one], other[one]) for one in mine.keys() - held)


def test_every_bias_of_an_encoder_has_both_directions(tmp_path):
    one, both = T5Bias(8, 20), T5Bias(8, 20, bidirectional=True)
    spec = published.case("t5").spec
    layers = spec.config.layers
    for given, expected in (
        (one, both),
        (both, both),
        ((one,) * (layers - 1) + (NoPE(),), (both,) * (layers - 1) + (NoPE(),)),
        (compose(RoPE(), one), compose(RoPE(), both)),
        ((ALiBi(),) * layers, (ALiBi(symmetric=True),) * layers),
    ):
        found = with_fields(spec, encoding=given, share_encoding=False)
        assert (found.config.encoding, found.encoder.encoding) == (given, expected)
    assert with_fields(spec, scale=0.5).encoder == dataclasses.replace(spec.encoder, scale=0.5)
    assert with_fields(published.case("bert").spec, encoding=one).config.encoding == both, "an encoder alone"
    assert with_fields(published.case("llama").spec, encoding=one).config.encoding == one, "no encoder"
    with pytest.raises(ValueError, match="LogN.*causal"):
        with_fields(spec, encoding=compose(one, LogN()))
    before = load(folder(tmp_path / "model", T5))
    again = load(tmp_path / "model", fields={"encoding": before.spec.config.encoding})
    assert again.spec == before.spec
    assert load(save(again, tmp_path / "again")).spec == before.spec


# Tied weights ---------------------------------------------------------------------------------------------------------

MATRIX = np.arange(88, dtype=np.float32).reshape(11, 8)
"""An embedding in numbers that bfloat16 has."""
UNTIED = {"tie_word_embeddings": False}


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_a_tied_matrix_that_a_file_repeats_must_be_equal(tmp_path, dtype):
    held = tensors(GPT2) | {EMBEDDING: MATRIX}
    path = folder(tmp_path, GPT2, held | {OUTPUT: MATRIX.astype(dtype)})
    np.testing.assert_array_equal(values(path)["embedding", "table"], MATRIX)
    other = MATRIX.copy()
    other[10, 3] += 1
    for wrong in (other.astype(dtype), np.zeros((11, 9), np.float32)):
        with pytest.raises(ModelError, match=rf"{OUTPUT} and {EMBEDDING}, .*tie_word_embeddings=false"):
            load(folder(tmp_path, GPT2, held | {OUTPUT: wrong}))
    folder(tmp_path, GPT2 | UNTIED, held | {OUTPUT: other})
    np.testing.assert_array_equal(values(path)["embedding", "w_out"], other.T)


def test_a_model_that_is_untied_needs_no_copy(tmp_path):
    """Its output matrix is new, whether the file repeats that of the tied model or not."""
    for more in ({}, {OUTPUT: MATRIX}):
        folder(tmp_path, GPT2, tensors(GPT2) | {EMBEDDING: MATRIX} | more)
        found = load(tmp_path, fields={"tie_embeddings": False})
        assert found.new == ("embedding.w_out",)
        np.testing.assert_array_equal(parameters(found.model)["embedding", "table"], MATRIX)


@pytest.mark.parametrize(("table", "name"), [(GPT2, EMBEDDING), (T5, "shared.weight")])
def test_an_untied_model_that_is_tied_leaves_its_output_matrix(tmp_path, table, name):
    """By config.json the matrices are two, so that nothing must be equal; those that are one by config.json still must."""
    held = tensors(table | UNTIED)
    found = load(folder(tmp_path, table | UNTIED, held), fields={"tie_embeddings": True})
    assert (found.new, found.unused) == ((), (OUTPUT,))
    np.testing.assert_array_equal(parameters(found.model)["embedding", "table"], held[name])
    if table is T5:
        folder(tmp_path, T5 | UNTIED, held | {"decoder.embed_tokens.weight": -held[name]})
        with pytest.raises(ModelError, match=r"decoder\.embed_tokens\.weight and shared\.weight"):
            load(tmp_path, fields={"tie_embeddings": True})
