"""Configs: what is taken is what was meant, what is wrong is refused by name, and no mistake shows a traceback."""

import hashlib
import json
import math
import pathlib
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnjax
from attnjax.config import (
    ENCODING_NAMES,
    TASK_NAMES,
    EncodingConfig,
    Options,
    RunConfig,
    TrainConfig,
    canonical_json,
    cell_id,
    defaults,
    override,
    parse,
    run_id,
    to_dict,
)
from attnjax.config.keys import keys
from attnjax.config.names import OPTIMIZERS
from attnjax.registry import ENCODINGS
from attnjax.tasks import TASKS

LARGE = 2**31 - 1
EXPERIMENTS = pathlib.Path(__file__).parents[1] / "experiments"
COUNTS = (
    "task.length_min task.length_max model.layers model.model model.heads model.hidden train.steps train.batch train.keep "
    "evaluate.count evaluate.batch evaluate.sliding_stride optimizer.accumulate"
).split()
INDICES = "train.warmup train.log_every train.checkpoint_every evaluate.every seed data_seed".split()
INDICES += ["model.window_first"]
OPTIONAL_COUNTS = "model.kv_heads model.head positions.maximum".split()
POSITIVE = "train.learning_rate train.epsilon evaluate.bucket_growth model.norm_epsilon".split()
POSITIVE += ["model.qk_norm_epsilon", "model.logits_scale"]
RATES = "model.attention_dropout model.residual_dropout train.b1 train.b2".split()
FLAGS = "model.share_encoding model.bias model.qk_norm model.embed_scale model.tie_embeddings model.output_bias".split()
FLAGS += "model.residual_start model.parallel model.attention_sink model.embedding_norm model.remat model.scan_layers".split()
FLAGS += "task.begin task.tail positions.sample_per_layer evaluate.dropout".split()
OPTIONAL_POSITIVE = "train.clip model.scale model.embed_std model.kernel_std".split()
OPTIONAL = ["model.feed_forward_bias", "model.attention_output_bias", "model.embedding_dropout"]
CHOICES = {
    "task.name": TASK_NAMES,
    "task.form": ("decoder", "encoder", "encoder_decoder"),
    "task.length_per": ("example", "batch"),
    "model.activation": ("relu", "gelu", "gelu_tanh", "swiglu", "geglu"),
    "model.norm": ("layer", "rms"),
    "model.attention_gate": (None, "head", "channel"),
    "model.norm_position": ("pre", "post"),
    "model.dtype": ("float32", "bfloat16", "float16", "float64"),
    "model.param_dtype": ("float32", "bfloat16", "float16", "float64"),
    "model.implementation": (None, "dense", "chunked", "xla", "cudnn"),
    "positions.policy": ("arange", "offset", "randomized", "abacus"),
    "positions.at_test": ("arange", "same"),
    "positions.sample_per": ("example", "batch"),
    "optimizer.name": OPTIMIZERS,
    "train.schedule": ("constant", "cosine", "linear"),
    "train.dtype_policy": ("float32", "bfloat16"),
}
LISTS = "evaluate.lengths evaluate.validation_lengths evaluate.bucket_sizes".split()
TABLES = "task model positions train evaluate optimizer model.encoding".split()


def whole(value, low, high=LARGE):
    return type(value) is int and low <= value <= high


def number(value):
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def window(value):
    pair = type(value) in (list, tuple) and len(value) == 2 and all(whole(one, 0) for one in value)
    return value is None or whole(value, 0) or pair


