"""Does the quick run notice bugs? Each of `bugs.py` is planted in a copy of the checkout and its quick tests are run.

    python -m tests.planted                  every bug, with the tests that its row names
    python -m tests.planted 3 7              these rows alone
    python -m tests.planted --all            with the whole quick run

Prints for each bug the first test that fails, or that none did; the exit status is 1 where more than one bug is missed.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.planted.bugs import BUGS, Bug

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KEPT_OUT = (".git", ".venv*", "__pycache__", "runs", ".*_cache")
MAY_BE_MISSED = 1


def main(arguments: Sequence[str]) -> int:
    """Plant the bugs one after another in one copy, and say which were caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description="Plant bugs; see which tests notice.")
    parser.add_argument(
        "rows", nargs="*", type=int, metavar="ROW", help="rows of the table, from 1; all if none is given"
    )
    parser.add_argument("--all", action="store_true", help="run the whole quick run for each bug")
    options = parser.parse_args(arguments)
    rows, missed = options.rows or range(1, len(BUGS) + 1), 0
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "attnjax"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*KEPT_OUT), symlinks=True)
        for row in rows:
            bug = BUGS[row - 1]
            found = caught(copy, bug, ("",) if options.all else bug.tests)
            missed += found is None
            print(f"{row:2} {bug.file}: {bug.breaks}: {found or 'MISSED'}", flush=True)
    print(f"{len(rows) - missed} of {len(rows)} caught")
    return int(missed > MAY_BE_MISSED)


def caught(copy: pathlib.Path, bug: Bug, tests: Sequence[str]) -> str | None:
    """The first quick test of these paths that fails while the bug is in the copy; None where all pass.

    Raises RuntimeError where that test fails without the bug too: it would prove nothing.
    """
    source = copy / "attnjax" / bug.file
    sound = source.read_text(encoding="utf-8")
    source.write_text(planted(sound, bug), encoding="utf-8")
    try:
        found = next((found for path in tests if (found := first_failure(copy, f"tests/{path}"))), None)
    finally:
        source.write_text(sound, encoding="utf-8")
    if found and first_failure(copy, found):
        raise RuntimeError(f"{found} fails without the bug in {bug.file} too")
    return found


def planted(source: str, bug: Bug) -> str:
    """The source with the bug. Raises ValueError where the text that it replaces is not there exactly once."""
    if (count := source.count(bug.right)) != 1:
        raise ValueError(f"{bug.file} has the text {bug.right!r} {count} times, and must have it once")
    return source.replace(bug.right, bug.wrong)


def first_failure(copy: pathlib.Path, path: str) -> str | None:
    """The first failed quick test of a path, None where all pass. Raises RuntimeError where none were run."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", path]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    told = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if not told:
        raise RuntimeError(f"pytest failed without a failed test in {path}:\n{done.stdout}{done.stderr}")
    return told[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
