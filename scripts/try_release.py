"""Installs the files of a release in an empty environment, and uses them there as a project of somebody else would.

    python -m scripts.try_release dist      after `scripts/release.py build dist`; in an environment that has pyrefly

For the wheel and for the source archive: the pinned dependencies are installed, then the file alone, and `pip check` compares
what it declares. Commands and `tests/outside/use.py` run in an empty folder. pyrefly finds no mistake in `use.py`, and those of
`tests/outside/mistakes.py` in the lines that say so. Prints a line per file; the first failure ends it with its output.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from scripts import setup_env

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTSIDE = ROOT / "tests" / "outside"
COMMANDS = (["list", "configs"], ["show", "theta", "--no-model"], ["sweep", "theta", "--dry-run"], ["explore"])


def main(arguments: list[str] | None = None) -> None:
    """Try every wheel and source archive of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args(arguments).folder.resolve()
    files = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if len(files) != 2:
        sys.exit(f"{folder} must hold one wheel and one source archive, and holds {[file.name for file in files]}")
    with tempfile.TemporaryDirectory() as place:
        venv, here = os.path.join(place, "venv"), os.path.join(place, "empty")
        os.mkdir(here)
        pip = setup_env.create(venv, sys.executable)
        run(here, *pip, "install", "-qq", "--require-hashes", "--only-binary", ":all:", "-r", ROOT / "requirements.txt")
        for file in files:
            how = ["--force-reinstall", "--no-index", "--no-deps", "--no-build-isolation"]
            run(here, *pip, "install", "-qq", *how, file)
            run(here, *pip, "check")
            use(here, os.path.join(venv, "bin", "python"))
            print(f"{file.name}: installed in an empty environment, used, and checked from outside", flush=True)


def use(here: str, python: str) -> None:
    """Run the commands and the file of another project, and check types, all from an empty folder."""
    for command in COMMANDS:
        run(here, os.path.join(os.path.dirname(python), "attnjax"), *command)
    run(here, python, "-I", OUTSIDE / "use.py")
    told = checked(here, python, OUTSIDE / "use.py")
    if told:
        sys.exit(f"pyrefly finds mistakes in use.py:\n{told}")
    told = checked(here, python, OUTSIDE / "mistakes.py")
    if lines(told) != marked():
        sys.exit(f"pyrefly finds mistakes in lines {sorted(lines(told))}, and they are in {sorted(marked())}:\n{told}")


def marked() -> set[int]:
    """Return the lines of mistakes.py that say that they are wrong."""
    lines = (OUTSIDE / "mistakes.py").read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def lines(told: str) -> set[int]:
    """Return the lines of errors of pyrefly.

    Example:
      >>> lines("ERROR mistakes.py:12:29-35: not assignable")
      {12}
    """
    return {int(line) for line in re.findall(r"^ERROR \S+?:(\d+):", told, re.MULTILINE)}


def checked(here: str, python: str, file: pathlib.Path, search: pathlib.Path | None = None) -> str:
    """Return the errors that pyrefly finds in a file with the packages of an environment, "" where there are none.

    `search` is a folder in which packages are found first.
    """
    command = [sys.executable, "-m", "pyrefly", "check", "--preset", "default", "--output-format", "min-text"]
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # beside the checkout, pyrefly would read its pyproject.toml and its code
        copy = pathlib.Path(folder, file.name)
        copy.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
        command += ["--search-path", str(search)] if search else []
        command += ["--python-interpreter-path", python, str(copy)]
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return "\n".join(line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line)


def run(here: str, *command: object) -> None:
    """Run a command in a folder; its output is shown where it fails."""
    words = [str(word) for word in command]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(words, cwd=here, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
