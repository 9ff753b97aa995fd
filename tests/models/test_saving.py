"""Models to folders and back: bit for bit, and never over somebody else's files; what config.json says afterwards."""

import dataclasses
import json

import numpy as np
import pytest

from attnjax.models import MODELS, saving, with_fields
from attnjax.models.files import ModelError
from attnjax.models.loading import Loaded, load
from attnjax.models.param_paths import parameters
from attnjax.models.saving import described, save
from attnjax.models.tensors import open_folder
from attnjax.positions import Learned, RoPE
from tests.models.folders import BFLOAT16, GPT2, LLAMA, T5, folder, tensors


def contents(path) -> dict[str, np.ndarray]:
    return {name: entry.read() for name, entry in open_folder(path).items()}


def assert_equal(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]), err_msg=str(name))


@pytest.mark.parametrize(("dtype", "table"), [(np.float32, GPT2), (np.float16, T5), (BFLOAT16, LLAMA)])
def test_round_trip_is_bit_equal(tmp_path, dtype, table):
    held = tensors(table, dtype)
    first = load(folder(tmp_path / "first", {**table, "eos_token_id": 3}, held))
    assert save(first, tmp_path / "second") == tmp_path / "second"
    assert_equal(contents(tmp_path / "second"), held)
    second = load(tmp_path / "second")
    assert_equal(parameters(second.model), parameters(first.model))
    assert second.spec == first.spec
    assert second.json == {**first.json, "torch_dtype": np.dtype(dtype).name}
    (tmp_path / "third").mkdir()
    save(second, tmp_path / "third")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "third" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_layers_in_a_loop_are_loaded_and_saved_as_those_that_are_not(tmp_path):
    first = load(folder(tmp_path / "first", LLAMA))
    second = load(tmp_path / "first", fields={"scan_layers": True, "remat": True})
    assert second.model.stack.blocks.attention.w_q.shape[0] == second.spec.config.layers == 2
    assert_equal(parameters(second.model), parameters(first.model))
    assert_equal(contents(save(second, tmp_path / "second")), contents(tmp_path / "first"))
    assert load(save(dataclasses.replace(second, folder=None), tmp_path / "third")).spec == first.spec


def test_a_type_that_is_asked_for(tmp_path):
    save(load(folder(tmp_path / "first", {**GPT2, "dtype": "float32"})), tmp_path / "second", dtype="bfloat16")
    assert_equal(contents(tmp_path / "second"), tensors(GPT2, BFLOAT16))
    table = json.loads((tmp_path / "second" / "config.json").read_text())
    assert (table["dtype"], table["torch_dtype"]) == ("bfloat16", "bfloat16")


def test_what_belongs_to_the_model_comes_along(tmp_path):
    path = folder(tmp_path / "first", GPT2)
    (path / "tokenizer.json").write_text("{}")
    (path / "generation_config.json").write_text('{"eos_token_id": 1}')
    (path / "pytorch_model.bin").write_bytes(b"no")
    (path / "modeling.py").write_text("print('no')")
    save(load(path), tmp_path / "second")
    names = {one.name for one in (tmp_path / "second").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"}
    (tmp_path / "secret").write_text("x")
    (path / "vocab.txt").symlink_to("../secret")
    with pytest.raises(ModelError, match=r"vocab\.txt .*link out of the folder"):
        save(load(path), tmp_path / "third")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first", "second", "secret"]


def test_files_that_are_there_are_not_touched_and_an_error_leaves_nothing(tmp_path, monkeypatch):
    found = load(folder(tmp_path / "first", GPT2))
    (tmp_path / "link").symlink_to(tmp_path / "first")
    for name in ("first", "link", "first/config.json"):
        with pytest.raises(ModelError, match=f"{name} .*new or an empty folder"):
            save(found, tmp_path / name)

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_file", refuse)
    with pytest.raises(OSError, match="No space left"):
        save(found, tmp_path / "second")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first", "link"]


SMALL = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BERT = {**SMALL, "type_vocab_size": 2, "max_position_embeddings": 12}
CHANGES = [
    ("llama", SMALL, {"encoding": RoPE(theta=500.0)}, "encoding is .*500", {"rope_theta": 500.0}),
    ("llama", SMALL, {"norm_epsilon": 1e-5}, "norm_epsilon is 1e-05, not 1e-06", {"rms_norm_eps": 1e-5}),
    ("llama", SMALL, {"encoding": (RoPE(), RoPE()), "dtype": "bfloat16"}, None, {}),
    ("llama", SMALL, {"qk_norm": True}, "qk_norm is True, not False", None),
    ("llama", SMALL, {"windows": (3, 4)}, r"window is \(3, 4\)", None),
    ("bert", BERT, {"encoding": Learned(20)}, "encoding is", {"max_position_embeddings": 20}),
    ("t5", T5, {"scale": None}, "encoder.scale is None, not 1.0; scale is None", None),
]


@pytest.mark.parametrize(("family", "table", "changes", "message", "keys"), CHANGES)
def test_a_config_that_describes_another_model_is_refused(family, table, changes, message, keys):
    table = {"num_key_value_heads": 2} | table if family == "llama" else table
    spec = with_fields(MODELS[family].config(table), **changes)
    changed = Loaded(None, spec, MODELS[family], table)
    if message is not None:
        with pytest.raises(ModelError, match=message):
            described(changed)
    if keys is not None:
        found = described(dataclasses.replace(changed, json=table | keys))
        assert found == {"model_type": family, **table, **keys, "torch_dtype": spec.config.param_dtype}


def test_a_model_without_logits_has_no_output_matrix(tmp_path):
    """BertModel, whose config.json may say that the embeddings of the model with logits are untied."""
    table = {"model_type": "bert", **BERT, "architectures": ["BertModel"], "tie_word_embeddings": False}
    found = load(folder(tmp_path / "first", table))
    assert ("embedding", "w_out") not in parameters(found.model)
    read = load(save(found, tmp_path / "second"))
    assert (read.new, read.unused, read.spec) == ((), (), found.spec)
    assert_equal(parameters(read.model), parameters(found.model))
