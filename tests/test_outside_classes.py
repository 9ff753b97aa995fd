"""Encodings and tasks of another package: trained, swept, reported without a fork, and imported for nobody but the user."""

import json
import os
import pathlib
import sys

import pytest

from attnjax.cli import main
from attnjax.config import encoding_name, load, parse
from attnjax.config.outside import class_paths, construct, import_modules
from attnjax.positions import PositionEncoding
from attnjax.sweep import expand, groups, scan, vary
from attnjax.tasks.base import Task

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
    (package / "mine.py").write_text(ENCODING)
    (package / "sums.py").write_text(TASK)
    (package / "broken.py").write_text("1 / 0")
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
    optimizer = f"{name}_optimizer"
    schedule = {"train": {"schedule": f"{name}_schedule"}, "optimizer": {"name": optimizer}}
    config = parse({"model": {"encoding": [name, "rope"]}, "task": {"name": name}} | schedule)
    assert class_paths([config, config]) == (name, optimizer, f"{name}_schedule")
    assert encoding_name(config.model) == f"{name}+rope"
    assert importers(folder) == set()


@pytest.mark.parametrize(
    "name",
    [
        "outside_package.mine",
        "a:b:c",
        ":C",
        "a:",
        "a b:C",
        "../a:C",
        "a/b:C",
        "a..b:C",
        ".a:C",
        "1a:C",
        "ä:C",
        "a:C" * 50,
    ],
)
def test_other_names_are_refused(name):
    for table in ({"model": {"encoding": name}}, {"task": {"name": name}}):
        with pytest.raises(ValueError, match=r"must be one of .*, or package.module:Class, got "):
            parse(table)


def test_a_class_is_made_only_of_a_module_that_is_imported(folder):
    with pytest.raises(
        ValueError, match="belongs to a module that is not imported, .* import outside_package.mine first"
    ):
        construct(MINE, PositionEncoding, {})
    assert importers(folder) == set()
    import_modules([MINE])
    assert construct(MINE, PositionEncoding, {"slope": 2.0}).slope == 2.0


@pytest.mark.parametrize(
    ("path", "base", "options", "message"),
    [
        (
            "outside_package.mine:Nobody",
            PositionEncoding,
            {},
            "the module outside_package.mine has no Nobody",
        ),
        ("outside_package.mine:Other", PositionEncoding, {}, "is no subclass of attnjax's PositionEncoding"),
        ("outside_package.mine:Mine", Task, {}, "is no subclass of attnjax's Task"),
        (
            "outside_package.mine:Mine",
            PositionEncoding,
            {"slop": 1},
            r"made with its options \(slop\): .* argument 'slop'; options stay",
        ),
        ("outside_package.mine:Mine", PositionEncoding, {"slope": "abc"}, "Mine: slope must be a number, got 'abc'"),
        ("attnjax.tasks.base:Task", Task, {}, "cannot be made with its options: Can't instantiate abstract class"),
    ],
)
def test_what_is_no_class_of_the_kind_is_told(path, base, options, message):
    import_modules([MINE])
    with pytest.raises(ValueError, match=message):
        construct(path, base, options)


def test_modules_that_cannot_be_imported_are_told(capsys):
    assert "outside_package.nothing:Mine cannot be imported: ModuleNotFoundError" in refused(
        capsys, "run", "one.py", "model.encoding=outside_package.nothing:Mine"
    )
    assert "outside_package.broken:Mine cannot be imported: ZeroDivisionError: division by zero" in refused(
        capsys, "sweep", "one.py", "--dry-run", "task.name=outside_package.broken:Mine"
    )


def test_options_of_an_outside_encoding_are_code_to_the_planner():
    slopes = vary("model.encoding", [{"name": MINE, "options": {"slope": slope}} for slope in (1.0, 2.0)])
    assert len(groups(expand({}, slopes))) == 2


