"""The environment of README's commands: made once, by whichever interpreter they are called, and never in place of another."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def setup_env(monkeypatch, tmp_path):
    """The script, which installs nothing here."""
    found = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts" / "setup_env.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.made = []

    def create(venv, executable):
        pathlib.Path(venv, "bin").mkdir(parents=True, exist_ok=True)
        pathlib.Path(venv, "bin", "python").touch()
        module.made.append(executable)
        return ["pip"]

    monkeypatch.setattr(module, "create", create)
    monkeypatch.setattr(module.subprocess, "check_call", lambda *arguments, **options: 0)
    return module


def test_an_activated_environment_is_described_as_the_python_behind_it(setup_env, tmp_path):
    """Else an environment would be made anew, in the place of that which runs, at every change of the shell."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    inside = setup_env.describe(str(tmp_path / "venv" / "bin" / "python"))
    assert inside is not None
    assert inside == setup_env.describe(sys.executable)
    assert inside[0] == sys.version_info[:3]
    assert setup_env.describe(str(tmp_path / "nowhere")) is None


def test_it_is_made_once(setup_env, tmp_path):
    venv = str(tmp_path / "venv")
    ensure = lambda extra="dev": setup_env.ensure(venv, (3, 12, 1), "/usr/bin/python3", extra)
    assert ensure() == ensure() == ensure("plot") == str(tmp_path / "venv" / "bin" / "python")
    assert len(setup_env.made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["venv"]


@pytest.mark.parametrize("when", ["created", "installed"])
def test_what_was_cut_short_is_made_again(setup_env, tmp_path, monkeypatch, when):
    venv, create = str(tmp_path / "venv"), setup_env.create
    ensure = lambda: setup_env.ensure(venv, (3, 12, 1), "/usr/bin/python3", "dev")

    def stopped(*arguments, **options):
        if when == "created":
            pathlib.Path(venv, "bin").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((setup_env, "create") if when == "created" else (setup_env.subprocess, "check_call")), stopped)
        with pytest.raises(KeyboardInterrupt):
            ensure()
    assert (tmp_path / "venv").is_dir()
    assert setup_env.create is create
    assert ensure() == str(tmp_path / "venv" / "bin" / "python")
    assert [path.name for path in tmp_path.iterdir()] == ["venv"]


def test_an_environment_of_somebody_else_is_left_alone(setup_env, tmp_path):
    (tmp_path / "bin").mkdir()
    with pytest.raises(SystemExit, match="was not made by this script, which would empty it: move it away"):
        setup_env.ensure(str(tmp_path), (3, 12, 1), "/usr/bin/python3", "dev")
    assert not setup_env.made
