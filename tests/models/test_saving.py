"""Models to folders and back: bit for bit, read by the library of the format, and never over somebody else's files."""

import dataclasses
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.models import MODELS, saving, with_fields
from attnjax.models.files import ModelError
from attnjax.models.loading import Loaded, load
from attnjax.models.param_paths import parameters, with_parameters
from attnjax.models.saving import save
from attnjax.models.tensors import open_file, open_folder
from attnjax.positions import DynamicNTK, Learned, RoPE, YaRN
from tests.cases import slow_except
from tests.models import published
from tests.models.toys import BFLOAT16, TENSORS, TOYS, folder, fused_tensors, plain_tensors


def loaded(path, **options) -> Loaded:
    return load(path, models=TOYS, **options)


def contents(path: pathlib.Path) -> dict[str, np.ndarray]:
    return {name: entry.read() for name, entry in open_folder(path).items()}


def assert_equal(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]), err_msg=str(name))


@pytest.mark.parametrize(
    ("dtype", "family"),
    slow_except(
        itertools.product([np.float32, np.float16, BFLOAT16], TOYS), (np.float32, "fused"), (BFLOAT16, "plain")
    ),
)
def test_round_trip_is_bit_equal(tmp_path, dtype, family):
    tensors = TENSORS[family](dtype)
    first = loaded(folder(tmp_path / "first", family, tensors, eos_token_id=3))
    assert save(first, tmp_path / "second") == tmp_path / "second"
    assert_equal(contents(tmp_path / "second"), tensors)
    second = loaded(tmp_path / "second")
    assert_equal(parameters(second.model), parameters(first.model))
    assert second.spec == first.spec
    assert second.json == {**first.json, "torch_dtype": np.dtype(dtype).name}
    save(second, tmp_path / "third")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "third" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("family", TOYS)
def test_layers_in_a_loop_are_loaded_and_saved_as_those_that_are_not(tmp_path, family):
    first = loaded(folder(tmp_path / "first", family, TENSORS[family]()))
    fields = {"scan_layers": True, "remat": True}
    second = loaded(tmp_path / "first", fields=fields)
    assert second.model.stack.blocks.attention.w_q.shape[0] == second.spec.config.layers == 2
    assert_equal(parameters(second.model), parameters(first.model))
    tokens = np.array([[1, 2, 3]])
    np.testing.assert_allclose(second.model(tokens), first.model(tokens), rtol=1e-5, atol=1e-6)
    assert_equal(contents(save(second, tmp_path / "second")), contents(tmp_path / "first"))
    made = dataclasses.replace(second, json={}, folder=None)
    assert loaded(save(made, tmp_path / "third")).spec == first.spec


QUICK = ("gpt2", "t5", "llama_yarn", "qwen2")


@pytest.mark.parametrize("name", slow_except(published.CASES, *QUICK))
def test_a_family_says_the_same_after_saving_and_loading(tmp_path, name):
    """With a config.json made from the spec alone, which must be read back as the same model."""
    case = published.case(name)
    model = published.model(case)
    found = load(save(Loaded(model, case.spec, case.architecture), tmp_path / "model"))
    assert (found.new, found.unused) == ((), ())
    assert with_fields(found.spec) == case.spec
    before, after = (jax.jit(lambda one: published.logits(one, case.arrays))(one) for one in (model, found.model))
    np.testing.assert_array_equal(after, before)


def test_a_type_that_is_asked_for(tmp_path):
    found = loaded(folder(tmp_path / "first", "plain", plain_tensors(), dtype="float32"))
    save(found, tmp_path / "second", dtype="bfloat16")
    assert_equal(contents(tmp_path / "second"), plain_tensors(BFLOAT16))
    table = json.loads((tmp_path / "second" / "config.json").read_text())
    assert (table["dtype"], table["torch_dtype"]) == ("bfloat16", "bfloat16")


