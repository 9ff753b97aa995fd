"""Configs: what is taken is what was meant, a mistake is a sentence that names it, and the ids of runs stay."""

import dataclasses
import hashlib
import json
import math
import pathlib
import typing

import numpy as np
import pytest

import attnjax
from attnjax.attention.choice import IMPLEMENTATIONS
from attnjax.config import (
    ENCODING_NAMES,
    TASK_NAMES,
    EncodingConfig,
    ModelConfig,
    Options,
    RunConfig,
    TrainConfig,
    canonical_json,
    cell_id,
    defaults,
    override,
    parse,
    parse_choices,
    parse_override,
    run_id,
    to_dict,
)
from attnjax.config.architecture import Implementation
from attnjax.config.overrides import keys
from attnjax.modules import TransformerConfig
from attnjax.records.packed import applied
from attnjax.registry import ENCODINGS
from attnjax.tasks import TASKS, task
from attnjax.train.model import transformer_config

ROOT = pathlib.Path(__file__).parents[1]


def get(values, key):
    for part in key.split("."):
        values = values[part]
    return values


def refusal(make):
    """The sentence with which a call is refused."""
    with pytest.raises(ValueError, match=".") as refused:
        make()
    return str(refused.value)


def changed(text):
    """The config that a text KEY=VALUE of the command line makes."""
    return parse(override({}, dict([parse_override(text)])))


def test_every_field_is_visible_in_the_defaults_and_comes_back_equal():
    assert parse(defaults()) == parse({}) == RunConfig() == parse(RunConfig())
    assert parse(json.loads(canonical_json(RunConfig()))) == RunConfig()
    assert (*attnjax.ENCODINGS, *TASKS) == (*ENCODINGS, *TASK_NAMES), "names that need no JAX are those of the library"
    assert set(ENCODING_NAMES) == {name for name, row in ENCODINGS.items() if not row.axes}


def test_defaults_take_every_form_of_encoding_and_refuse_misspelt_fields():
    config = defaults()
    config.model.encoding = "alibi"
    config.model.kv_heads = 2
    config.task.options.variant = "rsc"
    parsed = parse(config)
    assert (parsed.model.encoding.name, parsed.model.kv_heads, parsed.task.options["variant"]) == ("alibi", 2, "rsc")
    config.model.encoding = ["rope", {"name": "nope"}]
    assert [one.name for one in parse(config).model.encoding] == ["rope", "nope"]
    with pytest.raises(AttributeError, match="learning_rate"):
        config.train.learning_rat = 1.0


def test_a_run_can_choose_every_option_of_the_modules():
    """The task gives the vocabulary, and no task has token types; all else both have from one record."""
    theirs = {field.name: field for field in dataclasses.fields(TransformerConfig)}
    ours = {field.name: field for field in dataclasses.fields(ModelConfig)}
    assert theirs.keys() - {"vocab", "token_types"} == ours.keys()
    both = [name for name in ours if name != "encoding"]
    assert [ours[name].default for name in both] == [theirs[name].default for name in both]
    assert typing.get_args(Implementation) == IMPLEMENTATIONS


def test_the_width_of_a_head_is_chosen_under_the_name_that_runs_are_stored_with():
    config = parse({"model": {"head": 24, "layers": 3, "windows": [8, (3, 0), None]}})
    made = transformer_config(config.model, vocab=5)
    assert (made.head_dim, made.layer_windows) == (24, (8, (3, 0), None))
    assert to_dict(config)["model"]["head"] == 24
    assert "head_dim" not in to_dict(config)["model"]


# Mistakes

WHOLE = "whole number of at least 1"
ENDLESS = {}
ENDLESS["model"] = ENDLESS
WRONG = [
    ("train.steps", True, WHOLE),
    ("train.steps", 2**31, WHOLE),
    ("train.learning_rate", math.nan, "finite number above 0"),
    ("train.clip", 0, "above 0 or none"),
    ("train.schedule", "cosin", "'cosine'"),
    ("seed", 2**32, "4294967295"),
    ("name", "a/b", "A-Z"),
    ("task.name", "copi", "'copy'"),
    ("task.options.x", b"x", "bytes"),
    ("task.options.x", [1, {"y": {"z": {"a": {"b": 1}}}}], "nested more than 4"),
    ("model.model", 2**17, "at most 65536"),
    ("model.encoding.name", "rop", "'rope'"),
    ("model.implementation", "pallas", "'chunked'"),
    ("evaluate.lengths", [3, 2], "ascend"),
]


