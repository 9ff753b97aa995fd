"""Encodings and tasks of another package: trained, swept, reported without a fork, and imported for nobody but the user."""

import os
import pathlib
import sys

import pytest

from attnjax.cli import main
from attnjax.config import encoding_name, parse
from attnjax.config.outside import class_paths, construct, import_modules
from attnjax.positions import PositionEncoding
from attnjax.sweep import expand, groups, vary
from attnjax.tasks.base import Task
from tests.runs import runs_in

ROOT = pathlib.Path(__file__).parents[1]
FAKE = ["--trainer", "fake_training:train"]
MINE, SUM = "outside_package.mine:Mine", "outside_package.sums:DigitSum"
ENCODING = '''
import dataclasses, os, pathlib
import jax.numpy as jnp
from attnjax import PositionEncoding

with pathlib.Path(os.environ["OUTSIDE_LOG"]).open("a") as file:
    file.write(f"{os.getpid()}\\n")


@dataclasses.dataclass(frozen=True)
class Mine(PositionEncoding):
    """bias[i, j] = -slope |i - j|."""

    slope: float = 0.5

    def bias(self, p, n):
        return -self.slope * jnp.abs(n).astype(jnp.float32)


class Other:
    pass
'''
LATER = "from __future__ import annotations\n" + ENCODING
TASK = '''
import dataclasses
import jax.numpy as jnp
from attnjax.tasks.strings import ClassTask


@dataclasses.dataclass(frozen=True)
class DigitSum(ClassTask):
    """The sum of the digits modulo 3."""

    symbols: int = 3

    def label(self, x, length):
        return jnp.sum(jnp.where(jnp.arange(x.shape[0]) < length, x, 0), dtype=jnp.int32) % 3
'''
CONFIG = '''"""Does an encoding of another package work?"""


def get_config():
    return {
        "task": {"length_max": 6},
        "model": {"layers": 1, "model": 8, "heads": 2, "hidden": 8},
        "train": {"steps": 2, "batch": 4, "checkpoint_every": 2, "log_every": 1},
        "evaluate": {"lengths": [4, 8], "count": 8, "batch": 8, "validation_lengths": []},
    }


def sweep():
    return [{"model.encoding": name} for name in ("outside_package.mine:Mine", "alibi")]
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with a package that is not imported, a config that names its encoding, and a log of who imported it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTSIDE_LOG", str(tmp_path / "imported"))
    package = tmp_path / "lib" / "outside_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name, text in {"mine": ENCODING, "later": LATER, "sums": TASK, "broken": "1 / 0"}.items():
        (package / f"{name}.py").write_text(text)
    (tmp_path / "one.py").write_text(CONFIG)
    for path in (tmp_path / "lib", ROOT / "tests" / "sweep"):
        monkeypatch.syspath_prepend(str(path))
    yield tmp_path
    forget()


def forget():
    """As a process would be that never imported the package."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "outside_package"]:
        del sys.modules[name]


def importers(folder):
    log = folder / "imported"
    return set(log.read_text().split()) if log.exists() else set()


def refused(capsys, *command):
    capsys.readouterr()
    assert main(list(command)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", [MINE, "a:B", "_a.b_1:C2"])
def test_class_paths_are_names_and_nothing_is_imported_for_them(name, folder):
    model, train = {"encoding": [name, "rope"]}, {"schedule": f"{name}_schedule"}
    config = parse({"model": model, "task": {"name": name}, "train": train, "optimizer": {"name": f"{name}_optimizer"}})
    assert class_paths([config, config]) == (name, f"{name}_optimizer", f"{name}_schedule")
    assert encoding_name(config.model) == f"{name}+rope"
    assert importers(folder) == set()


@pytest.mark.parametrize(
    "name", ["mine", "a:b:c", ":C", "a:", "a b:C", "../a:C", "a/b:C", "a..b:C", "1a:C", "a:C" * 50]
)
def test_other_names_are_refused(name):
    for table in ({"model": {"encoding": name}}, {"task": {"name": name}}, {"optimizer": name}):
        with pytest.raises(ValueError, match=r"package.module:Name, got "):
            parse(table)


def test_a_class_is_made_only_of_a_module_that_is_imported(folder):
    with pytest.raises(ValueError, match="import outside_package.mine first"):
        construct(MINE, PositionEncoding, {})
    assert importers(folder) == set()
    for path in (MINE, "outside_package.later:Mine"):
        import_modules([path])
        assert construct(path, PositionEncoding, {"slope": 2.0}).slope == 2.0


@pytest.mark.parametrize(
    ("path", "base", "options", "message"),
    [
        ("outside_package.mine:Nobody", PositionEncoding, {}, "outside_package.mine has no Nobody"),
        ("outside_package.mine:Other", PositionEncoding, {}, "PositionEncoding"),
        (MINE, Task, {}, "attnjax's Task"),
        (MINE, PositionEncoding, {"slop": 1}, "'slop'"),
        (MINE, PositionEncoding, {"slope": "abc"}, "Mine.slope .* number, got 'abc'"),
        ("attnjax.tasks.base:Task", Task, {}, "cannot be made"),
    ],
)
def test_what_is_no_class_of_the_kind_is_told(path, base, options, message):
    import_modules([MINE])
    with pytest.raises(ValueError, match=message):
        construct(path, base, options)


def test_modules_that_cannot_be_imported_are_told(capsys):
    nothing, broken = "model.encoding=outside_package.nothing:Mine", "task.name=outside_package.broken:Mine"
    assert "ModuleNotFoundError" in refused(capsys, "run", "one.py", nothing)
    assert "ZeroDivisionError" in refused(capsys, "sweep", "one.py", "--dry-run", broken)


def test_options_of_an_outside_encoding_are_code_to_the_planner():
    slopes = vary("model.encoding", [{"name": MINE, "options": {"slope": slope}} for slope in (1.0, 2.0)])
    assert len(groups(expand({}, slopes))) == 2


@pytest.mark.slow
def test_a_sweep_of_an_outside_encoding_and_task_is_trained_and_reported(folder, capsys):
    assert main(["sweep", "one.py", f"task.name={SUM}", "--out", "out", "--report"]) == 0
    runs = runs_in(pathlib.Path("out"))
    assert {run.config.model.encoding.name for run in runs if run.status.state == "done"} == {MINE, "alibi"}
    (ours,) = [run for run in runs if run.config.model.encoding.name == MINE]
    assert MINE in (folder / "out" / "report" / "answer.csv").read_text()
    assert importers(folder) == {str(os.getpid())}

    forget()
    (folder / "imported").unlink()
    assert main(["list", "runs", "out"]) == main(["report", "out"]) == 0
    directory, data = str(ours.directory), folder / "data.json"
    assert "reading records imports nothing" in refused(capsys, "explore", directory)
    data.write_text((ours.directory / "config.json").read_text())
    error = refused(capsys, "run", "data.json", f"model.encoding={MINE}")
    assert f"imports nothing, and names {SUM}" in error
    assert importers(folder) == set(), "nobody asked for it"

    assert main(["explore", directory, "--import", "outside_package.mine", "--import", "outside_package.sums"]) == 0
    assert main(["run", "data.json", f"model.encoding={MINE}", f"task.name={SUM}", "--out", "out"]) == 0


def test_a_worker_is_refused_without_the_imports_that_its_runs_need(folder, capsys):
    """Without the import each run would fail."""
    assert main(["sweep", "one.py", *FAKE, f"task.name={SUM}", "--population", "1", "--out", "out", "--plan"]) == 0
    command = capsys.readouterr().out.strip().partition(": attnjax ")[2].split()
    assert {SUM, MINE} <= set(command)
    forget()
    assert f"--import {SUM} --import {MINE}" in refused(capsys, "work", "out", *FAKE)
    assert {run.status.state for run in runs_in(pathlib.Path("out"))} == {"pending"}
    assert main(command) == 0
    assert {run.status.state for run in runs_in(pathlib.Path("out"))} == {"done"}
