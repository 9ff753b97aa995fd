"""Config files that are damaged or no files at all, and code in them that fails: a sentence with the place, never a wait."""

import json
import os
import subprocess
import sys

import pytest

from attnjax.cli import main
from attnjax.config import load
from tests.test_absent import ROOT

WRONG = "def get_config():\n    steps = 3\n    return steps / 0\n"


def told(capsys, name: str) -> str:
    """What `attnjax show` says about a config that it refuses."""
    assert main(["show", name, "--no-model"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("attnjax: error: ")
    assert output.err.count("\n") == 1
    return output.err.removeprefix("attnjax: error: ").rstrip("\n")


@pytest.mark.parametrize("name", ["wrong.py", "./wrong.py", "below/../wrong.py"])
def test_the_line_of_a_mistake_is_right_for_a_relative_path(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "wrong.py").write_text(WRONG)
    assert told(capsys, name).endswith("wrong.py, line 3: ZeroDivisionError: division by zero")
    assert told(capsys, str(tmp_path / name)).endswith("wrong.py, line 3: ZeroDivisionError: division by zero")


def test_the_line_of_a_mistake_in_a_sweep_is_right(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(
        "def get_config(): return {}\ndef sweep():\n    yield {'seed': 1}\n    int('x')\n"
    )
    assert told(capsys, "wrong.py").startswith("wrong.py, line 4: ValueError: invalid literal for int()")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit()", "SystemExit: SystemExit"),
        ("raise type('Odd', (BaseException,), {})('no reason')", "Odd: no reason"),
        ("raise GeneratorExit", "GeneratorExit: GeneratorExit"),
    ],
)
@pytest.mark.parametrize("where", ["module", "get_config", "sweep"])
def test_a_config_cannot_end_the_command_in_silence(tmp_path, capsys, line, message, where):
    parts = {"module": "", "get_config": "return {}", "sweep": "return []", where: line}
    code = f"{parts['module']}\ndef get_config():\n  {parts['get_config']}\ndef sweep():\n  {parts['sweep']}\n"
    path = tmp_path / "odd.py"
    path.write_text(code)
    number = {"module": 1, "get_config": 3, "sweep": 5}[where]
    assert told(capsys, str(path)) == f"{path}, line {number}: {message}"


def test_an_interruption_in_a_config_is_one(tmp_path, capsys):
    (tmp_path / "stops.py").write_text("raise KeyboardInterrupt")
    assert main(["show", str(tmp_path / "stops.py")]) == 130
    assert capsys.readouterr().err == "attnjax: interrupted\n"


def test_a_config_cut_anywhere_is_read_or_refused_by_name(tmp_path, capsys):
    text = json.dumps(
        {"train": {"steps": 3}, "evaluate": {"lengths": [4, 8]}, "name": "é"}, ensure_ascii=False
    ).encode()
    path = tmp_path / "cut.json"
    for size in range(len(text)):
        path.write_bytes(text[:size])
        assert str(path) in told(capsys, str(path))
    path.write_bytes(text)
    assert load(path).config["name"] == "é"


@pytest.mark.quick("folder-json", "fifo-py", "large-json")
@pytest.mark.parametrize("ending", ["json", "py"])
@pytest.mark.parametrize("kind", ["folder", "fifo", "zero", "loop", "large"])
def test_what_is_no_file_is_told_and_not_waited_for(tmp_path, kind, ending):
    path = tmp_path / f"odd.{ending}"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        with path.open("wb") as sparse:
            sparse.truncate(2**40)
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else path)
    command = [sys.executable, "-m", "attnjax", "show", str(path), "--no-model"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("attnjax: error: ")
    assert str(path) in done.stderr
    expected = {"loop": "no config|symbolic link", "large": "is larger than"}.get(kind, "is no regular file")
    assert any(part in done.stderr for part in expected.split("|"))
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("depth", [41, 16_000])
def test_a_config_that_nests_too_deep_is_refused(tmp_path, capsys, depth):
    path = tmp_path / "deep.json"
    path.write_text('{"model":' * depth + "{}" + "}" * depth)
    assert "nested more than 40 deep" in told(capsys, str(path))
    code = tmp_path / "deep.py"
    code.write_text(f"def get_config():\n  x = {{}}\n  for _ in range({depth}): x = {{'model': x}}\n  return x\n")
    assert "nested more than" in told(capsys, str(code))
