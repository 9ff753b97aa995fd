"""Installs the wheel of a release beside the dependencies that are here, and uses it as a project of somebody else would.

    python -m scripts.try_release dist      after `scripts/release.py build dist`, in the environment of the tests

The source archive must have the files of the wheel, and the wheel must declare every package that it imports. Commands and
`tests/outside/use.py` run in an empty folder. pyrefly finds no mistake in `use.py`, and those of `tests/outside/mistakes.py` in
the lines that say so. The first failure ends it with its output.
"""

import argparse
import ast
import contextlib
import email
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from importlib import metadata

from scripts import setup_env

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTSIDE = ROOT / "tests" / "outside"
COMMANDS = (["list", "configs"], ["show", "theta", "--no-model"], ["sweep", "theta", "--dry-run"], ["explore"])


def main(arguments: list[str] | None = None) -> None:
    """Try the wheel and the source archive of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args(arguments).folder.resolve()
    wheels, archives = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(archives) != 1:
        sys.exit(f"{folder} must hold one wheel and one source archive, and holds {sorted(os.listdir(folder))}")
    if wrong := differing(wheels[0], archives[0]):
        sys.exit(f"{archives[0].name} has not these files of the wheel, or others: {', '.join(wrong)}")
    if wrong := undeclared(wheels[0]):
        sys.exit(f"{wheels[0].name} does not declare what it imports: {', '.join(wrong)}")
    with tempfile.TemporaryDirectory() as place:
        venv, here = pathlib.Path(place, "venv"), os.path.join(place, "empty")
        os.mkdir(here)
        pip = setup_env.create(str(venv), sys.executable)
        run(here, *pip, "install", "-qq", "--no-index", "--no-deps", wheels[0])
        (packages,) = venv.glob("lib/python*/site-packages")
        # A folder that a .pth file adds has no .pth files of its own: the checkout is not installed here.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
        use(here, str(venv / "bin" / "python"))
    print(f"{wheels[0].name}: installed, used, and checked from outside; {archives[0].name} has the same files")


def differing(wheel: pathlib.Path, archive: pathlib.Path) -> list[str]:
    """Return the files of the package in a wheel that a source archive lacks, or has with other content."""
    with tarfile.open(archive) as tar:
        read = lambda member: tar.extractfile(member).read()  # type: ignore[union-attr]
        there = {member.name.partition("/")[2]: read(member) for member in tar.getmembers() if member.isfile()}
    with zipfile.ZipFile(wheel) as file:
        package = {name: file.read(name) for name in file.namelist() if ".dist-info/" not in name}
    source = lambda name: re.sub(r"^attnjax/(configs/\w+\.py)$", r"\1", name)
    return [name for name, content in package.items() if there.get(source(name), there.get(name)) != content]


def undeclared(wheel: pathlib.Path) -> list[str]:
    """Return the installed packages that a wheel imports, and that neither it nor a package that it declares requires."""
    with zipfile.ZipFile(wheel) as file:
        (about,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        declared = email.message_from_bytes(file.read(about)).get_all("Requires-Dist", [])
        trees = [ast.parse(file.read(name)) for name in file.namelist() if name.endswith(".py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    brought = metadata.packages_distributions()
    known = {name_of(text) for text in declared} | {"attnjax"}
    for text in declared:
        with contextlib.suppress(metadata.PackageNotFoundError):  # of an extra that is not installed
            known |= {name_of(more) for more in metadata.requires(name_of(text)) or ()}
    imported = [brought.get(module.partition(".")[0], []) for module in modules]
    return sorted({found[0] for found in imported if found and not known & set(map(name_of, found))})


def name_of(requirement: str) -> str:
    """Return the name of the package in a requirement, as package indexes write it.

    Example:
      >>> name_of("MarkupSafe>=2.0; extra == 'plot'")
      'markupsafe'
    """
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


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