def test_shards(tmp_path):
    tensors = fused_tensors()
    found = loaded(folder(tmp_path / "first", "fused", tensors))
    save(found, tmp_path / "second", shard_bytes=1500)
    names = sorted(path.name for path in (tmp_path / "second").glob("*.safetensors"))
    assert names == [f"model-{i:05}-of-{len(names):05}.safetensors" for i in range(1, len(names) + 1)]
    assert len(names) >= 3
    for name in names:
        held = open_file(tmp_path / "second" / name)
        assert sum(entry.bytes for entry in held.values()) <= 1500 or len(held) == 1
    index = json.loads((tmp_path / "second" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in tensors.values())
    assert_equal(parameters(loaded(tmp_path / "second").model), parameters(found.model))


def test_what_belongs_to_the_model_comes_along(tmp_path):
    path = folder(tmp_path / "first", "fused", fused_tensors())
    (path / "tokenizer.json").write_text("{}")
    (path / "generation_config.json").write_text('{"eos_token_id": 1}')
    (path / "pytorch_model.bin").write_bytes(b"no")
    (path / "modeling.py").write_text("print('no')")
    save(loaded(path), tmp_path / "second")
    names = {one.name for one in (tmp_path / "second").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"}
    (tmp_path / "secret").write_text("x")
    (path / "vocab.txt").symlink_to("../secret")
    with pytest.raises(ModelError, match=r"vocab\.txt is a link out of the folder"):
        save(loaded(path), tmp_path / "third")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first", "second", "secret"]


def test_folders_in_use_are_not_touched(tmp_path):
    found = loaded(folder(tmp_path / "first", "fused", fused_tensors()))
    with pytest.raises(ModelError, match="holds a model already; choose another folder, or say overwrite=True"):
        save(found, tmp_path / "first")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(
            ModelError, match=r"holds files that are no part of a model \(thesis\.tex\); choose another"
        ):
            save(found, tmp_path / "home", overwrite=overwrite)
    (tmp_path / "link").symlink_to(tmp_path / "first")
    with pytest.raises(ModelError, match="is a link or a file"):
        save(found, tmp_path / "link", overwrite=True)
    assert [one.name for one in (tmp_path / "home").iterdir()] == ["thesis.tex"]


def test_overwriting_replaces_the_whole_folder(tmp_path):
    found = loaded(folder(tmp_path / "first", "fused", fused_tensors()))
    (tmp_path / "second").mkdir()
    save(found, tmp_path / "second", shard_bytes=1500)
    (tmp_path / "second" / "tokenizer.json").write_text("{}")
    save(loaded(tmp_path / "second"), tmp_path / "second", overwrite=True)
    names = {one.name for one in (tmp_path / "second").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    assert_equal(contents(tmp_path / "second"), fused_tensors())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first", "second"]


@pytest.mark.parametrize("step", ["write_folder", "_copy_companions", "_move_into_place"])
def test_a_disk_that_refuses_leaves_what_was_there(tmp_path, monkeypatch, step):
    found = loaded(folder(tmp_path / "first", "fused", fused_tensors()))
    save(found, tmp_path / "second")
    changed = {path: jnp.zeros_like(value) for path, value in parameters(found.model).items()}
    other = dataclasses.replace(found, model=with_parameters(found.model, changed))

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, step, refuse)
    with pytest.raises(OSError, match="No space left"):
        save(other, tmp_path / "second", overwrite=True)
    assert_equal(contents(tmp_path / "second"), fused_tensors())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first", "second"]


def test_a_rename_that_fails_is_undone(tmp_path, monkeypatch):
    found = loaded(folder(tmp_path / "first", "fused", fused_tensors()))
    save(found, tmp_path / "second")
    rename, calls = saving.os.rename, []

    def refuse_the_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        rename(*arguments)

    monkeypatch.setattr(saving.os, "rename", refuse_the_second)
    with pytest.raises(OSError, match="Input/output error"):
        save(found, tmp_path / "second", overwrite=True)
    assert_equal(contents(tmp_path / "second"), fused_tensors())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first", "second"]


# What a config.json that was read says, and a spec does not -----------------------------------------------------------

SMALL = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
BERT = {**SMALL, "type_vocab_size": 2, "max_position_embeddings": 12}
BLOOM = {"vocab_size": 11, "hidden_size": 16, "n_layer": 1, "n_head": 2, "seq_length": 2048}
T5 = {"vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
LONG = {**SMALL, "max_position_embeddings": 8192}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 = {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64}}


def random(family, table, **changes) -> Loaded:
    """A random model of a config.json, or of one whose fields are changed."""
    kind, read = MODELS[family], {"model_type": family, **table}
    spec = with_fields(kind.config(read), **changes)
    return Loaded(kind.build(spec, nnx.Rngs(0)), spec, kind, read)


@pytest.mark.parametrize(
    ("family", "table", "changes", "length"),
    [
        ("llama", LONG, {"norm_epsilon": 1e-5}, 8192),
        ("llama", LONG, {"encoding": RoPE(theta=500.0)}, 8192),
        ("llama", {**LONG, **LLAMA3}, {"norm_epsilon": 1e-5}, 8192),
        ("llama", LONG, {"encoding": RoPE(scaling=YaRN(4.0, 2048))}, 8192),
        ("llama", {**LONG, **DYNAMIC}, {"norm_epsilon": 1e-5}, 8192),
        ("llama", {**LONG, **DYNAMIC}, {"encoding": RoPE(scaling=DynamicNTK(2.0, 64))}, 64),  # the scaling says it
        ("llama", SMALL, {"norm_epsilon": 1e-5}, 2048),  # none is known
        ("gpt_neox", LONG, {"norm_epsilon": 1e-6}, 8192),
        ("bert", BERT, {"encoding": Learned(20)}, 20),
        ("bloom", BLOOM, {"norm_epsilon": 1e-6}, 2048),
    ],
)
def test_a_changed_model_keeps_its_trained_length(tmp_path, family, table, changes, length):
    changed = random(family, table, **changes)
    again = load(save(changed, tmp_path / "model"))
    assert again.json["seq_length" if family == "bloom" else "max_position_embeddings"] == length
    assert again.spec == changed.spec


@pytest.mark.parametrize("changes", [{}, {"norm_epsilon": 1e-6}])
def test_a_model_without_logits_has_no_output_matrix(tmp_path, changes):
    """BertModel, whose config.json may say that the embeddings of the model with logits are untied."""
    found = random("bert", {**BERT, "architectures": ["BertModel"], "tie_word_embeddings": False}, **changes)
    assert ("embedding", "w_out") not in parameters(found.model)
    again = load(save(found, tmp_path / "model"))
    assert (again.new, again.unused) == ((), ())
    assert again.spec == found.spec
    assert_equal(parameters(again.model), parameters(found.model))


@pytest.mark.parametrize(
    ("family", "table", "given", "expected"),
    [
        ("t5", T5, {"pad_token_id": 3, "decoder_start_token_id": 5, "eos_token_id": 1}, {}),
        ("t5", T5, {"decoder_start_token_id": None}, {}),
        ("t5", T5, {}, {}),  # generation_config.json may name them
        ("llama", SMALL, {"pad_token_id": 3, "bos_token_id": 4}, {}),
        ("t5", None, {}, {"pad_token_id": 0, "decoder_start_token_id": 0}),  # a model made by hand
    ],
)
def test_a_changed_model_keeps_its_special_tokens(tmp_path, family, table, given, expected):
    changed = random(family, {**(table or T5), **given}, norm_epsilon=1e-3)
    again = load(save(changed if table else dataclasses.replace(changed, json={}), tmp_path / "model"))
    assert {name: value for name, value in again.json.items() if name.endswith("_token_id")} == {**given, **expected}
    assert again.spec == changed.spec