def allowed(key, value):
    """Whether a field may hold a value, as its documentation says; cross-checks between fields may still refuse it."""
    if key in COUNTS:
        return whole(value, 1)
    if key in ("seed", "data_seed"):
        return whole(value, 0, 2**32 - 1)
    if key in INDICES:
        return whole(value, 0)
    if key in OPTIONAL_COUNTS:
        return value is None or whole(value, 1)
    if key in POSITIVE:
        return number(value) and value > 0
    if key in ("model.feed_forward_bias", "model.attention_output_bias"):
        return value is None or type(value) is bool
    if key == "model.embedding_dropout":
        return value is None or (number(value) and 0 <= value < 1)
    if key in OPTIONAL_POSITIVE:
        return value is None or (number(value) and value > 0)
    if key == "train.weight_decay":
        return number(value) and value >= 0
    if key in ("train.final", "train.until"):
        return number(value) and 0 <= value <= 1
    if key in RATES:
        return number(value) and 0 <= value < 1
    if key in FLAGS:
        return type(value) is bool
    if key in CHOICES:
        return (value is None or type(value) is str) and value in CHOICES[key]
    if key in LISTS:
        return type(value) in (list, tuple) and all(whole(one, 1) for one in value)
    if key == "model.window":
        return window(value)
    if key == "model.windows":
        return value is None or (type(value) in (list, tuple) and all(map(window, value)))
    if key == "name":
        return type(value) is str and re.fullmatch(r"\w[\w.-]{0,127}", value, re.ASCII)
    return type(value) in (dict, str, list, tuple)


KEYS = [*COUNTS, *INDICES, *OPTIONAL_COUNTS, *POSITIVE, *RATES, *FLAGS, *CHOICES, *LISTS]
KEYS += [
    *OPTIONAL_POSITIVE,
    *OPTIONAL,
    "train.weight_decay",
    "train.final",
    "train.until",
    "model.window",
    "model.windows",
    "name",
    *TABLES,
]
BAD = [
    float("nan"),
    float("inf"),
    -float("inf"),
    -1,
    -0.5,
    0,
    0.0,
    -0.0,
    1e-320,
    1e400,
    2**31,
    2**32,
    10**400,
    True,
    False,
]
BAD += [
    None,
    "",
    "1",
    "nan",
    "adam",
    "rope",
    "../x",
    "a/b",
    "\0",
    "\ud800",
    [],
    [1],
    [1, 2],
    [2, 1],
    [1, 1],
    [1.5],
    ["1"],
    {},
]
BAD += [
    {"name": "rope"},
    {"nmae": 1},
    {1: 2},
    (1, 2, 3),
    b"x",
    object(),
    set(),
    1 + 2j,
    np.nan,
    np.int64(3),
    [[1]],
    "x" * 9999,
]
BAD += [1, 2, 3, 0.5, 7.0, "cosine", "float32", "dense", "copy", "x" * 129, np.float32(0.5), np.bool_(True), np.ones(3)]
TOGETHER = re.compile(
    "not be above|no multiple|is shorter|ascend|must be given|bucket_growth must be above|one entry for each|which is 0"
)
"""Refusals of values that are fine by themselves."""


def get(values, key):
    for part in key.split("."):
        values = values[part]
    return values


def test_names_that_need_no_jax_are_those_of_the_library():
    assert [name for name in attnjax.ENCODINGS if not ENCODINGS[name].axes] == list(ENCODING_NAMES)
    assert [kind.__name__ for kind in attnjax.ENCODINGS.values()] == [row.name for row in ENCODINGS.values()]
    assert tuple(TASKS) == TASK_NAMES


