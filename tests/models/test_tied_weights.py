"""Matrices that a file holds twice: the copies must be equal, or the config is wrong about what is tied."""

import json

import ml_dtypes
import numpy as np
import pytest

from attnjax.models import MODELS, load, tied_weights
from attnjax.models.errors import WrongWeights
from attnjax.models.matching import groups
from attnjax.models.param_paths import parameters
from tests.golden import drawn
from tests.models.toys import encoded

GPT2 = {"model_type": "gpt2", "vocab_size": 50, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 12}
T5 = {"model_type": "t5", "vocab_size": 50, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
EMBEDDING, OUTPUT = "transformer.wte.weight", "lm_head.weight"


def written(path, fields, **more) -> dict[str, np.ndarray]:
    """A folder with the tensors of a config, and `more`; returns all."""
    architecture = MODELS[fields["model_type"]]
    table = architecture.weights(architecture.config(fields))
    tensors = {rows[0].names[0]: drawn.weight(rows[0].names[0], rows[0].shape) for rows in groups(table)}
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()} | more
    (path / "config.json").write_text(json.dumps(fields))
    (path / "model.safetensors").write_bytes(encoded(tensors))
    return tensors


def matrix() -> np.ndarray:
    """The embedding of the models above, in numbers that bfloat16 has."""
    return np.arange(400, dtype=np.float32).reshape(50, 8) % 128


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("part", [1, 100, tied_weights.BYTES_AT_ONCE])
def test_an_equal_copy_is_nothing_to_speak_of(tmp_path, monkeypatch, part, dtype):
    monkeypatch.setattr(tied_weights, "BYTES_AT_ONCE", part)
    written(tmp_path, GPT2, **{EMBEDDING: matrix(), OUTPUT: matrix().astype(dtype)})
    np.testing.assert_array_equal(parameters(load(tmp_path).model)["embedding", "table"], matrix())


def test_a_model_that_is_untied_needs_no_copy(tmp_path):
    """Its output matrix is new, whether the file repeats that of the tied model or not."""
    for more in ({}, {OUTPUT: matrix()}):
        written(tmp_path, GPT2, **{EMBEDDING: matrix(), **more})
        loaded = load(tmp_path, fields={"tie_embeddings": False})
        assert loaded.new == ("embedding.w_out",)
        np.testing.assert_array_equal(parameters(loaded.model)["embedding", "table"], matrix())


@pytest.mark.parametrize("fields", [GPT2, T5])
def test_an_untied_model_that_is_tied_leaves_its_output_matrix(tmp_path, fields):
    """By config.json the matrices are two, so that nothing must be equal; those that are one by config.json still must."""
    tensors = written(tmp_path, {**fields, "tie_word_embeddings": False})
    loaded = load(tmp_path, fields={"tie_embeddings": True})
    assert (loaded.new, loaded.unused) == ((), (OUTPUT,))
    table = parameters(loaded.model)
    name = EMBEDDING if fields is GPT2 else "shared.weight"
    np.testing.assert_array_equal(table["embedding", "table"], tensors[name])
    assert ("embedding", "w_out") not in table
    if fields is T5:
        written(tmp_path, {**T5, "tie_word_embeddings": False}, **{"decoder.embed_tokens.weight": -tensors[name]})
        with pytest.raises(WrongWeights, match=r"hold decoder\.embed_tokens\.weight and shared\.weight, which must"):
            load(tmp_path, fields={"tie_embeddings": True})


@pytest.mark.parametrize("part", [1, 100, tied_weights.BYTES_AT_ONCE])
@pytest.mark.parametrize("row", [0, 27, 49])
def test_an_output_matrix_of_its_own_beside_a_tied_config(tmp_path, monkeypatch, part, row):
    monkeypatch.setattr(tied_weights, "BYTES_AT_ONCE", part)
    other = matrix()
    other[row, 3] += 1
    written(tmp_path, GPT2, **{EMBEDDING: matrix(), OUTPUT: other})
    with pytest.raises(WrongWeights, match=r"hold lm_head\.weight and transformer\.wte\.weight, which must be equal"):
        load(tmp_path)
    written(tmp_path, {**GPT2, "tie_word_embeddings": False}, **{EMBEDDING: matrix(), OUTPUT: other})
    np.testing.assert_array_equal(parameters(load(tmp_path).model)["embedding", "w_out"], other.T)


def test_a_copy_of_another_shape(tmp_path):
    written(tmp_path, GPT2, **{OUTPUT: np.zeros((50, 9), np.float32)})
    with pytest.raises(WrongWeights, match="write tie_word_embeddings=false"):
        load(tmp_path)


def test_every_copy_of_the_embedding_of_t5(tmp_path):
    first = written(tmp_path, T5)["shared.weight"]
    same = {f"{side}.embed_tokens.weight": first for side in ("encoder", "decoder")}
    written(tmp_path, T5, **same, **{OUTPUT: first})
    load(tmp_path)
    written(tmp_path, T5, **{**same, OUTPUT: -first, "decoder.embed_tokens.weight": 2 * first})
    with pytest.raises(WrongWeights) as error:
        load(tmp_path)
    assert "decoder.embed_tokens.weight and shared.weight, lm_head.weight and shared.weight, which" in str(error.value)
