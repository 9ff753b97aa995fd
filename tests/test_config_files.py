"""Config files and overrides: read as they are meant, refused by file, line and key."""

import json
import os
import sys

import pytest

from attnjax.config import EncodingConfig, RunConfig, load, override, parse, parse_choices, parse_override, to_dict
from attnjax.config.files import parse_json, read_json


def get(values, key):
    for part in key.split("."):
        values = values[part]
    return values


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.steps=500", "train.steps", 500),
        ("train.learning_rate=3e-4", "train.learning_rate", 3e-4),
        ("model.bias=false", "model.bias", False),
        ("model.kv_heads=none", "model.kv_heads", None),
        ("model.implementation=None", "model.implementation", None),
        ("evaluate.lengths=3,4", "evaluate.lengths", [3, 4]),
        ("evaluate.lengths=[3, 4]", "evaluate.lengths", [3, 4]),
        ("evaluate.lengths=3", "evaluate.lengths", [3]),
        ("model.window=3", "model.window", 3),
        ("model.window=(3,0)", "model.window", [3, 0]),
        ("name=007", "name", "007"),
        ('name="x"', "name", "x"),
        ("model.encoding=alibi", "model.encoding", {"name": "alibi", "options": {}}),
        ("model.encoding.options.theta=5e5", "model.encoding.options.theta", 5e5),
        ("task.options.variant=rsc", "task.options.variant", "rsc"),
    ],
)
def test_overrides_are_read_as_their_field_is_typed(text, key, value):
    assert get(to_dict(parse(override({}, dict([parse_override(text)])))), key) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.stepz=3", "did you mean 'train.steps'"),
        ("stpes=3", "did you mean 'train.steps'"),
        ("lr=3", "did you mean 'train.learning_rate'"),
        ("train.steps", "KEY=VALUE"),
        ("model.window=8,16", r"model.window=8,16 can be read in two ways: write model.window=\[8,16\] for one pair"),
        ("=3", "KEY=VALUE"),
        ("train.steps=", "train.steps must be"),
        ("train.steps=ten", "train.steps must be .* got 'ten'"),
        ("train.steps=1+1", "train.steps must be"),
        ("train.steps=__import__('os')", "train.steps must be"),
        ("train.learning_rate=nan", "train.learning_rate must be"),
        ("train.steps=" + "[" * 5000, "train.steps"),
        ("train.steps=" + "-" * 5000 + "1", "train.steps"),
        ("train.steps.x=1", "unknown key"),
        ("train.steps=" + "9" * 9000, "train.steps must be"),
    ],
)
def test_wrong_overrides_are_told(text, message):
    with pytest.raises(ValueError, match=message):
        parse(override({}, dict([parse_override(text)])))


def test_choices_are_split_outside_of_brackets_and_quotes():
    assert parse_choices("model.window=(3,0),4") == ("model.window", [(3, 0), 4])
    assert parse_choices("model.encoding=rope,alibi") == ("model.encoding", ["rope", "alibi"])
    assert parse_choices('task.options.x="a,b",c') == ("task.options.x", ["a,b", "c"])


def test_shorter_keys_are_set_first():
    changes = {"model.encoding.options.theta": 5.0, "model.encoding": "rope"}
    assert parse(override({}, changes)).model.encoding == EncodingConfig("rope", {"theta": 5.0})
    with pytest.raises(ValueError, match="one entry per layer"):
        override({"model": {"encoding": ["rope", "nope"]}}, {"model.encoding.options.theta": 5.0})