def test_every_field_is_visible_in_the_defaults_and_comes_back_equal():
    assert parse(defaults()) == parse({}) == RunConfig() == parse(RunConfig())
    assert parse(json.loads(canonical_json(RunConfig()))) == RunConfig()
    assert set(KEYS) | {"task.options", "model.encoding.name", "model.encoding.options", "optimizer.options"} == set(
        keys()
    )


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


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_mutated_configs_are_taken_as_meant_or_refused_by_name(seed):
    draw, refused, taken = random.Random(seed), 0, 0
    for _ in range(1000):
        key, value = draw.choice(KEYS), draw.choice(BAD)
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            config = parse(override({}, {key: value}))
        except ValueError as error:
            refused += 1
            assert key.split(".")[0] in str(error) or "nmae" in str(error), f"{key}={value!r}: {error}"
            assert len(str(error)) < 1500
            assert not allowed(key, plain) or key in TABLES or TOGETHER.search(str(error)), (
                f"{key} refused {value!r}: {error}"
            )
            continue
        taken += 1
        assert allowed(key, plain), f"{key} took {value!r}"
        if key not in TABLES:
            found = get(to_dict(config), key)
            assert found == (list(plain) if isinstance(plain, tuple) else plain)
            assert type(found) is not int or type(plain) is int
        assert parse(json.loads(canonical_json(config))) == config
    assert refused > 500
    assert taken > 40


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYS, "name", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from([*RunConfig.__dataclass_fields__, "typo"]), json_values, max_size=3))
def test_any_table_is_parsed_or_refused(table):
    try:
        config = parse(table)
    except ValueError:
        return
    assert "typo" not in table
    assert parse(to_dict(config)) == config


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"train": {"lr": 1}}, "unknown key 'train.lr' .did you mean 'train.learning_rate'"),
        (
            {"model": {"dropout": 0.1}},
            "unknown key 'model.dropout' .did you mean 'model.attention_dropout' or 'model.residual_dropout' or "
            "'model.embedding_dropout'",
        ),
        ({"task": {"length": 5}}, "did you mean 'task.length_min' or 'task.length_max' or 'task.length_per'"),
        ({"model": {"steps": 5}}, "did you mean 'train.steps'"),
        ({"dropout": True}, "did you mean 'evaluate.dropout'"),
        ({"model": {"activation": "geglo"}}, "did you mean 'geglu'"),
        ({"learning_rate": 1}, "did you mean 'train.learning_rate'"),
        ({"model": {"encodng": "rope"}}, "did you mean 'model.encoding'"),
        ({"model": {"encoding": {"nam": "rope"}}}, "did you mean 'model.encoding.name'"),
        ({"model": {"encoding": "rop"}}, "model.encoding.name must be one of .* got 'rop' .did you mean 'rope'"),
        ({"task": {"name": "copi"}}, "did you mean 'copy'"),
        ({"train": {"schedule": "cosin"}}, "did you mean 'cosine'"),
        ({"train": {"schedule": "os.system"}}, "train.schedule must be one of constant, cosine, linear, got"),
        ({"train": {"schedule": "a b:c"}}, "train.schedule must be a name or package.module:function, got 'a b:c'"),
        (
            {"train": {"schedule": "constant", "final": 0.1}},
            "train.final=0.1 is for a schedule that falls, got train.schedule='constant'",
        ),
        ({"train": {"final": 1.1}}, "train.final must be a finite number of at least 0 and at most 1, got 1.1"),
        ({"optimizer": "lyon"}, "optimizer.name must be one of .* got 'lyon' .did you mean 'lion'"),
        ({"optimizer": {"name": "x:"}}, "optimizer.name must be a name or package.module:function, got 'x:'"),
        ({"optimizer": {"accumulate": 3}}, "train.steps=1000 is no multiple of optimizer.accumulate=3"),
        (
            {"optimizer": "sgd", "train": {"weight_decay": 0.1}},
            "train.weight_decay=0.1 is not taken by optimizer.name='sgd'",
        ),
        (
            {"optimizer": "lion", "train": {"b2": 0.99}},
            "train.b2=0.99 is for optimizer.name='adamw'; give 'lion' optimizer.options",
        ),
        ({"train": {"learning_rate": float("nan")}}, "train.learning_rate must be a finite number above 0, got nan"),
        ({"train": {"steps": True}}, "train.steps must be a whole number of at least 1, got True"),
        ({"train": {"steps": 1.0}}, "train.steps must be a whole number"),
        ({"train": {"b1": 1.0}}, "train.b1 must be a finite number of at least 0 and below 1, got 1.0"),
        ({"train": {"steps": 5, "warmup": 6}}, "train.warmup=6 must not be above train.steps=5"),
        ({"task": {"length_min": 9, "length_max": 8}}, "task.length_min=9 must not be above task.length_max=8"),
        ({"model": {"model": 10, "heads": 4}}, "model.model=10 is no multiple of model.heads=4"),
        ({"model": {"heads": 4, "kv_heads": 3}}, "no multiple of model.kv_heads=3"),
        ({"model": {"layers": 3, "encoding": ["rope", "nope"]}}, "2 entries for model.layers=3"),
        (
            {"model": {"encoding": {"options": {"theta": float("inf")}}}},
            "model.encoding.options.theta must be a finite",
        ),
        ({"positions": {"policy": "offset"}}, "positions.maximum must be given"),
        ({"positions": {"policy": "offset", "maximum": 8}}, "positions.maximum=8 is shorter than task.length_max=40"),
        (
            {"task": {"begin": True, "form": "encoder"}},
            "task.begin is for task.form='decoder', got task.form='encoder'",
        ),
        ({"evaluate": {"lengths": [3, 2]}}, "evaluate.lengths must ascend"),
        (
            {"evaluate": {"lengths": [3, -2]}},
            r"evaluate.lengths\[1\] must be a whole number of at least 1 and .*, got -2",
        ),
        ({"evaluate": {"bucket_growth": 1}}, "evaluate.bucket_growth must be above 1"),
        ({"name": "a/b"}, "name must be 1 to 128 of"),
        ({"schema": 2}, "written by a newer version"),
        ({"seed": 2**32}, "seed must be a whole number"),
        ([], "a config must be a table"),
    ],
)
def test_mistakes_are_told_by_name(table, message):
    with pytest.raises(ValueError, match=message):
        parse(table)


