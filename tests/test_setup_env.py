"""The environment of README's commands: made once, by whichever interpreter they are called, and never in place of another."""

import concurrent.futures
import importlib.util
import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def setup_env(monkeypatch, tmp_path):
    """The script, which installs nothing here."""
    found = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts" / "setup_env.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.made, module.installed = [], []

    def create(venv, executable):
        pathlib.Path(venv, "bin").mkdir(parents=True, exist_ok=True)
        pathlib.Path(venv, "bin", "python").touch()
        module.made.append(executable)

    monkeypatch.setattr(module, "create", create)
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module.subprocess, "check_call", lambda command, **_: module.installed.append(command))
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


@pytest.mark.parametrize("pip", [True, False])
def test_what_tests_need_is_added_to_an_environment_that_is_in_use(setup_env, tmp_path, pip):
    """`./test` after `./run`, which may still train with it."""
    venv, python = tmp_path / "venv", str(tmp_path / "venv" / "bin" / "python")
    ensure = lambda extra, executable="/usr/bin/python3": setup_env.ensure(str(venv), (3, 12, 1), executable, extra)
    ensure("plot")
    if pip:
        (venv / "lib" / "python3.12" / "site-packages" / "pip").mkdir(parents=True)
    setup_env.installed.clear()
    assert ensure("dev") == ensure("dev") == ensure("plot") == python
    assert setup_env.made == ["/usr/bin/python3"], "nothing is cleared"
    (command,) = setup_env.installed
    own = [python, "-m", "pip"] if pip else ["/usr/bin/python3", "-m", "pip", "--python", python]
    assert command == [*own, "install", "-qq", "--no-compile", *next(iter(setup_env.installations("dev")))]
    ensure("plot", "/usr/bin/python3.13")
    assert setup_env.made == ["/usr/bin/python3", "/usr/bin/python3.13"], (
        "another interpreter needs another environment"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["venv"]


@pytest.mark.parametrize("status", [0, 1])
def test_uv_installs_where_it_is_on_the_path_and_pip_where_it_fails(setup_env, tmp_path, monkeypatch, status):
    asked, python = [], str(tmp_path / "venv" / "bin" / "python")
    monkeypatch.setattr(setup_env.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(setup_env.subprocess, "call", lambda command, **_: asked.append(command) or status)
    setup_env.ensure(str(tmp_path / "venv"), (3, 12, 1), "/usr/bin/python3", "plot")
    with_hashes, itself = setup_env.installations("plot")
    start = ["/bin/uv", "pip", "install", "--quiet", "--python", python]
    assert asked == [[*start, *with_hashes], [*start, *itself]]
    assert len(setup_env.installed) == 2 * status


@pytest.mark.parametrize("extras", [("dev", "dev", "dev"), ("plot", "dev", "plot")])
def test_of_several_first_calls_at_once_one_makes_the_environment(setup_env, tmp_path, monkeypatch, extras):
    create, venv = setup_env.create, str(tmp_path / "venv")

    def slow(*arguments):
        time.sleep(0.2)
        return create(*arguments)

    monkeypatch.setattr(setup_env, "create", slow)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        made = threads.map(lambda extra: setup_env.ensure(venv, (3, 12, 1), "/usr/bin/python3", extra), extras)
    assert set(made) == {str(tmp_path / "venv" / "bin" / "python")}
    assert len(setup_env.made) == 1
    assert setup_env.ensure(venv, (3, 12, 1), "/usr/bin/python3", "dev")
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
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([(3, 15, 0), (3, 14, 2), (3, 12, 1)], (3, 14, 2)),
        ([(3, 10, 9), (3, 16, 1), (3, 11, 0)], (3, 11, 0)),
        ([(3, 13, 5), (3, 12, 1)], (3, 13, 5)),
        ([(3, 15, 0), (4, 0, 0), (3, 10, 9)], None),
    ],
)
def test_a_python_without_packages_is_passed_over(setup_env, monkeypatch, capsys, found, chosen):
    versions = {f"/python{number}": version for number, version in enumerate(found)}
    monkeypatch.setattr(setup_env, "candidates", lambda: versions)
    monkeypatch.setattr(setup_env.os, "access", lambda *_: True)
    monkeypatch.setattr(setup_env, "describe", lambda path: (versions[path], path))
    monkeypatch.setattr(setup_env, "ensure", lambda venv, version, *_: str(version))
    monkeypatch.setattr(sys, "argv", ["setup_env.py"])
    if chosen:
        setup_env.main()
        assert capsys.readouterr().out == f"{chosen}\n"
        return
    with pytest.raises(SystemExit) as stopped:
        setup_env.main()
    assert str(stopped.value) == (
        f"attnjax needs Python 3.11 to 3.14, but python3 is {'.'.join(map(str, sys.version_info[:3]))} ({sys.executable}), and "
        "no such one is on PATH or under pyenv. Install one, or put it first on PATH."
    )
