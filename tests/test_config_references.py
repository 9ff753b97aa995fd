"""Derived values of a `ConfigDict` follow overrides, whatever refers to what, and open placeholders are named."""

import pytest
from ml_collections import ConfigDict, FieldReference, config_dict

from attnjax.config import RunConfig, defaults, load, override, parse, run_id

DERIVED = """
from attnjax.config import defaults


def get_config():
    config = defaults()
    config.train.steps = 100
    config.train.warmup = config.train.get_ref("steps") // 10
    return config


def sweep():
    return [{"train.steps": 100}, {"train.steps": 500}, {"train": {"steps": 700, "warmup": 1}}]
"""


@pytest.fixture
def derived(tmp_path):
    """A config whose warmup is a tenth of its steps."""
    path = tmp_path / "derived.py"
    path.write_text(DERIVED)
    return load(path)


def train(config, changes):
    found = parse(override(config, changes)).train
    return found.steps, found.warmup


def test_what_is_derived_follows_changes_and_may_be_set_itself(derived):
    assert train(derived.config, {}) == (100, 10)
    assert train(derived.config, {"train.steps": 20}) == (20, 2)
    assert train(derived.config, {"train.warmup": 3}) == (100, 3)
    assert train(derived.config, {"train.warmup": 3, "train.steps": 20}) == (20, 3)
    assert [train(derived.config, changes) for changes in derived.sweep()] == [(100, 10), (500, 50), (700, 1)]
    assert train(derived.config, {}) == (100, 10), "no change is left behind in the config"


def test_a_config_without_changes_has_the_hash_of_its_values(derived):
    plain = {"train": {"steps": 100, "warmup": 10}}
    assert run_id(parse(derived.config)) == run_id(parse(plain)) == run_id(parse(override(derived.config, {})))


def test_fields_that_share_a_reference_follow_one_another_unless_both_are_set():
    batch = FieldReference(32)
    config = ConfigDict({"train": {"batch": batch}, "evaluate": {"batch": batch}})
    follow = parse(override(config, {"train.batch": 8}))
    assert (follow.train.batch, follow.evaluate.batch) == (8, 8)
    both = parse(override(config, {"train.batch": 8, "evaluate.batch": 64}))
    assert (both.train.batch, both.evaluate.batch) == (8, 64)


def test_a_reference_may_hold_a_table_or_have_no_value():
    encoding = FieldReference(ConfigDict({"name": "rope", "options": {"theta": 5.0}}))
    config = ConfigDict({"model": {"encoding": encoding, "kv_heads": config_dict.placeholder(int)}})
    assert parse(config).model == parse({"model": {"encoding": {"name": "rope", "options": {"theta": 5.0}}}}).model
    changed = parse(override(config, {"model.encoding.options.theta": 7.0, "model.kv_heads": 2})).model
    assert (dict(changed.encoding.options), changed.kv_heads) == ({"theta": 7.0}, 2)


def test_open_placeholders_are_named_and_can_be_filled():
    config = ConfigDict({"seed": config_dict.required_placeholder(int), "train": {}})
    config.train.steps = config_dict.required_placeholder(int)
    with pytest.raises(
        ValueError, match=r"^seed and train.steps must be given, as seed=VALUE: the config has no value for it$"
    ):
        parse(config)
    with pytest.raises(ValueError, match=r"^train.steps must be given, as train.steps=VALUE"):
        override(config, {"seed": 3})
    assert parse(override(config, {"seed": 3, "train.steps": 5})) == parse({"seed": 3, "train": {"steps": 5}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.steps": "ten"}, "train.steps must be a whole number of at least 1, got 'ten'"),
        ({"train.steps": -1}, "train.steps must be a whole number of at least 1, got -1"),
        ({"train.stepz": 1}, "unknown key 'train.stepz' .did you mean 'train.steps'"),
        ({"seed": 0}, "train.batch cannot be derived from the field that it refers to: ZeroDivisionError"),
        ({"train": 3}, "train must be a table of settings, got 3"),
    ],
)
def test_values_that_references_cannot_take_are_told(changes, message):
    config = ConfigDict({"seed": 10, "train": {"steps": 100, "warmup": 0, "batch": 0}})
    config.train.warmup = config.train.get_ref("steps") // 10
    config.train.batch = 100 // config.get_ref("seed")
    with pytest.raises(ValueError, match=message):
        parse(override(config, changes))


def test_a_config_dict_that_holds_itself_is_refused():
    config = ConfigDict({"train": {}})
    config.train.train = config.train
    with pytest.raises(ValueError, match="nested more than 20 deep"):
        parse(config)


def test_the_defaults_are_those_of_the_schema_with_references_or_without():
    config = defaults()
    config.train.get_ref("steps")
    assert parse(config) == parse(override(config, {})) == RunConfig()


@pytest.mark.parametrize(
    ("name", "changes", "wanted"),
    [
        ("kazemnejad", {"train.steps": 20}, {"warmup": 1, "log_every": 1, "checkpoint_every": 2}),
        ("kazemnejad:paper", {}, {"warmup": 2400, "log_every": 2000, "checkpoint_every": 4000}),
    ],
)
def test_the_intervals_of_kazemnejad_follow_its_steps(name, changes, wanted):
    found = parse(override(load(name).config, changes)).train
    assert {key: getattr(found, key) for key in wanted} == wanted


def test_the_hidden_width_of_huang_follows_its_width():
    file = load("huang:smoke")
    assert [parse(override(file.config, changes)).model.hidden for changes in file.sweep()] == [64, 64, 256, 256]
    assert parse(override(file.config, {"model.model": 32})).model.hidden == 128