@pytest.mark.parametrize(("key", "value", "words"), WRONG)
def test_a_wrong_value_is_refused_by_its_key_with_what_is_allowed(key, value, words):
    told = refusal(lambda: parse(override({}, {key: value})))
    assert told.startswith(key)
    assert words in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train.steps": 5, "train.warmup": 6}, "train.warmup=6 train.steps=5"),
        ({"task.length_min": 9, "task.length_max": 8}, "task.length_min=9 task.length_max=8"),
        ({"task.begin": True, "task.form": "encoder"}, "task.begin task.form='encoder'"),
        ({"train.schedule": "constant", "train.final": 0.1}, "train.final=0.1 train.schedule='constant'"),
        ({"train.until": 0.9}, "train.until=0.9 evaluate.every 0"),
        ({"train.until": 0.9, "evaluate.every": 9, "evaluate.validation_lengths": [41]}, "task.length_max=40 41"),
        ({"optimizer": "sgd", "train.weight_decay": 0.1}, "train.weight_decay=0.1 optimizer.name='sgd'"),
        ({"optimizer": "lion", "train.b2": 0.99}, "train.b2=0.99 optimizer.name='adamw' 'lion'"),
        ({"optimizer": "lamb", "model.scan_layers": True}, "optimizer.name='lamb' model.scan_layers"),
        ({"optimizer.accumulate": 3}, "train.steps=1000 optimizer.accumulate=3"),
        ({"positions.policy": "offset"}, "positions.maximum positions.policy='offset'"),
        ({"positions.policy": "offset", "positions.maximum": 8}, "positions.maximum=8 task.length_max=40"),
        ({"model.model": 10}, "model.model=10 model.heads=4 model.head"),
        ({"model.kv_heads": 3}, "model.heads=4 model.kv_heads=3"),
        ({"model.encoding": ["rope"] * 3}, "model.encoding 3 model.layers=2"),
        ({"model.windows": [8]}, "model.windows model.layers=2 1"),
        ({"model.window": 4, "model.windows": [8, None]}, "model.windows model.window=4"),
        ({"model.parallel": True, "model.norm_position": "post"}, "model.parallel model.norm_position='pre'"),
        ({"model.scan_layers": True, "model.encoding": ["rope", "t5"]}, "model.scan_layers model.encoding"),
        ({"model.scan_layers": True, "model.windows": [8, 4]}, "model.scan_layers window"),
        ({"model.scan_layers": True, "model.share_encoding": True}, "model.scan_layers model.share_encoding"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(changes, words):
    told = refusal(lambda: parse(override({}, changes)))
    assert [word for word in words.split() if word not in told] == []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"train": {"lr": 1}}, "'train.lr' 'learning_rate'"),
        ({"learning_rate": 1}, "'learning_rate' train, optimizer"),
        ({"model": {"encoding": ["rope", {"nam": "rope"}]}}, "'model.encoding[1].nam' 'name'"),
        ({"model": {"head_dim": 24}}, "'model.head_dim' 'head'"),
        ({1: 2}, "'1'"),
        ({"schema": 2}, "newer"),
        ({"schema": "1"}, "schema whole"),
        ([], "table list"),
        (ENDLESS, "nested"),
    ],
)
def test_wrong_tables_are_told(table, words):
    told = refusal(lambda: parse(table))
    assert [word for word in words.split() if word not in told] == []


NUMBERS = [math.nan, -math.inf, -1, -0.5, 0, -0.0, 1e-320, 10**400, 2**31, True, False, None, 1, 2, 0.5, np.int64(3)]
OTHERS = ["", "1", "../x", "\0", [], [1], [2, 1], [1.5], {}, {"nmae": 1}, {1: 2}, (1, 2), b"x", object(), np.ones(3)]


@pytest.mark.parametrize("table", [*RunConfig.__dataclass_fields__])
def test_any_value_of_any_field_comes_back_as_it_was_given_or_is_refused_by_name(table):
    """No value is changed in silence: no bool becomes a number, no fraction is cut, NaN is nowhere."""
    for key in (key for key in keys() if f"{key}.".startswith(f"{table}.")):
        for value in NUMBERS + OTHERS:
            try:
                config = parse(override({}, {key: value}))
            except ValueError as error:
                assert key.partition(".")[0] in str(error), (key, value)
                continue
            found, given = get(to_dict(config), key), value.item() if isinstance(value, np.generic) else value
            if not isinstance(given, str | dict):
                assert found == (list(given) if isinstance(given, tuple) else given), (key, value)
                assert isinstance(found, bool) == isinstance(given, bool), (key, value)
            assert parse(json.loads(canonical_json(config))) == config


