"""The public API from outside: what another project writes runs, and a type checker finds its mistakes, each in its line."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attnjax
from attnjax import attention, positions
from scripts import try_release

ROOT = Path(__file__).resolve().parent.parent


def test_type_checkers_see_every_public_name():
    """The names that `__init__.py` imports for them are those that load at run time; modules are said one by one."""
    tree = ast.parse((ROOT / "attnjax/__init__.py").read_text(encoding="utf-8"))
    said = {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names}
    assert set(attnjax.__all__) <= said | vars(attention).keys() | vars(positions).keys()
    assert (ROOT / "attnjax" / "py.typed").exists()


@pytest.mark.slow
def test_a_file_of_another_project_runs_and_its_mistakes_are_found_each_in_its_line(tmp_path):
    """In a process of its own, without the strict settings of the tests."""
    use, environment = try_release.OUTSIDE / "use.py", {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, use], cwd=tmp_path, env=environment, text=True) == "used\n"
    checked = lambda file: try_release.checked(str(tmp_path), sys.executable, file, search=ROOT)
    assert checked(use) == ""
    assert try_release.lines(checked(try_release.OUTSIDE / "mistakes.py")) == try_release.marked()
    assert len(try_release.marked()) == 15
