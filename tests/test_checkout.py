"""Commands that are experiments of a checkout: found beside the package, and told of where the package stands alone."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import attnjax

PACKAGE = pathlib.Path(attnjax.__file__).parent
COMMANDS = {"bench": ("speed", ["bench", "--list"]), "parity": ("parity", ["parity", "folder"])}


def run(folder, *command, path=PACKAGE.parent):
    """What `python -m attnjax` says when it is started in a folder, with the package at `path`."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from attnjax.cli import main; sys.exit(main())"
    call = [sys.executable, "-P", "-c", code, str(path), *command]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_installed_package_says_where_the_command_is(tmp_path, name):
    """Folders of other projects may be called experiments: neither beside the package nor here are they taken for ours."""
    folder, command = COMMANDS[name]
    shutil.copytree(PACKAGE, tmp_path / "site" / "attnjax", ignore=shutil.ignore_patterns("__pycache__"))
    for place in (tmp_path, tmp_path / "site"):
        (place / "experiments" / folder).mkdir(parents=True)
        for one in ("", folder):
            (place / "experiments" / one / "__init__.py").write_text("raise SystemExit(7)")
    done = run(tmp_path, *command, path=tmp_path / "site")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"attnjax: error: `attnjax {name}` is the experiment experiments/{folder} of the source repository, which an installed "
        "package does not hold; install a checkout with `pip install -e .` and use the command of that environment\n"
    )


def test_a_checkout_is_found_from_anywhere(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise SystemExit(7)")
    done = run(tmp_path, "bench", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("attention ")
