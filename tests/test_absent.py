"""What is not there: a platform that JAX does not have, and libraries that only some commands need."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from attnjax.cli import main
from attnjax.cli.errors import sentence
from tests.report.synthetic import write_sweep

ROOT = pathlib.Path(__file__).parents[1]
TINY = {
    "task": {"name": "bucket_sort", "length_max": 4},
    "model": {"layers": 1, "model": 8, "heads": 1, "hidden": 8},
    "train": {"steps": 2, "batch": 2},
    "evaluate": {"lengths": [2], "validation_lengths": [2], "count": 2, "batch": 2},
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with the config `tiny.json`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    return tmp_path


def attnjax(platform: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": platform}
    command = [sys.executable, "-m", "attnjax", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("platform", "words"),
    [
        ("nonsense", ["run", "tiny.json", "--out", "out"]),
        pytest.param("tpu", ["show", "tiny.json"], marks=pytest.mark.slow),
    ],
)
def test_a_platform_that_is_not_there_is_told_in_one_sentence(folder, platform, words):
    done = attnjax(platform, *words)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"attnjax: error: JAX cannot use the platform '{platform}' that JAX_PLATFORMS names: "
    )
    assert done.stderr.count("\n") == 1
    assert not (folder / "out").exists()


def test_our_own_error_is_not_taken_for_a_missing_platform():
    import jax

    assert jax.devices()
    assert sentence(RuntimeError("a part is broken")) is None


def test_a_report_without_matplotlib_says_what_to_install(folder, monkeypatch, capsys):
    write_sweep(folder / "sweep", ("copy",), ("rope",), 2)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.style", raising=False)
    assert main(["report", "sweep"]) == 2
    told = "figures need matplotlib, which is not installed: pip install 'attnjax[plot]'"
    assert capsys.readouterr().err == f"attnjax: error: {told}\n"
    assert not (folder / "sweep" / "report").exists()


@pytest.mark.parametrize("words", [["evaluate", "a/run"], ["sweep", "tiny.json", "--report", "--out", "out"]])
def test_what_is_drawn_after_long_work_needs_matplotlib_before_it(folder, monkeypatch, capsys, words):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.style", raising=False)
    assert main(words) == 2
    assert "figures need matplotlib, which is not installed" in capsys.readouterr().err
    assert not (folder / "out").exists()
