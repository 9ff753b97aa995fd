"""The model of a run and the model of the modules: one set of options, with the same defaults and choices."""

import dataclasses
import typing

import pytest

from attnjax.config import ModelConfig, parse
from attnjax.modules import TransformerConfig
from attnjax.modules.config import CHOICES
from attnjax.train.model import transformer_config


def test_a_run_can_choose_every_option_of_the_modules():
    """With the same defaults, and all choices. The task gives the vocabulary, and no task has token types."""
    ours = {field.name: field for field in dataclasses.fields(ModelConfig)}
    ours["head_dim"] = ours.pop("head")
    theirs = {field.name: field for field in dataclasses.fields(TransformerConfig)}
    assert theirs.keys() - {"vocab", "token_types"} == ours.keys()
    for name, field in theirs.items():
        if name in ours and name != "encoding" and field.default is not dataclasses.MISSING:
            assert ours[name].default == field.default, name
    for name, values in CHOICES:
        if any(isinstance(value, str) for value in values):
            kinds = [ours[name].type, *typing.get_args(ours[name].type)]
            taken = {one for kind in kinds for one in typing.get_args(kind) if isinstance(one, str)}
            taken |= {one for one in kinds if isinstance(one, str)}
            assert taken == set(values) - {None}, name


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
