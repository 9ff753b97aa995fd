"""`attnjax explore`: one file, no JAX without a run, and one line for each mistake."""

import os
import pathlib
import subprocess
import sys

import pytest

from attnjax.cli import main
from attnjax.explore import build
from attnjax.explore.page import page

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "long").write_bytes(b"a" * (2**16 + 1))
    return tmp_path


def test_without_a_run_nothing_imports_jax(folder):
    code = "import sys; from attnjax.cli import main; assert main(['explore']) == 0; print({'jax', 'flax'} & {*sys.modules})"
    command, environment = [sys.executable, "-W", "error", "-c", code], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert done.stdout.startswith("explore.html  0.")
    assert (folder / "explore.html").read_text(encoding="utf-8") == page()


def test_the_same_page_has_the_same_bytes(folder):
    paths = [build(out=folder / "new" / name) for name in ("a.html", "b.html")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_runs_and_texts_are_handed_on(monkeypatch, folder, capsys):
    called = []

    def build(*arguments):
        called.append(arguments)
        (folder / "page.html").write_text("x")
        return folder / "page.html"

    monkeypatch.setattr("attnjax.explore.build", build)
    (folder / "text").write_bytes(b"from \xff a file")
    command = [
        "explore",
        "empty",
        "empty",
        "--text",
        "one",
        "--file",
        "text",
        "--text",
        "two",
        "--layer",
        "1",
        "--head",
        "3",
    ]
    assert main([*command, "--out", "page.html"]) == 0
    ((runs, out, texts, layer, head),) = called
    assert ([run.name for run in runs], out.name) == (["empty", "empty"], "page.html")
    assert (texts, layer, head) == ([b"one", b"two", b"from \xff a file"], 1, 3)
    assert capsys.readouterr().out == f"{folder / 'page.html'}  0.0 MiB\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["nowhere"],
            "nowhere is no folder: give the folder of a run, as in runs/NAME/ID, or what it is, as in NAME/ENCODING/SEED",
        ),
        (["empty"], "config.json"),
        (["empty", "empty", "empty"], "explore compares at most 2 runs, got 3"),
        (["--text", "a b"], "are for trained runs: give the folder of a run"),
        (["--head", "1"], "are for trained runs: give the folder of a run"),
        (["empty", "--file", "nowhere"], "nowhere cannot be read: No such file"),
        (["empty", "--file", "long"], "long has more than 65536 bytes"),
        (["--out", "empty"], "empty is a folder: give the name of a file"),
        (["--out", "long/explore.html"], "long/explore.html cannot be written"),
    ],
)
def test_mistakes_are_one_line_and_2(command, message, capsys):
    assert main(["explore", *command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnjax: error: ")
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--head", "x"], "from 0 to 999999999, got 'x'"),
        (["--layer", "-1"], "--layer"),
        (["--colour"], "unrecognized arguments"),
    ],
)
def test_mistakes_in_the_command_exit_with_2(command, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(["explore", *command])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