def test_a_record_made_directly_is_checked_too():
    with pytest.raises(ValueError, match=r"train.steps must be .* got 0"):
        TrainConfig(steps=0)
    assert TrainConfig(learning_rate=1).learning_rate == 1.0
    assert hash(RunConfig()) == hash(parse({}))
    assert dict(**Options({"b": [1, (2, 3)], "a": {"c": None}})) == {"a": Options({"c": None}), "b": (1, (2, 3))}
    with pytest.raises(ValueError, match="nested more than"):
        EncodingConfig("rope", {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}})


def test_a_table_that_holds_itself_is_refused():
    table = {}
    table["model"] = table
    with pytest.raises(ValueError, match="nested more than|unknown key"):
        parse(table)


def test_run_id_is_the_hash_of_the_canonical_json():
    config = parse({"name": "x", "seed": 3})
    values = {"schema": 1, **to_dict(config, whole=False)}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    assert canonical_json(config) == text
    assert run_id(config) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_fields_that_are_younger_than_stored_runs_are_hashed_where_they_are_used():
    assert run_id(parse({})) == "4c1bef23f1bfb233", "as before there were other optimizers than AdamW"
    plain, others = to_dict(RunConfig(), whole=False), ({"optimizer": "lion"}, {"train": {"final": 0.1}})
    assert "optimizer" not in plain
    assert "final" not in plain["train"]
    assert len({run_id(parse(one)) for one in ({}, *others)}) == 3
    for config in map(parse, others):
        assert parse(json.loads(canonical_json(config))) == config


def test_committed_runs_keep_their_ids():
    folders = [path.parent for path in EXPERIMENTS.glob("*/records/*/config.json")]
    assert len(folders) > 50
    for folder in folders:
        assert run_id(parse(json.loads((folder / "config.json").read_text()))) == folder.name


def test_cells_are_runs_without_seeds():
    ids = {cell_id(parse({"seed": seed, "data_seed": seed + 1})) for seed in range(3)}
    assert len(ids) == 1
    assert cell_id(parse({"train": {"learning_rate": 2e-3}})) not in ids
    assert run_id(parse({"train": {"learning_rate": 1}})) == run_id(parse({"train": {"learning_rate": 1.0}}))
    assert run_id(parse({"train": {"weight_decay": -0.0}})) == run_id(parse({}))
    assert run_id(parse({"seed": 1})) != run_id(parse({"data_seed": 1}))