def test_a_record_made_directly_is_checked_too():
    with pytest.raises(ValueError, match=r"train.steps must be .* got 0"):
        TrainConfig(steps=0)
    assert TrainConfig(learning_rate=1).learning_rate == 1.0
    assert hash(RunConfig()) == hash(parse({}))
    assert dict(**Options({"b": [1, (2, 3)], "a": {"c": None}})) == {"a": Options({"c": None}), "b": (1, (2, 3))}


def test_every_whole_number_of_a_task_is_bounded():
    for name, kind in TASKS.items():
        for field in dataclasses.fields(kind):
            if field.type in (int, int | None):
                with pytest.raises(ValueError, match=field.name):
                    task(name, **{field.name: 2**50})


def test_names_of_encodings_and_of_their_options_that_are_unknown_are_told_with_the_nearest():
    assert "'rope'" in refusal(lambda: attnjax.encoding("rop"))
    assert "'theta'" in refusal(lambda: attnjax.encoding("rope", thetta=5.0))


# Overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.steps=500", 500),
        ("model.bias=false", False),
        ("model.kv_heads=none", None),
        ("evaluate.lengths=3,4", [3, 4]),
        ("model.window=(3,0)", [3, 0]),
        ("name=007", "007"),
        ('name="x"', "x"),
        ("model.encoding=alibi", {"name": "alibi", "options": {}}),
        ("model.encoding={'name': 'rope', 'options': {'theta': 5}}", {"name": "rope", "options": {"theta": 5}}),
        ('task.options={"a": true, "b": null}', {"a": True, "b": None}),
        ("model.encoding.options.theta=5e5", 5e5),
        ("task.options.variant=rsc", "rsc"),
    ],
)
def test_overrides_are_read_as_their_field_is_typed(text, value):
    assert get(to_dict(changed(text)), text.partition("=")[0]) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.stepz=3", "'train.steps'"),
        ("lr=3", "'train.learning_rate'"),
        ("model.dropout=0.1", "'model.attention_dropout' or 'model.residual_dropout' or 'model.embedding_dropout'"),
        ("train.steps", "KEY=VALUE"),
        ("train.steps=", "train.steps must be"),
        ("train.steps=1+1", "train.steps must be"),
        ("train.steps=" + "[" * 5000, "train.steps must be"),
    ],
)
def test_wrong_overrides_are_told(text, words):
    told = refusal(lambda: changed(text))
    assert words in told
    assert len(told) < 500


def test_choices_are_split_outside_of_brackets_and_quotes():
    assert parse_choices("model.window=(3,0),4") == ("model.window", [(3, 0), 4])
    assert parse_choices("model.encoding=rope,{'name': 'alibi', 'options': {}}")[1][1]["name"] == "alibi"
    assert parse_choices('task.options.x="a,b",c') == ("task.options.x", ["a,b", "c"])


def test_shorter_keys_are_set_first():
    changes = {"model.encoding.options.theta": 5.0, "model.encoding": "rope"}
    assert parse(override({}, changes)).model.encoding == EncodingConfig("rope", {"theta": 5.0})
    with pytest.raises(ValueError, match="one entry per layer"):
        override({"model": {"encoding": ["rope", "nope"]}}, {"model.encoding.options.theta": 5.0})


# Ids


def test_fields_that_are_younger_than_stored_runs_are_hashed_where_they_are_used():
    assert run_id(parse({})) == "4c1bef23f1bfb233", "as before there were other optimizers than AdamW"
    assert hashlib.sha256(canonical_json(RunConfig()).encode()).hexdigest().startswith("4c1bef23f1bfb233")
    others = [parse(one) for one in ({"optimizer": "lion"}, {"train": {"final": 0.1}}, {"model": {"remat": True}})]
    assert len({run_id(one) for one in (RunConfig(), *others)}) == 4
    assert all(parse(json.loads(canonical_json(one))) == one for one in others)


def test_committed_runs_keep_their_ids():
    found = 0
    for path in sorted(ROOT.glob("experiments/**/runs.jsonl")):
        first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        for line in lines[:: 1 + len(lines) // 10]:
            assert run_id(parse(applied(first["config"], line.get("config", {})))) == line["run"], path
            found += 1
    assert found > 50


def test_cells_are_runs_without_seeds():
    ids = {cell_id(parse({"seed": seed, "data_seed": seed + 1})) for seed in range(3)}
    assert len(ids) == 1
    assert cell_id(parse({"train": {"learning_rate": 2e-3}})) not in ids
    assert run_id(parse({"train": {"learning_rate": 1}})) == run_id(parse({"train": {"learning_rate": 1.0}}))
    assert run_id(parse({"train": {"weight_decay": -0.0}})) == run_id(parse({}))