def write(tmp_path, text, name="one.py"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_python_and_json_configs_load_alike(tmp_path):
    code = '"""What is asked?"""\ndef get_config():\n    return {"seed": 5}\ndef sweep():\n    yield {"seed": 6}\n'
    python, data = load(write(tmp_path, code)), load(write(tmp_path, '{"seed": 5}', "one.json"))
    assert parse(python.config) == parse(data.config) == RunConfig(seed=5)
    assert (python.text, list(python.sweep()), data.sweep) == ("What is asked?", [{"seed": 6}], None)
    placed = write(
        tmp_path, "import ml_collections as m\ndef get_config(): return m.ConfigDict({'seed': 5})\n", "two.py"
    )
    assert parse(load(placed).config) == RunConfig(seed=5)


def test_a_word_behind_a_colon_goes_to_the_config(tmp_path):
    code = (
        "def get_config(size='small'): return {'seed': len(size)}\ndef sweep(size='small'): return [{'name': size}]\n"
    )
    path = write(tmp_path, code)
    assert load(path).config["seed"] == 5
    short = load(f"{path}:tiny")
    assert (short.config["seed"], list(short.sweep()), short.argument) == (4, [{"name": "tiny"}], "tiny")
    with pytest.raises(ValueError, match="get_config takes no argument, got 'x'"):
        load(f"{write(tmp_path, 'def get_config(): return {}')}:x")
    with pytest.raises(ValueError, match="is data and takes no argument"):
        load(f"{write(tmp_path, '{}', 'one.json')}:x")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"seed": ', "a.json is damaged or no JSON"),
        ("a.json", b"\xff\xfe{}", "a.json is not UTF-8"),
        ("a.json", "[" * 16_000, "nested more than"),
        ("a.json", '{"a":' * 16_000, "nested more than"),
        ("a.json", '{"seed": 1, "seed": 2}', "'seed' stands twice"),
        ("a.json", "[1]", "a config must be a table"),
        ("a.json", '{"seed": NaN}', "seed must be"),
        ("a.json", '{"seed": ' + "9" * 5000 + "}", "damaged or no JSON"),
        ("a.json", "", "damaged or no JSON"),
        ("a.py", "def get_config(:", "a.py, line 1"),
        ("a.py", b"\xff", "not UTF-8"),
        ("a.py", "x = '\0'", "a.py"),
        ("a.py", "x = " + "(" * 16_000, "a.py"),
        ("a.py", "x = " + "-" * 16_000 + "1", "cannot be read as Python"),
        ("a.py", "x = a" + ".b" * 16_000, "cannot be read as Python"),
        ("a.py", "x = 1", "must define get_config"),
        ("a.py", "def get_config():\n    return 3", "a config must be a table"),
        ("a.py", "def get_config():\n    x = 1\n    return x / 0", "line 3: ZeroDivisionError"),
        ("a.py", "import not_there_at_all", "line 1: ModuleNotFoundError"),
        ("a.py", "sweep = 3\ndef get_config():\n    return {}", "sweep must be a function"),
        ("a.txt", "x", "must be a .py or .json"),
    ],
)
def test_wrong_files_are_told_by_name(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        parse(load(write(tmp_path, text, name)).config)


def test_a_config_that_is_missing_or_too_large_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    write(tmp_path / "configs", "def get_config(): return {}", "theta.py")
    assert load("theta").path.name == "theta.py"
    with pytest.raises(ValueError, match="no config 'thetta' .did you mean 'theta'"):
        load("thetta")
    with pytest.raises(ValueError, match="larger than 10 bytes"):
        read_json(write(tmp_path, '{"a": 12345678}', "a.json"), limit=10)


def test_a_config_beside_the_folder_of_configs_is_named_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "def get_config(): return {}", "mine.py")
    write(tmp_path, "{}", "data.json")
    assert load("mine.py").path.name == "mine.py"
    for name, path in (("mine", "mine.py"), ("data", "data.json")):
        with pytest.raises(
            ValueError, match=f"no config '{name}' in a folder configs/; .* by its path, which is {path}$"
        ):
            load(name)


def test_code_in_a_folder_of_results_is_not_run(tmp_path):
    write(tmp_path, "{}", "sweep.json")
    (tmp_path / "deep").mkdir()
    path = write(tmp_path / "deep", "raise SystemExit('ran')")
    with pytest.raises(ValueError, match="code found there is not run"):
        load(path)


def test_brackets_inside_texts_are_not_depth():
    assert parse_json(json.dumps({"a": "[" * 1000 + '\\"'})) == {"a": "[" * 1000 + '\\"'}


def test_a_config_is_read_anew_where_its_time_and_size_are_those_of_before(tmp_path, monkeypatch):
    """Python takes byte code for that of a file with the same second and size: an edit within a second was not seen."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for layers in (1, 2):
        path.write_text(f"def get_config():\n    return {{'model': {{'layers': {layers}}}}}\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert parse(load(str(path)).config).model.layers == layers
    assert [one.name for one in tmp_path.iterdir()] == ["mine.py"], "nothing is written beside a config"