@pytest.mark.slow
def test_a_sweep_of_an_outside_encoding_and_task_is_trained_and_reported(folder, capsys):
    assert main(["sweep", "one.py", f"task.name={SUM}", "--out", "out", "--report"]) == 0
    assert "2 runs: 2 done" in capsys.readouterr().out
    runs = scan(pathlib.Path("out")).runs
    assert {run.config.model.encoding.name for run in runs} == {MINE, "alibi"}
    (ours,) = [run for run in runs if run.config.model.encoding.name == MINE]
    assert {"4", "8"} == {str(record["length"]) for record in ours.results().tables if record.get("length")}
    assert set(ours.manifest()["outside_sha256"]) == {MINE, SUM}
    assert MINE in (folder / "out" / "report" / "table.csv").read_text()
    assert importers(folder) == {str(os.getpid())}

    forget()
    (folder / "imported").unlink()
    assert main(["list", "runs", "out"]) == 0
    assert main(["report", "out"]) == 0
    directory = str(ours.directory)
    assert "is not imported, and reading records imports nothing" in refused(capsys, "explore", directory)
    data = folder / "data.json"
    data.write_text((ours.directory / "config.json").read_text())
    error = refused(capsys, "run", "data.json", f"model.encoding={MINE}")
    assert f"data.json is data, which imports nothing, and names {SUM}: give that name on the command line too" in error
    assert "is data, which imports nothing" in refused(capsys, "show", "data.json")
    assert importers(folder) == set(), "nobody asked for it"

    assert main(["explore", directory, "--import", "outside_package.mine", "--import", "outside_package.sums"]) == 0
    assert main(["run", "data.json", f"model.encoding={MINE}", f"task.name={SUM}", "--out", "out"]) == 0
    assert "1 runs: 1 done; 1 of them before" in capsys.readouterr().out


def test_a_worker_is_started_with_the_command_that_the_plan_tells_and_refused_without_its_imports(folder, capsys):
    """Without the import each run would fail."""
    assert main(["sweep", "one.py", *FAKE, f"task.name={SUM}", "--population", "1", "--out", "out", "--plan"]) == 0
    told, _, command = capsys.readouterr().out.strip().partition(": attnjax ")
    assert told == "2 runs planned in out"
    options = ["work", "out", *FAKE, "--population", "1", "--import", SUM, "--import", MINE]
    assert sorted(command.split()) == sorted(options)
    forget()
    lacking = f"runs in out name {SUM}, whose module is not imported: give --import {SUM} --import {MINE}"
    assert refused(capsys, "work", "out", *FAKE) == f"attnjax: error: {lacking}\n"
    assert refused(capsys, "work", "out", *FAKE, "--import", SUM).endswith(f"give --import {MINE}\n")
    assert {run.status.state for run in scan(pathlib.Path("out")).runs} == {"pending"}
    assert main(command.split()) == 0
    forget()
    assert main(["work", "out", *FAKE]) == 0, "nothing is left to train"


@pytest.mark.slow
def test_a_worker_with_a_mesh_that_is_not_there_is_refused(capsys):
    assert main(["sweep", "one.py", "model.encoding=alibi", "--out", "out", "--plan"]) == 0
    assert refused(capsys, "work", "out", "--mesh", "data=4096").startswith("attnjax: error: the mesh data=4096 needs")
    assert {run.status.state for run in scan(pathlib.Path("out")).runs} == {"pending"}


@pytest.mark.slow
def test_workers_import_it_too(folder, capsys):
    command = [
        "sweep",
        "one.py",
        *FAKE,
        f"model.encoding={MINE}",
        "--seeds",
        "4",
        "--population",
        "1",
        "--workers",
        "2",
    ]
    assert main(command) == 0
    assert "4 runs: 4 done" in capsys.readouterr().out
    assert len(importers(folder) - {str(os.getpid())}) >= 1


def test_a_config_in_python_may_name_a_class_and_show_lists_it(capsys):
    assert load("one.py").sweep()
    assert main(["show", "one.py", "--no-model", f"model.encoding={MINE}"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text[: text.rindex("\n}") + 2])["model"]["encoding"]["name"] == MINE
