"""The public API from outside: what another project writes runs, and a type checker finds its mistakes, each in its line."""

import ast
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import attnjax
from attnjax import attention, positions
from scripts import try_release

ROOT = Path(__file__).resolve().parent.parent


def of_python(folder, *command):
    """The lines that a file of Python prints in a process of its own, without the strict settings of the tests."""
    words = [sys.executable, *map(str, command)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_type_checkers_see_every_public_name():
    """The names that `__init__.py` imports for them are those that load at run time; modules are said one by one."""
    (block,) = [
        node
        for node in ast.parse((ROOT / "attnjax/__init__.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    said = {name.name for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    stars = {node.module for node in block.body if isinstance(node, ast.ImportFrom) if node.names[0].name == "*"}
    assert stars == {"attnjax.attention", "attnjax.positions"}
    assert set(attnjax.__all__) <= said | vars(attention).keys() | vars(positions).keys()
    assert (ROOT / "attnjax" / "py.typed").exists()


@pytest.mark.slow
def test_a_file_of_another_project_runs_and_has_no_mistake(tmp_path):
    assert of_python(tmp_path, try_release.OUTSIDE / "use.py") == ["used"]
    use = try_release.checked(str(tmp_path), sys.executable, try_release.OUTSIDE / "use.py", search=ROOT)
    assert use == ""


@pytest.mark.slow
def test_mistakes_of_another_project_are_found_each_in_its_line(tmp_path):
    told = try_release.checked(str(tmp_path), sys.executable, try_release.OUTSIDE / "mistakes.py", search=ROOT)
    assert try_release.lines(told) == try_release.marked()
    assert len(try_release.marked()) == 15


@pytest.mark.slow
def test_the_source_archive_holds_what_a_wheel_is_made_from(tmp_path):
    source, wheel = of_python(tmp_path, ROOT / "scripts" / "release.py", "build", tmp_path)[-2:]
    assert wheel == f"attnjax-{attnjax.__version__}-py3-none-any.whl"
    with tarfile.open(tmp_path / source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "attnjax/py.typed", "attnjax/report/page.html"}
    assert needed | {f"configs/{path.name}" for path in (ROOT / "configs").glob("*.py")} <= names


def test_a_folder_without_a_release_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"must hold one wheel and one source archive, and holds \[\]"):
        try_release.main([str(tmp_path)])
