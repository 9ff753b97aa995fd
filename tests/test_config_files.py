"""Config files: read as they are meant, refused by file and line, never waited for; derived fields follow changes."""

import itertools
import os
import pathlib
import sys

import pytest
from ml_collections import ConfigDict, FieldReference, config_dict

from attnjax.cli import main
from attnjax.config import RunConfig, defaults, load, override, parse, run_id
from attnjax.sweep import chain, product, seeds, vary

LOOP = "def get_config(): return {}\ndef sweep():\n    import itertools\n    for n in itertools.count(): yield {'seed': n}\n"
VARIANTS = '''"""Is it asked?"""

VARIANTS = {"small": "one layer", "large": "three layers"}


def get_config(variant):
    return {"model": {"layers": 1 if variant == "small" else 3}, "seed": 5}


def sweep(variant):
    return [{"name": variant}]


def tuning_seeds():
    return (7,)
'''


def write(tmp_path, text, name="one.py"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_python_and_json_configs_load_alike(tmp_path):
    code = '"""What is asked?"""\ndef get_config():\n    return {"seed": 5}\ndef sweep():\n    yield {"seed": 6}\n'
    python, data = load(write(tmp_path, code)), load(write(tmp_path, '{"seed": 5}', "one.json"))
    assert parse(python.config) == parse(data.config) == RunConfig(seed=5)
    assert (python.text, list(python.sweep()), data.sweep) == ("What is asked?", [{"seed": 6}], None)
    code = "import ml_collections as m\ndef get_config(): return m.ConfigDict({'seed': 5})\n"
    assert parse(load(write(tmp_path, code, "two.py")).config) == RunConfig(seed=5)


def test_variants_are_declared_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    path = write(tmp_path / "configs", VARIANTS, "mine.py")
    first, large = load("mine"), load("mine:large")
    assert [one.config["model"]["layers"] for one in (first, large)] == [1, 3]
    assert (list(large.sweep()), list(large.tuning_seeds()), large.variant) == ([{"name": "large"}], [7], "large")
    assert large.text.startswith("Is it asked?\n")
    with pytest.raises(ValueError, match=r"mine takes one of small, large, got 'larg' .*'large'"):
        load(f"{path}:larg")
    assert main(["list", "configs"]) == 0
    assert "mine:small mine:large" in capsys.readouterr().out
    assert main(["list", "configs", "mine"]) == 0
    assert "three layers" in capsys.readouterr().out
    with pytest.raises(ValueError, match="has no VARIANTS, got 'x'"):
        load(f"{write(tmp_path, 'def get_config(): return {}')}:x")
    with pytest.raises(ValueError, match="is data and has no variants"):
        load(f"{write(tmp_path, '{}', 'one.json')}:x")


WRONG = [
    ("a.json", '{"seed": ', "a.json is damaged or no JSON"),
    ("a.json", b"\xff\xfe{}", "a.json is not UTF-8"),
    ("a.json", "[" * 16_000, "nested"),
    ("a.json", '{"seed": 1, "seed": 2}', "'seed' stands twice"),
    ("a.json", '{"seed": NaN}', "seed must be"),
    ("a.py", "def get_config(:", "a.py, line 1"),
    ("a.py", "x = " + "-" * 16_000 + "1", "a.py: (RecursionError|MemoryError)"),
    ("a.py", "x = 1", "must define get_config"),
    ("a.py", "def get_config():\n    return 3", "a config must be a table"),
    ("a.py", "def get_config():\n    x = 1\n    return x / 0", "a.py, line 3: ZeroDivisionError"),
    ("a.py", "import sys\ndef get_config(): sys.exit()", "line 2: SystemExit"),
    ("a.py", "raise GeneratorExit", "line 1: GeneratorExit"),
    ("a.py", "VARIANTS = 3\ndef get_config(): return {}", "a.py: TypeError"),
    ("a.py", "sweep = 3\ndef get_config():\n    return {}", "not a callable"),
    ("a.py", LOOP, "at most 100000 runs"),
    ("a.py", "def get_config(): return {}\ndef sweep():\n    yield {}\n    int('x')", "a.py, line 4: ValueError"),
    ("a.py", "from attnjax.config import *\ndefaults().train.stepz = 1", "line 2: unknown key 'stepz' .*steps"),
    ("a.txt", "x", "no config '.*a.txt'.* ends in .py or .json"),
]


def used(path):
    """Reads all of a config."""
    file = load(path)
    parse(file.config)
    file.sweep()


@pytest.mark.parametrize(("name", "text", "message"), WRONG)
def test_wrong_files_are_told_by_name(tmp_path, monkeypatch, name, text, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, text, name)
    for path in (name, tmp_path / name):
        with pytest.raises(ValueError, match=message):
            used(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: vary("seed", itertools.count()),
        lambda: seeds(10**9),
        lambda: product(*(vary(f"x{key}", range(1000)) for key in range(9))),
        lambda: chain(seeds(60_000), seeds(60_000)),
    ],
)
def test_sweeps_without_end_are_refused(make):
    with pytest.raises(ValueError, match="a sweep may have at most 100000 runs"):
        make()


