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
KERPLE, THETA = "model.encoding=kerple", "model.encoding.options.theta"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with one config, `held`, and a training function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "sweep"))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "held.py").write_text(CONFIG)
    return tmp_path


def at(run, key):
    for name in key.split("."):
        run = run[name] if isinstance(run, dict) or hasattr(run, "keys") else getattr(run, name)
    return run


@pytest.mark.parametrize(
    ("arguments", "runs", "values"),
    [
        (("held", ["train.steps=7"]), 12, {"train.steps": [7], "train.batch": [8, 9]}),
        (("held", [KERPLE, "seed=5"]), 6, {"model.encoding.name": ["kerple"], "seed": [5], "data_seed": [0, 1, 2]}),
        (("held", [f"{THETA}=3"]), 6, {THETA: [3]}),
        (("held", ["train.batch=5"], ["train.steps=2,3"], 4), 16, {"train.steps": [2, 3], "seed": [0, 1, 2, 3]}),
        (("held", [f"{THETA}=3"], ["model.encoding=rope,xpos"]), 12, {THETA: [3]}),
        (("rope_vs_sinusoidal", [KERPLE]), 6, {"train.steps": [600, 800]}),
        (("rope_vs_sinusoidal", [], [], 10), 80, {"seed": [*range(10)]}),
        (("kazemnejad", ["train.steps=20"]), 5, {"train.steps": [20], "train.warmup": [1]}),
        (("theta", ["train.warmup=0"], ["train.steps=1,2"]), 80, {"train.steps": [1, 2]}),
    ],
)
def test_the_command_line_wins_over_the_sweep_and_equal_runs_are_one(arguments, runs, values):
    found = [one.config for one in planned(*arguments).runs]
    assert len(found) == runs
    for key, wanted in values.items():
        assert list(dict.fromkeys(at(run, key) for run in found)) == wanted


def test_show_says_what_the_sweep_sets_and_what_the_command_line_replaced(capsys):
    assert main(["show", "held", "--no-model"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text[: text.rindex("\n}") + 2])["train"]["steps"] == 6
    assert f"  {'train.steps':<30}4, 5\n" in text
    assert "note:" not in text
    assert main(["show", "held", "train.steps=7", f"{THETA}=3", "--no-model"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text[: text.rindex("\n}") + 2])["train"]["steps"] == 7
    assert "train.steps: the command line wins over the sweep of the config, which sets 4, 5" in text
    assert f"note: {THETA}: set in every model.encoding of the sweep" in text


def test_a_sweep_trains_the_runs_that_are_planned_and_run_the_config_itself():
    assert main(["sweep", "held", f"{THETA}=3", *FAKE, "--out", "out"]) == 0
    wanted = [one.config for one in planned("held", [f"{THETA}=3"]).runs]
    assert [run.config for run in scan(pathlib.Path("out")).runs] == wanted
    assert load(pathlib.Path("out")).runs[0].overrides["model.encoding"] == {"name": "rope", "options": {"theta": 3}}
    assert main(["run", "held", "train.steps=3", "seed=2", *FAKE, "--out", "one"]) == 0
    (found,) = scan(pathlib.Path("one")).runs
    assert found.config == planned("held", ["train.steps=3", "seed=2"]).config


def test_a_name_of_the_command_line_is_that_of_the_runs_and_of_their_folder():
    plan = planned("held", ["name=other"])
    assert {plan.config.name, *(run.config.name for run in plan.runs)} == {"other"}
    assert main(["sweep", "held", "name=other", "--seeds", "1", *FAKE, "--plan"]) == 0
    assert [path.name for path in pathlib.Path("runs").iterdir()] == ["other"]
