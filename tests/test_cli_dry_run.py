"""`sweep --dry-run` says what is there and refuses what the sweep would refuse; a folder of another sweep is compared."""

import os
import pathlib
import shutil

import pytest

from attnjax.cli import main
from attnjax.sweep import load
from tests.trees import tree

ROOT = pathlib.Path(__file__).parents[1]
FAKE = ["--trainer", "fake_training:train"]
CONFIG = '''"""What would run?"""
def get_config():
    return {"train": {"steps": 2, "checkpoint_every": 2}, "evaluate": {"lengths": [10]}}


def sweep():
    return [{"model.encoding": name, "seed": seed} for name in ("rope", "alibi") for seed in range(2)]
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with one config, `small`, and a training function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "sweep"))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.py").write_text(CONFIG)
    return tmp_path


def last_line(capsys):
    return capsys.readouterr().out.splitlines()[-1]


def test_a_dry_run_counts_what_is_done_and_changes_nothing(folder, capsys):
    command = ["sweep", "small", *FAKE, "--out", "out"]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "model.encoding=rope seed=0",
        "model.encoding=rope seed=1",
        "model.encoding=alibi seed=0",
        "model.encoding=alibi seed=1",
        "4 runs: 0 done, 4 pending, in out",
    ]
    assert not (folder / "out").exists()
    assert main(command) == 0
    before = tree(folder / "out")
    assert main([*command, "--dry-run"]) == 0
    assert last_line(capsys) == "4 runs: 4 done, in out"
    assert main([*command, "--seeds", "3", "--extend", "--dry-run"]) == 0
    assert tree(folder / "out") == before
    shutil.rmtree(folder / "out" / load(pathlib.Path("out")).runs[0].run)
    assert main([*command, "--dry-run"]) == 0
    assert last_line(capsys) == "4 runs: 3 done, 1 pending, in out"


def test_a_dry_run_says_what_has_failed(capsys):
    command = ["sweep", "small", *FAKE, "--over", "task.options.fail_at=none,1"]
    assert main(command) == 1
    assert main([*command, "--dry-run"]) == 0
    assert last_line(capsys) == "8 runs: 4 done, 4 failed, in runs/small"


@pytest.mark.quick("train.steps=3", "--out damaged")
@pytest.mark.parametrize(
    "arguments",
    [
        ["train.steps=3"],
        ["--seeds", "3"],
        ["--trainer", "nothing", "--out", "fresh"],
        ["--out", "configs/small.py"],
        ["--out", "configs/small.py/below"],
        ["--out", "damaged"],
        ["model.encoding.options.theta=3", "--trainer", "attnjax.train:train"],
    ],
    ids=" ".join,
)
def test_a_dry_run_refuses_what_the_run_refuses(arguments, folder, capsys):
    assert main(["sweep", "small", *FAKE]) == 0
    (folder / "damaged").mkdir()
    (folder / "damaged" / "sweep.json").write_text("{")
    told = []
    for more in (["--dry-run"], []):
        capsys.readouterr()
        assert main(["sweep", "small", *FAKE, *arguments, *more]) == 2
        told.append(capsys.readouterr().err)
    assert told[0].startswith("attnjax: error: ")
    assert told[0] == told[1]


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused_too(folder, capsys):
    (folder / "locked").mkdir(mode=0o500)
    assert main(["sweep", "small", *FAKE, "--out", "locked/out", "--dry-run"]) == 2
    assert "results cannot be written to locked/out: Permission denied" in capsys.readouterr().err
