"""`attnjax explore`: one file, no JAX without a run, and one line for each mistake."""

import os
import pathlib
import subprocess
import sys

import pytest

from attnjax.cli import main
from attnjax.explore.page import page

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("not a folder")
    return tmp_path


def test_without_a_run_nothing_imports_jax(folder):
    code = "import sys; from attnjax.cli import main; assert main(['explore']) == 0; print({'jax', 'flax'} & {*sys.modules})"
    command, environment = [sys.executable, "-W", "error", "-c", code], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert done.stdout.startswith("explore.html  0.")
    assert (folder / "explore.html").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["nowhere"], "nowhere is no run: give its folder, or NAME/RUN, where NAME is a sweep in runs or its folder"),
        (["empty"], "config.json"),
        (["empty", "empty", "empty"], "explore compares at most 2 runs, got 3"),
        (["--text", "a b"], "are for trained runs: give the folder of a run"),
        (["--head", "1"], "are for trained runs: give the folder of a run"),
        (["--out", "empty"], "empty is a folder: give the name of a file"),
        (["--out", "file/explore.html"], "file/explore.html cannot be written"),
    ],
)
def test_mistakes_are_one_line_and_2(command, message, capsys):
    assert main(["explore", *command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnjax: error: ")
    assert message in error
    assert "Traceback" not in error
