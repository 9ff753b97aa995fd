"""What a release needs: a tag that is the version of the package and stands in the changelog, a source archive, and a wheel.

python3 scripts/release.py check v0.2.0     exit status 1 and a sentence where tag, version and changelog differ
python scripts/release.py build dist        writes both files, in an environment that has setuptools; fetches nothing
"""

import argparse
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def version() -> str:
    """The version that `attnjax/__init__.py` assigns."""
    text = (ROOT / "attnjax" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "([\d.]+)"$', text, re.MULTILINE)
    return str(found)


def problem(tag: str, package: str, changelog: str) -> str:
    """What is wrong with a release, "" where nothing is.

    Example:
      >>> problem("v0.2.0", "0.2.0", "## [0.2.0] - 2027-01-01")
      ''
      >>> problem("v0.2.0", "0.1.0", "")
      'the tag is v0.2.0, but the version of the package is 0.1.0'
    """
    if tag != f"v{package}":
        return f"the tag is {tag}, but the version of the package is {package}"
    if not re.search(rf"^## \[{re.escape(package)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no heading '## [{package}] - YYYY-MM-DD'"
    return ""


def build(folder: pathlib.Path) -> list[str]:
    """Write the source archive and the wheel into a folder; returns their names."""
    from setuptools import build_meta

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)  # setuptools builds the project of the working directory
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # where it keeps what an earlier build had
    return [build_meta.build_sdist(str(folder)), build_meta.build_wheel(str(folder))]


def main(arguments: list[str] | None = None) -> None:
    """Check a tag, or build the files of a release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="compare a tag with version and changelog").add_argument("tag")
    commands.add_parser("build", help="write source archive and wheel").add_argument("folder", type=pathlib.Path)
    chosen = parser.parse_args(arguments)
    if chosen.command == "check":
        if wrong := problem(chosen.tag, version(), (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")):
            sys.exit(wrong)
    else:
        print(*build(chosen.folder), sep="\n")


if __name__ == "__main__":
    main()
