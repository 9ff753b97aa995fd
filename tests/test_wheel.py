"""What `pip install` puts on a machine: every file that the package reads, and the configs, which run in an empty folder."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

from attnjax.sweep import scan

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
"""What pip does with `--no-build-isolation`, without pip, which some environments lack. Nothing is fetched."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    """A wheel of this checkout, built from a copy, because building writes beside the sources."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("attnjax", "configs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return copy / "dist" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    return folder


def attnjax(installed: pathlib.Path, here: pathlib.Path, *arguments: str) -> str:
    """What a command of the unpacked wheel prints in a folder."""
    path = os.pathsep.join([str(installed), str(ROOT / "tests" / "sweep")])
    command = [sys.executable, "-m", "attnjax", *arguments]
    done = subprocess.run(command, cwd=here, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_the_package_and_the_configs_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    here = [path for path in (ROOT / "attnjax").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {str(path.relative_to(ROOT)) for path in here}
    assert names == expected | {f"attnjax/{path.relative_to(ROOT)}" for path in (ROOT / "configs").glob("*.py")}
    assert {name for name in names if name.startswith("attnjax/configs/")} > {"attnjax/configs/theta.py"}


@pytest.mark.slow
def test_its_configs_are_listed_shown_and_run_in_an_empty_folder(installed, tmp_path):
    listed = attnjax(installed, tmp_path, "list", "configs")
    assert listed.startswith(f"in {installed / 'attnjax' / 'configs'}, which come with attnjax:\n")
    names = {line.split()[0].partition(":")[0] for line in listed.splitlines()[1:]}
    assert names == {path.stem for path in (ROOT / "configs").glob("*.py")}
    assert '"name": "theta"' in attnjax(installed, tmp_path, "show", "theta", "--no-model")
    assert attnjax(installed, tmp_path, "sweep", "theta", "--dry-run").splitlines()[-1].startswith("40 runs")
    short = ["train.steps=20", "train.warmup=5", "model.encoding=rope", "seed=0", "data_seed=0"]
    attnjax(installed, tmp_path, "run", "theta", *short, "--trainer", "fake_training:train", "--out", "out")
    (run,) = scan(tmp_path / "out").runs
    assert (run.status.state, run.config.name) == ("done", "theta")
    assert attnjax(installed, tmp_path, "explore").startswith("explore.html ")


def test_a_config_of_the_folder_wins_over_the_one_of_the_wheel(installed, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "theta.py").write_text('"""Mine."""\n\n\ndef get_config():\n    return {"seed": 7}\n')
    assert '"seed": 7' in attnjax(installed, tmp_path, "show", "theta", "--no-model")
    listed = attnjax(installed, tmp_path, "list", "configs")
    assert listed.startswith("in configs:\n  theta                   Mine.\nin /")
    assert "used instead of the configs of the same name that come with attnjax: theta\n" in listed


def test_the_code_of_a_wheel_has_the_hash_of_its_checkout(installed, tmp_path):
    code = "from attnjax.sweep import manifest; print(manifest.attnjax.__file__, manifest.code_hash())"
    both = []
    for path in (installed, ROOT):
        environment = {**os.environ, "PYTHONPATH": str(path)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        file, digest = done.stdout.split()
        assert file == str(path / "attnjax" / "__init__.py")
        both.append(digest)
    assert both[0] == both[1]