def test_an_interruption_in_a_config_is_one(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        load(str(write(tmp_path, "raise KeyboardInterrupt")))


@pytest.mark.parametrize("ending", ["json", "py"])
@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "loop", "large"])
def test_what_is_no_file_is_told_and_not_waited_for(tmp_path, kind, ending):
    path = tmp_path / f"odd.{ending}"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        with path.open("wb") as sparse:
            sparse.truncate(2**40)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with pytest.raises(ValueError, match="/dev/zero" if kind == "device" else str(path)):
        load(path)


def test_a_config_that_is_missing_is_told_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    write(tmp_path / "configs", "def get_config(): return {}", "theta.py")
    write(tmp_path, "def get_config(): return {}", "mine.py")
    assert load("theta").path == pathlib.Path("configs/theta.py")
    with pytest.raises(ValueError, match="no config 'thetta' .did you mean 'theta'"):
        load("thetta")
    assert load("mine.py").path.name == "mine.py"
    with pytest.raises(ValueError, match="'mine'.* by their path"):
        load("mine")
    monkeypatch.setattr("attnjax.config.files.SIZE", 10)
    with pytest.raises(ValueError, match="larger than 10 bytes"):
        load(write(tmp_path, '{"a": 12345678}', "a.json"))


def test_code_in_a_folder_of_results_is_not_run(tmp_path):
    write(tmp_path, "{}", "sweep.json")
    (tmp_path / "deep").mkdir()
    with pytest.raises(ValueError, match="code found there is not run"):
        load(write(tmp_path / "deep", "raise SystemExit('ran')"))


def test_a_config_is_read_anew_where_its_time_and_size_are_those_of_before(tmp_path, monkeypatch):
    """Python takes byte code for that of a file with the same second and size: an edit within a second was not seen."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for layers in (1, 2):
        path.write_text(f"def get_config():\n    return {{'model': {{'layers': {layers}}}}}\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert parse(load(str(path)).config).model.layers == layers
    assert [one.name for one in tmp_path.iterdir()] == ["mine.py"], "nothing is written beside a config"


# Fields that are derived from other fields


@pytest.mark.parametrize(
    ("changes", "steps", "warmup"),
    [
        ({"train.steps": 20}, 20, 2),
        ({"train.warmup": 3, "train.steps": 20}, 20, 3),
        ({"train": {"steps": 700, "warmup": 1}}, 700, 1),
    ],
)
def test_what_is_derived_follows_changes_and_may_be_set_itself(changes, steps, warmup):
    config = defaults()
    config.train.steps = 100
    config.train.warmup = config.train.get_ref("steps") // 10
    found = parse(override(config, changes))
    assert (found.train.steps, found.train.warmup) == (steps, warmup)
    assert run_id(parse(config)) == run_id(parse({"train": {"steps": 100, "warmup": 10}})), "no change is left behind"


def test_fields_that_share_a_reference_follow_one_another_unless_both_are_set():
    batch = FieldReference(32)
    config = ConfigDict({"train": {"batch": batch}, "evaluate": {"batch": batch}})
    for changes, both in (({"train.batch": 8}, (8, 8)), ({"train.batch": 8, "evaluate.batch": 64}, (8, 64))):
        found = parse(override(config, changes))
        assert (found.train.batch, found.evaluate.batch) == both


def test_a_reference_may_hold_a_table_or_have_no_value():
    encoding = FieldReference(ConfigDict({"name": "rope", "options": {"theta": 5.0}}))
    config = ConfigDict({"model": {"encoding": encoding, "kv_heads": config_dict.placeholder(int)}})
    assert dict(parse(config).model.encoding.options) == {"theta": 5.0}
    changed = parse(override(config, {"model.encoding.options.theta": 7.0, "model.kv_heads": 2})).model
    assert (dict(changed.encoding.options), changed.kv_heads) == ({"theta": 7.0}, 2)


def test_a_field_that_must_be_given_is_named_and_can_be_filled():
    config = ConfigDict({"seed": 3, "train": {}})
    config.train.steps = config_dict.required_placeholder(int)
    with pytest.raises(ValueError, match="train.steps=VALUE"):
        parse(config)
    assert parse(override(config, {"train.steps": 5})) == parse({"seed": 3, "train": {"steps": 5}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.steps": "ten"}, "train.steps must be a whole number of at least 1, got 'ten'"),
        ({"seed": 0}, "train.batch has no value.*ZeroDivisionError"),
        ({"train": 3}, "train must be a table of settings, got 3"),
    ],
)
def test_values_that_references_cannot_take_are_told(changes, message):
    config = ConfigDict({"seed": 10, "train": {"steps": 100, "batch": 0}})
    config.train.warmup = config.train.get_ref("steps") // 10
    config.train.batch = 100 // config.get_ref("seed")
    with pytest.raises(ValueError, match=message):
        parse(override(config, changes))
