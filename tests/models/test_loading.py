"""Folders of weights to models: values, dtypes and places; other encodings; and everything that does not fit, in one error."""

import dataclasses
import json

import jax
import ml_dtypes
import numpy as np
import pytest

from attnjax.models import MODELS, ModelError, load, save, with_fields
from attnjax.models.matching import groups
from attnjax.models.param_paths import dotted, parameters
from attnjax.positions import ALiBi, Kerple, Learned, LogN, NoPE, RoPE, T5Bias, YaRN, compose
from tests.cases import slow_except
from tests.golden import drawn
from tests.models import published
from tests.models.toys import BFLOAT16, TOYS, D, F, H, N, encoded, folder, fused_tensors, plain_tensors, sharded


def loaded(path, **options):
    return load(path, models=TOYS, **options)


@pytest.mark.parametrize("write", [folder, sharded])
def test_every_parameter_is_where_it_belongs(tmp_path, write):
    tensors = fused_tensors()
    found = loaded(write(tmp_path / "model", "fused", tensors))
    values = {name: np.asarray(value) for name, value in parameters(found.model).items()}
    assert {value.dtype.name for value in values.values()} == {"float32"}
    assert values.keys() == {weight.path for weight in TOYS["fused"].weights(found.spec)}
    attention, feed_forward = ("stack", "blocks", 1, "attention"), ("stack", "blocks", 1, "feed_forward")
    np.testing.assert_array_equal(values["embedding", "table"], tensors["toy.embed"])
    for d, n, h in np.ndindex(D, N, H):
        for j, letter in enumerate("qkv"):
            assert values[*attention, f"w_{letter}"][d, n, h] == tensors["toy.1.qkv"][j, d, n * H + h]
        assert values[*attention, "w_o"][n, h, d] == tensors["toy.1.out"][d, n * H + h]
    np.testing.assert_array_equal(values[*feed_forward, "w_out"], tensors["toy.1.down"].T)
    assert (found.architecture, found.json["width"], found.folder) == (TOYS["fused"], D, tmp_path / "model")


def rounded(value: np.ndarray) -> np.ndarray:
    """float32 to bfloat16, ties to even, by the bits."""
    bits = value.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def test_dtypes_that_are_asked_for(tmp_path):
    tensors = plain_tensors()
    found = loaded(folder(tmp_path / "model", "plain", tensors), dtype="bfloat16")
    values = parameters(found.model)
    w = np.asarray(values["stack", "blocks", 0, "attention", "w_q"])
    np.testing.assert_array_equal(w.reshape(D, D).view(np.uint16).T, rounded(tensors["layers.0.q.weight"]))
    assert (found.spec.config.dtype, found.spec.config.param_dtype) == ("bfloat16", "bfloat16")
    table = values["stack", "inputs", 0, "table"]
    assert table.dtype == np.float32, "what an encoding learns keeps its digits"
    np.testing.assert_array_equal(table, tensors["positions.weight"])
    small = plain_tensors(BFLOAT16)
    values = parameters(loaded(folder(tmp_path / "model", "plain", small), dtype="float32").model)
    assert {value.dtype.name for value in values.values()} == {"float32"}
    np.testing.assert_array_equal(values["embedding", "table"], small["embed.weight"].astype(np.float32))


def test_dtypes_are_those_of_the_files_unless_given(tmp_path):
    tensors = fused_tensors(BFLOAT16) | {"toy.norm": fused_tensors()["toy.norm"]}
    found = loaded(folder(tmp_path / "model", "fused", tensors))
    values = parameters(found.model)
    assert values.pop(("stack", "norm", "scale")).dtype == np.float32
    assert {value.dtype.name for value in values.values()} == {"bfloat16"}
    assert (found.spec.config.dtype, found.spec.config.param_dtype) == ("bfloat16", "bfloat16")
    path = folder(tmp_path / "wide", "fused", fused_tensors(np.float64))
    with pytest.raises(ModelError, match=r"jax_enable_x64.*dtype='float32'"):
        loaded(path)
    with jax.enable_x64(True):
        values = parameters(loaded(path).model)
        np.testing.assert_array_equal(values["embedding", "table"], fused_tensors(np.float64)["toy.embed"])


def test_a_bare_model_lacks_the_prefix_and_may_have_buffers(tmp_path):
    tensors = {name.removeprefix("toy."): value for name, value in fused_tensors().items()}
    tensors |= {"0.mask": np.ones(3, bool), "head": np.zeros((2, 2), np.float32)}
    values = parameters(loaded(folder(tmp_path / "model", "fused", tensors)).model)
    np.testing.assert_array_equal(values["embedding", "table"], tensors["embed"])


