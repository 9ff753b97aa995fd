"""A run is found by the beginning of its hash or by what it is, and whoever says too little is told the choices."""

import os
import pathlib

import pytest

from attnjax.cli import main
from attnjax.config import run_id
from attnjax.records.runs import read_config
from attnjax.sweep import chain, find_folder, find_run, plan, prepare, product, run_here, seeds, vary
from tests.sweep import fake_training

SWEEP = chain(
    product(vary("model.encoding", ["rope", "alibi"]), seeds(2)),
    [{"model.encoding": {"name": "rope", "options": {"theta": 500.0}}, "train.learning_rate": 5e-4, "seed": 7}],
)
SETTINGS = {"name": "small", "train": {"steps": 2, "checkpoint_every": 1}, "evaluate": {"lengths": [10]}}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The hashes of runs/small, the last one trained, and runs/one with a single run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    planned = plan({**SETTINGS, "task": {"options": {"work": 1}}}, SWEEP)
    store = prepare(pathlib.Path("runs/small"), "small", planned)
    run_here(store.only([store.runs[-1].run]), fake_training.train)
    prepare(pathlib.Path("runs/one"), "one", plan({**SETTINGS, "task": {"name": "reverse_string"}}))
    return [run_id(one.config) for one in planned]


@pytest.mark.parametrize(
    ("address", "number"),
    [
        ("small/rope/1", 1),
        ("runs/small/alibi/0", 2),
        ("small/seed=1,encoding=alibi", 3),
        ("small/model.encoding.options.theta=500", 4),
        ("small/train.learning_rate=5e-4", 4),
        ("small/task=copy,seed=7", 4),
        ("small/7", 4),
    ],
)
def test_a_run_is_found_by_what_it_is(runs, address, number):
    assert find_run(address) == pathlib.Path("runs/small") / runs[number]


def test_a_run_is_found_by_its_folder_and_by_the_beginning_of_its_hash(runs, monkeypatch):
    for run in runs:
        folder = pathlib.Path("runs/small") / run
        assert find_run(folder) == find_run(str(folder)) == find_run(f"small/{run}") == folder
        assert find_run(f"small/{run[:9]}") == find_run(f"runs/small/{run[:8]}/") == folder
        assert find_run(folder.absolute().parent / run[:8]) == folder.absolute()
    (folder,) = (path.parent for path in pathlib.Path("runs/one").glob("*/config.json"))
    assert find_run("one") == find_run("runs/one") == find_run("one/task=reverse_string") == folder
    here = folder.absolute()
    monkeypatch.chdir(here)
    assert find_run(".") == here, '"." has no name, by which the config of a run is verified'
    assert read_config(find_run(".")).task.name == "reverse_string"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("small/rope/2", r"^no run in runs/small is 'rope/2'; there are: runs/small/[0-9a-f]{16} \((rope|alibi), copy, seed"),
        ("small/encoding=rope,data_seed=0", r"^2 runs in runs/small are 'encoding=rope,data_seed=0'; name one of them: runs/"),
        ("runs/small", r"^runs/small has 5 runs; .*rope\(theta=500.0\), copy, seed 7, done\)"),
        ("encoding=rope", r"^encoding=rope is no run: .*NAME/RUN.* runs has one, small$"),
        ("nowhere", r"^nowhere is no run: .* runs has one, small$"),
        ("small/model.encodin=rope", r"unknown key 'model.encodin' \(did you mean 'model.encoding'\?\)"),
        ("small/seed=true", r"no run in runs/small is 'seed=true'"),
    ],
)  # fmt: skip
def test_too_little_too_much_and_nothing_are_sentences_with_the_choices(runs, address, message):
    with pytest.raises(ValueError, match=message) as said:
        find_run(address)
    assert "\n" not in str(said.value)


def test_a_sweep_is_found_by_its_name_and_others_are_told(runs, capsys):
    assert find_folder("small") == find_folder("runs/small") == pathlib.Path("runs/small")
    assert main(["report", "smal"]) == 2
    assert "runs has one, small" in capsys.readouterr().err
    for name in ("small", "other"):
        pathlib.Path(name).mkdir()
    assert find_folder("small") == pathlib.Path("runs/small"), "a folder that holds a sweep comes first"
    assert find_folder("other") == pathlib.Path("other")


def test_a_damaged_run_is_found_by_its_hash_alone_and_no_link_is_followed(runs, tmp_path):
    damaged = pathlib.Path("runs/small") / runs[0]
    (damaged / "config.json").write_text("{}")
    assert find_run(f"small/{runs[0][:10]}") == damaged
    with pytest.raises(ValueError, match=rf"{runs[0]} \(damaged\)"):
        find_run("small/nothing")
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", f"runs/small/{'0' * 16}")
    with pytest.raises(ValueError, match=f"no run in runs/small is '{'0' * 12}'"):
        find_run(f"small/{'0' * 12}")
