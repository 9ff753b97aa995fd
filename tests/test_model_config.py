"""The model of a run and the model of the modules: one set of options, with the same defaults and choices."""

import dataclasses
import typing

import pytest

from attnjax.attention.choice import IMPLEMENTATIONS
from attnjax.config import ModelConfig, parse, to_dict
from attnjax.config.architecture import Implementation
from attnjax.modules import TransformerConfig
from attnjax.train.model import transformer_config

STORED = (
    "layers model heads kv_heads hidden activation norm norm_position norm_epsilon share_encoding bias feed_forward_bias "
    "qk_norm scale embed_scale embed_std tie_embeddings output_bias attention_dropout residual_dropout embedding_dropout "
    "window dtype param_dtype implementation"
).split()
"""The fields of the first runs that were stored; every later one is left out of a run id at its default."""


def test_a_run_can_choose_every_option_of_the_modules():
    """The task gives the vocabulary, and no task has token types; all else both have from one record."""
    theirs = {field.name: field for field in dataclasses.fields(TransformerConfig)}
    ours = {field.name: field for field in dataclasses.fields(ModelConfig)}
    assert theirs.keys() - {"vocab", "token_types"} == ours.keys()
    for name in ours.keys() - {"head_dim", "encoding"}:
        assert "added" in ours[name].metadata or name in STORED, f"{name} would change the ids of runs"
    both = [name for name in ours if name != "encoding"]
    assert [ours[name].default for name in both] == [theirs[name].default for name in both]
    assert typing.get_args(Implementation) == IMPLEMENTATIONS


def test_the_width_of_a_head_is_chosen_under_the_name_that_runs_are_stored_with():
    config = parse({"model": {"head": 24}})
    assert config.model.head_dim == transformer_config(config.model, vocab=5).head_dim == 24
    assert to_dict(config)["model"]["head"] == 24
    assert "head_dim" not in to_dict(config)["model"]
    with pytest.raises(ValueError, match=r"model.head must be a whole number of at least 1 and at most 65536, got 0"):
        parse({"model": {"head": 0}})
    with pytest.raises(ValueError, match="model.model=64 is no multiple of model.heads=3; give model.head$"):
        parse({"model": {"heads": 3}})
    with pytest.raises(ValueError, match="unknown key 'model.head_dim'"):
        parse({"model": {"head_dim": 24}})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"layers": 3, "windows": [8, None]},
            "one entry for each of model.layers=3, .* got 2 entries and model.window=None",
        ),
        ({"window": 4, "windows": [8, None]}, "model.window be none, got .* model.window=4"),
        ({"windows": [8, -1]}, r"model.windows\[1\] must be .* whole number"),
        ({"parallel": True, "norm_position": "post"}, "model.parallel needs model.norm_position='pre', got 'post'"),
        (
            {"scan_layers": True, "encoding": ["rope", "t5"]},
            "model.scan_layers is for layers that are alike: one model.enc",
        ),
        (
            {"scan_layers": True, "windows": [8, 4]},
            "model.scan_layers is .* one window for all of them, and no model.share",
        ),
        ({"scan_layers": True, "share_encoding": True}, "model.scan_layers is .* and no model.share_encoding"),
        ({"attention_gate": "heads"}, "model.attention_gate must be one of 'head', 'channel', .* .did you mean 'head'"),
    ],
)
def test_options_of_models_that_do_not_fit(model, message):
    with pytest.raises(ValueError, match=message):
        parse({"model": model})


def test_windows_and_a_gate_reach_the_modules():
    chosen = {
        "windows": [8, (3, 0), None],
        "layers": 3,
        "attention_gate": "head",
        "parallel": True,
        "logits_scale": 0.5,
    }
    config = transformer_config(parse({"model": chosen}).model, vocab=5)
    assert config.layer_windows == (8, (3, 0), None)
    assert (config.attention_gate, config.parallel, config.logits_scale) == ("head", True, 0.5)


@pytest.mark.parametrize("name", ["adafactor", "lamb"])
def test_an_optimizer_of_whole_parameters_is_not_for_layers_in_one(name):
    message = f"optimizer.name='{name}' updates each parameter as a whole, and model.scan_layers has one for all layers"
    with pytest.raises(ValueError, match=message):
        parse({"model": {"scan_layers": True}, "optimizer": name})
    parse({"model": {"scan_layers": True}, "optimizer": "lion"})
