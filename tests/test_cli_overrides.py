"""What the command line sets is what trains: the same rule in `show`, `run` and `sweep`, for overrides, --over and --seeds."""

import json
import pathlib

import pytest

from attnjax.cli import main
from attnjax.cli.planning import planned
from attnjax.sweep import load, scan

ROOT = pathlib.Path(__file__).parents[1]
FAKE = ["--trainer", "fake_training:train"]
CONFIG = '''"""Does an override hold?"""
from attnjax.sweep import chain, product, seeds, vary


def get_config():
    return {"train": {"steps": 6, "checkpoint_every": 2}, "evaluate": {"lengths": [10]}, "task": {"options": {"work": 1}}}


def sweep():
    sizes = chain([{"train.steps": 4, "train.batch": 8}], [{"train.steps": 5, "train.batch": 9}])
    return product(sizes, vary("model.encoding", ["rope", {"name": "rope", "options": {"theta": 9.0}}]), seeds(3))
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with one config, `held`, and a training function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "sweep"))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "held.py").write_text(CONFIG)
    return tmp_path


def shown(capsys, *arguments):
    """The config that `show` prints, and the lines below it."""
    assert main(["show", "held", *arguments, "--no-model"]) == 0
    text = capsys.readouterr().out
    end = text.rindex("\n}") + 2
    return json.loads(text[:end]), text[end:]


def trained(*arguments):
    """The configs that a sweep trained, in a folder of its own."""
    out = pathlib.Path("out")
    assert main(["sweep", "held", *arguments, *FAKE, "--out", str(out)]) == 0
    found = scan(out).runs
    assert {run.status.state for run in found} == {"done"}
    return [run.config for run in found]


def test_a_value_of_the_command_line_holds_where_the_sweep_sets_it(capsys):
    config, below = shown(capsys, "train.steps=7")
    assert config["train"]["steps"] == 7
    assert "sweep    12 runs of 4 cells" in below
    assert "train.steps  " not in below, "the runs do not differ in it"
    assert "train.steps: the command line wins over the sweep of the config, which sets 4, 5" in below
    runs = trained("train.steps=7")
    assert [(run.train.steps, run.train.batch) for run in runs] == [(7, 8)] * 6 + [(7, 9)] * 6


@pytest.mark.parametrize("name", ["run", "other"])
def test_a_name_of_the_command_line_is_that_of_the_runs_and_of_their_folder(name):
    plan = planned("held", [f"name={name}"])
    assert {plan.config.name, *(run.config.name for run in plan.runs)} == {name}
    assert main(["sweep", "held", f"name={name}", "--seeds", "1", *FAKE, "--plan"]) == 0
    assert load(pathlib.Path("runs", name)).name == name
    assert [path.name for path in pathlib.Path("runs").iterdir()] == [name]


def test_show_lists_what_the_sweep_sets_beside_the_config(capsys):
    config, below = shown(capsys)
    assert config["train"]["steps"] == 6
    assert "populations; where they differ from the config above:\n" in below
    assert f"  {'train.steps':<30}4, 5\n" in below
    assert f"  {'model.encoding':<30}" + '"rope", {"name": "rope", "options": {"theta": 9.0}}\n' in below
    assert "note:" not in below


def test_a_variation_that_an_override_ends_is_said_and_its_runs_are_one(capsys):
    assert main(["sweep", "held", "model.encoding=kerple", "seed=5", *FAKE, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "note: model.encoding: the command line wins over the sweep of the config, which sets " in out
    assert "note: seed: the command line wins over the sweep of the config, which sets 0, 1, 2\n" in out
    runs = trained("model.encoding=kerple", "seed=5")
    assert {(run.model.encoding.name, run.seed) for run in runs} == {("kerple", 5)}
    assert [run.data_seed for run in runs] == [0, 1, 2] * 2, "the data seeds are another field"


def test_a_field_inside_of_what_the_sweep_sets_is_set_in_every_table(capsys):
    _, below = shown(capsys, "model.encoding.options.theta=3")
    assert "note: model.encoding.options.theta: set in every model.encoding of the sweep" in below
    runs = trained("model.encoding.options.theta=3")
    assert len(runs) == 6
    assert all(dict(run.model.encoding.options) == {"theta": 3} for run in runs)
    entry = load(pathlib.Path("out")).runs[0]
    assert entry.overrides["model.encoding"] == {"name": "rope", "options": {"theta": 3}}


def test_over_and_seeds_replace_the_values_of_the_sweep():
    runs = trained("--over", "train.steps=2,3", "--seeds", "4", "train.batch=5", "model.encoding=nope")
    assert [(run.train.steps, run.seed, run.data_seed) for run in runs] == [(n, s, s) for n in (2, 3) for s in range(4)]


def test_an_override_inside_of_an_over_is_set_in_each_of_its_values():
    runs = planned("held", ["model.encoding.options.theta=3"], ["model.encoding=rope,xpos"]).runs
    assert {one.config.model.encoding.name for one in runs} == {"rope", "xpos"}
    assert {one.config.model.encoding.options["theta"] for one in runs} == {3}


def test_run_trains_what_show_prints():
    assert main(["run", "held", "train.steps=3", "model.encoding=alibi", "seed=2", *FAKE, "--out", "one"]) == 0
    (found,) = scan(pathlib.Path("one")).runs
    plan = planned("held", ["train.steps=3", "model.encoding=alibi", "seed=2"])
    assert found.config == plan.config


@pytest.mark.parametrize(
    ("arguments", "runs", "values"),
    [
        (("rope_vs_sinusoidal", ["train.steps=2000"], [], None), 24, {"train.steps": {2000}}),
        (("rope_vs_sinusoidal", ["model.encoding=kerple"], [], None), 6, {"train.steps": {1000, 2000}}),
        (("rope_vs_sinusoidal", [], [], 10), 80, {"seed": set(range(10)), "data_seed": set(range(10))}),
        (("theta", ["seed=5"], [], None), 40, {"seed": {5}, "data_seed": set(range(8))}),
        (("theta", ["model.encoding=kerple"], [], None), 8, {"seed": set(range(8))}),
        (("kazemnejad:short", [], [], 2), 20, {"seed": {0, 1}, "data_seed": {0, 1}}),
        (("kazemnejad", ["train.steps=20"], [], None), 5, {"train.steps": {20}, "train.warmup": {1}}),
        (("theta", ["train.warmup=0"], ["train.steps=1,2"], None), 80, {"train.steps": {1, 2}}),
    ],
)
def test_committed_configs_obey(monkeypatch, arguments, runs, values):
    monkeypatch.chdir(ROOT)
    found = [one.config for one in planned(*arguments).runs]
    assert len(found) == runs
    for key, wanted in values.items():
        table, _, name = key.rpartition(".")
        assert {getattr(getattr(run, table) if table else run, name) for run in found} == wanted


@pytest.mark.parametrize("command", ["run", "sweep", "show"])
def test_the_rule_is_in_the_help(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "A change on the command line applies to every run:" in text
    assert "the command line wins, and runs that become equal are one run" in text
    assert "To set one field twice is an error." in text
