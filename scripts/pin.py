"""Writes the files from which environments are installed, after a change of pyproject.toml or constraints.txt.

    python3 scripts/pin.py        needs uv (pip install uv), and asks the package index

constraints.txt says which versions. requirements.txt has them with the SHA-256 of every file that may be installed, for
what experiments need, on every supported Python and platform; requirements-dev.txt has what tests and linters need besides,
and requirements-compile.txt the compilers for accelerators that are not here.
"""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
OLDEST = "3.11"
HEADER = "# Made by scripts/pin.py from pyproject.toml and constraints.txt; nothing is installed that is not in here.\n"


def compiled(extra: str) -> list[str]:
    """One text for each package: its version, the platforms that need it, its hashes."""
    command = ["uv", "pip", "compile", "pyproject.toml", "-", "--extra", extra, "-c", "constraints.txt", "--universal"]
    command += ["--python-version", OLDEST, "--generate-hashes", "--no-header", "--no-annotate"]
    # setuptools builds the package itself: pip fetches what a build needs without looking at its hash.
    done = subprocess.run(command, cwd=ROOT, input="setuptools\n", stdout=subprocess.PIPE, text=True, check=True)
    return re.split(r"^(?=\S)", done.stdout, flags=re.MULTILINE)[1:]


def main() -> None:
    """Write the three files."""
    plain = compiled("plot")
    (ROOT / "requirements.txt").write_text(HEADER + "".join(plain))
    for extra in ("dev", "compile"):
        more = [package for package in compiled(extra) if package not in plain]
        (ROOT / f"requirements-{extra}.txt").write_text(HEADER + "-r requirements.txt\n" + "".join(more))


if __name__ == "__main__":
    main()