def test_straight_into_a_sharding(tmp_path):
    path = folder(tmp_path / "model", "fused", fused_tensors())
    mesh = jax.make_mesh((2,), ("heads",), devices=jax.devices()[:2])
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "heads"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    places = lambda path, shape: spread if path[-1] in ("w_q", "w_k", "w_v") else whole
    values, plain = parameters(loaded(path, sharding=places).model), parameters(loaded(path).model)
    for name, value in values.items():
        assert value.sharding == places(name, value.shape)
        np.testing.assert_array_equal(value, plain[name])
    shards = values["stack", "blocks", 0, "attention", "w_q"].addressable_shards
    assert {shard.data.shape for shard in shards} == {(D, N // 2, H)}
    everywhere = parameters(loaded(path, sharding=whole).model)
    assert {value.sharding for value in everywhere.values()} == {whole}


def test_all_that_is_wrong_is_in_one_error(tmp_path):
    tensors = fused_tensors()
    missing = [name for name in tensors if "norm" in name]
    for name in missing:
        del tensors[name]
    tensors |= {"toy.0.up": np.zeros((D, F), np.float32), "toy.1.down": np.zeros((D, F), np.int8)}
    tensors |= {f"extra.{i}": np.zeros(1, np.float32) for i in range(150)}
    with pytest.raises(ModelError) as error:
        loaded(folder(tmp_path / "model", "fused", tensors))
    text = str(error.value)
    assert all(name in text.partition("left over")[0] for name in missing)
    assert "left over: extra.0, " in text
    assert "extra.99 and 50 more; " in text
    assert "wrong shape: toy.0.up is [8, 12] and must be [12, 8]; " in text
    assert "wrong type: toy.1.down is I8 " in text


# Another encoding, and other parts ------------------------------------------------------------------------------------

T5_TABLES = ("SelfAttention.relative_attention_bias.weight",)
WPE = ("transformer.wpe.weight",)
KV = ("w_k", "w_v", "b_k", "b_v")
ABLATIONS = {
    "gpt2 alibi": ({"encoding": ALiBi()}, WPE, ()),
    "gpt2 longer": ({"encoding": Learned(40)}, WPE, ("table",)),
    "gpt2 both": ({"encoding": compose(Learned(12), ALiBi())}, (), ()),
    "bert rope": ({"encoding": RoPE()}, ("bert.embeddings.position_embeddings.weight",), ()),
    "t5 alibi": ({"encoding": ALiBi(symmetric=True)}, T5_TABLES, ()),
    "bloom rope": ({"encoding": RoPE()}, (), ()),
    "llama yarn": ({"encoding": RoPE(scaling=YaRN(4.0, 8))}, (), ()),
    "llama kerple": ({"encoding": Kerple()}, (), ("r1", "r2")),
    "llama t5": ({"encoding": T5Bias()}, (), ("table",)),
    "smollm3 none": ({"encoding": NoPE()}, (), ()),
    "gpt2 bias": (
        {"bias": False},
        ("attn.c_attn.bias", "attn.c_proj.bias", "mlp.c_fc.bias", "mlp.c_proj.bias"),
        (),
    ),
    "t5 post": ({"norm_position": "post"}, ("final_layer_norm.weight",), ()),
    "bloom post": ({"norm_position": "post"}, ("ln_f.weight", "ln_f.bias"), ()),
    "gpt2 kv_heads": ({"kv_heads": 1}, (), KV),
    "gpt_neox kv_heads": ({"kv_heads": 1}, (), KV),
    "bert embedding_norm": (
        {"embedding_norm": False},
        ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"),
        (),
    ),
    "llama activation": ({"activation": "gelu"}, ("mlp.gate_proj.weight",), ()),
}
"""Name -> the fields; the ends of the names of tensors left over; the last parts of the paths of new parameters."""


def case_folder(path, name: str):
    """The model of a golden case with drawn weights."""
    case = published.case(name)
    tensors = {rows[0].names[0]: drawn.weight(rows[0].names[0], rows[0].shape) for rows in groups(case.table())}
    path.mkdir()
    (path / "config.json").write_text(str(case.arrays["config"]))
    (path / "model.safetensors").write_bytes(encoded({key: x.astype(np.float32) for key, x in tensors.items()}))
    return path


@pytest.mark.parametrize(
    "name",
    slow_except(ABLATIONS, "gpt2 alibi", "gpt2 longer", "t5 alibi", "llama kerple", "gpt2 kv_heads", "gpt2 bias"),
)
def test_weights_are_kept_where_they_fit(tmp_path, name):
    """To the last bit; what is new is drawn from the seed and told, and so is what is left over."""
    fields, unused, new = ABLATIONS[name]
    path = case_folder(tmp_path / "model", name.split()[0])
    before, found, other = load(path), load(path, fields=fields), load(path, fields=fields, seed=1)
    assert (before.new, before.unused) == ((), ())
    assert all(one.endswith(unused) for one in found.unused) if unused else found.unused == ()
    assert {end for end in unused if any(one.endswith(end) for one in found.unused)} == set(unused)
    assert {one.split(".")[-1] for one in found.new} == set(new)
    kept, mine, theirs = (parameters(one.model) for one in (before, found, other))
    held = {one for one in mine if dotted(one) not in found.new}
    assert held <= kept.keys()
    assert all(one not in mine or kept[one].shape != mine[one].shape for one in kept.keys() - held), "what fits is kept"
    for one in held:
        assert np.asarray(mine[one]).tobytes() == np.asarray(kept[one]).tobytes(), one
    assert name != "gpt2 longer" or any(not np.array_equal(mine[one], theirs[one]) for one in mine.keys() - held)
    arrays = published.case(name.split()[0]).arrays
    logits = jax.jit(lambda model: published.logits(model, arrays))(found.model)
    assert np.isfinite(np.asarray(logits)).all()


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
    before = load(case_folder(tmp_path / "model", "t5"))
    again = load(tmp_path / "model", fields={"encoding": before.spec.config.encoding})
    assert again.spec == before.spec
    assert load(save(again, tmp_path / "again")).spec == before.spec


# Tied weights ---------------------------------------------------------------------------------------------------------

GPT2 = {"model_type": "gpt2", "vocab_size": 50, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 12}
T5 = {"model_type": "t5", "vocab_size": 50, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
EMBEDDING, OUTPUT = "transformer.wte.weight", "lm_head.weight"
MATRIX = np.arange(400, dtype=np.float32).reshape(50, 8) % 128
"""The embedding of the models above, in numbers that bfloat16 has."""


def written(path, fields, **more) -> dict[str, np.ndarray]:
    """A folder with the tensors of a config, and `more`; returns all."""
    architecture = MODELS[fields["model_type"]]
    table = architecture.weights(architecture.config(fields))
    tensors = {rows[0].names[0]: drawn.weight(rows[0].names[0], rows[0].shape) for rows in groups(table)}
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()} | more
    (path / "config.json").write_text(json.dumps(fields))
    (path / "model.safetensors").write_bytes(encoded(tensors))
    return tensors


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_tied_matrix_that_a_file_repeats_must_be_equal(tmp_path, dtype):
    written(tmp_path, GPT2, **{EMBEDDING: MATRIX, OUTPUT: MATRIX.astype(dtype)})
    np.testing.assert_array_equal(parameters(load(tmp_path).model)["embedding", "table"], MATRIX)
    other = MATRIX.copy()
    other[49, 3] += 1
    for wrong in (other.astype(dtype), np.zeros((50, 9), np.float32)):
        written(tmp_path, GPT2, **{EMBEDDING: MATRIX, OUTPUT: wrong})
        with pytest.raises(ModelError, match=rf"{OUTPUT} and {EMBEDDING}, .*tie_word_embeddings=false"):
            load(tmp_path)
    written(tmp_path, {**GPT2, "tie_word_embeddings": False}, **{EMBEDDING: MATRIX, OUTPUT: other})
    np.testing.assert_array_equal(parameters(load(tmp_path).model)["embedding", "w_out"], other.T)


def test_a_model_that_is_untied_needs_no_copy(tmp_path):
    """Its output matrix is new, whether the file repeats that of the tied model or not."""
    for more in ({}, {OUTPUT: MATRIX}):
        written(tmp_path, GPT2, **{EMBEDDING: MATRIX, **more})
        found = load(tmp_path, fields={"tie_embeddings": False})
        assert found.new == ("embedding.w_out",)
        np.testing.assert_array_equal(parameters(found.model)["embedding", "table"], MATRIX)


@pytest.mark.parametrize("fields", [GPT2, T5])
def test_an_untied_model_that_is_tied_leaves_its_output_matrix(tmp_path, fields):
    """By config.json the matrices are two, so that nothing must be equal; those that are one by config.json still must."""
    tensors = written(tmp_path, {**fields, "tie_word_embeddings": False})
    found = load(tmp_path, fields={"tie_embeddings": True})
    assert (found.new, found.unused) == ((), (OUTPUT,))
    name = EMBEDDING if fields is GPT2 else "shared.weight"
    np.testing.assert_array_equal(parameters(found.model)["embedding", "table"], tensors[name])
    if fields is T5:
        written(tmp_path, {**T5, "tie_word_embeddings": False}, **{"decoder.embed_tokens.weight": -tensors[name]})
        with pytest.raises(ModelError, match=r"decoder\.embed_tokens\.weight and shared\.weight"):
            load(tmp_path, fields={"tie_embeddings": True})
