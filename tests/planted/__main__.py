"""Says which share of planted bugs the quick tests notice; see README.md.

    python -m tests.planted                       every bug, with the tests of its own folder
    python -m tests.planted train attention/ring  the bugs in files whose paths begin so
    python -m tests.planted --near                with the tests that mirror the file alone
    python -m tests.planted --all --limit 3600    with all quick tests
    python -m tests.planted --list                names the bugs and runs nothing

The exit status is 1 where a bug is STALE, or a test that notices one fails without it too.
"""

import argparse
import ast
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence

from tests.planted.mutants import Bug, mutants

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KEPT_OUT = (".git", ".venv*", "__pycache__", "runs", ".*_cache")
PATIENCE = 20
WHOLE = 36_000
"""Seconds of processor time for the tests that noticed bugs, in the end without any bug."""


def main(arguments: Sequence[str]) -> int:
    """Plants the bugs one after another in one copy of the checkout, and prints which test notices each."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description="Plant bugs; see which tests notice.")
    parser.add_argument("files", nargs="*", help="how the paths of files below attnjax/ begin; all if none is given")
    parser.add_argument("--near", action="store_true", help="run only the tests that mirror the file of a bug")
    parser.add_argument("--all", action="store_true", help="run all quick tests for each bug")
    parser.add_argument("--list", action="store_true", help="print the bugs and run nothing")
    parser.add_argument("--limit", type=float, default=120, help="seconds of processor time for each bug (120)")
    parser.add_argument("--each", type=int, default=3, help="automatic bugs of a folder of the package (3)")
    parser.add_argument("--seed", type=int, default=8, help="draws other automatic bugs (8)")
    options = parser.parse_args(arguments)
    bugs = [*by_hand(ROOT / "attnjax"), *mutants(ROOT / "attnjax", options.seed, options.each)]
    bugs = [bug for bug in bugs if bug.file.startswith(tuple(options.files) or "")]
    told: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "attnjax"
        if not options.list:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*KEPT_OUT), symlinks=True)
        for bug in bugs:
            print(f"{bug.file}: {bug.kind}: {bug.breaks}", end=": ", flush=True)
            begin = spent()
            told.append("STALE" if bug.text is None else "" if options.list else caught(copy, bug, options))
            print(f"{told[-1]} ({spent() - begin:.0f} s)", flush=True)
        found = dict.fromkeys(one.removeprefix("HANGS ") for one in told if "tests/" in one)
        unsound = first_failures(copy, list(found), WHOLE) if found else []
    stale, missed = told.count("STALE"), sum(one.startswith("MISSED") for one in told)
    count = len(bugs) - stale
    share = "" if options.list else f"{count - missed} of {count} caught, "
    print(f"{share}{len(bugs)} bugs of {len({bug.kind for bug in bugs})} kinds, {stale} STALE")
    print("".join(f"fails without a bug too: {test}\n" for test in unsound), end="")
    return int(bool(stale or unsound))


def by_hand(package: pathlib.Path) -> list[Bug]:
    """Returns the bugs of bugs.toml. Raises SyntaxError where one would be no Python."""
    made = []
    table = tomllib.loads(pathlib.Path(__file__).with_name("bugs.toml").read_text(encoding="utf-8"))
    for file, kind, breaks, right, wrong, *tests in table["bugs"]:
        source = path.read_text(encoding="utf-8") if (path := package / file).exists() else ""
        text = source.replace(right, wrong) if source.count(right) == 1 else None
        ast.parse(text or "")
        made.append(Bug(file, kind, breaks, text, tuple(tests)))
    return made


def caught(copy: pathlib.Path, bug: Bug, options: argparse.Namespace) -> str:
    """Returns the first quick test that fails with the bug, or that none did (in the time there was)."""
    near, far = tests_of(copy / "tests", bug)
    source, end = copy / "attnjax" / bug.file, spent() + options.limit
    sound = source.read_text(encoding="utf-8")
    source.write_text(bug.text or "", encoding="utf-8")
    try:
        for paths in [["tests"]] if options.all else [near] if options.near else [near, far]:
            if found := paths and first_failures(copy, paths, end - spent(), "-x"):
                return found[0]
    except TimeLimitError as reached:
        return hangs(copy, str(reached), options.limit) or f"MISSED in {options.limit:g} s"
    finally:
        source.write_text(sound, encoding="utf-8")
    return "MISSED"


def hangs(copy: pathlib.Path, test: str, limit: float) -> str:
    """Returns that a test alone takes longer than the limit too, or fails in the end; "" where it passes."""
    try:
        return "".join(first_failures(copy, [test], limit)[:1]) if test else ""
    except TimeLimitError:
        return f"HANGS {test}"


def spent() -> float:
    """Returns the seconds of processor time of all tests so far."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def tests_of(tests: pathlib.Path, bug: Bug) -> tuple[list[str], list[str]]:
    """Returns the test files that mirror the file of a bug, after those that its row names, and the others of its folder.

    Where no file mirrors it, those that name its module do, or else the whole folder. Files that name it come first.
    """
    *folders, last = pathlib.PurePath(bug.file).with_suffix("").parts
    folder, stems = "/".join(folders[:1]) or ".", [part for part in (last, *reversed(folders)) if part != "__init__"]
    own = [f"{folder}/test_{stem}{end}.py" for stem in stems for end in ("", "_*")]
    own += [f"test_{folder}_{last}.py", f"test_{last}.py"]
    mirrors = [path for pattern in (*bug.tests, *own) for path in sorted(tests.glob(pattern))]
    whole = sorted([*tests.glob(f"{folder}/test_*.py"), *tests.glob(f"test_{folder}*.py")])
    package = re.escape(".".join(["attnjax", *folders]))
    name = re.compile(rf"{package}\.{last}\b|from {package} import .*\b{last}\b")
    everything = sorted(tests.rglob("test_*.py"), key=lambda path: (path.parent.name != folder, path))
    naming = [path for path in everything if name.search(path.read_text(encoding="utf-8"))]
    near = list(dict.fromkeys(mirrors or naming or whole))
    far = [path for path in dict.fromkeys([*naming, *whole]) if path not in near]
    return [f"tests/{path.relative_to(tests)}" for path in near], [f"tests/{path.relative_to(tests)}" for path in far]


class TimeLimitError(Exception):
    """Tests took longer than they may; its text is the test that was running."""


def first_failures(copy: pathlib.Path, paths: Sequence[str], limit: float, *more: str) -> list[str]:
    """Returns the quick tests of these paths that fail.

    Raises TimeLimitError after `limit` seconds of processor time, or `PATIENCE` times as long by the clock.
    """
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *more, *paths]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds = max(1, round(limit))
    with subprocess.Popen(
        command,
        cwd=copy,
        env={**environment, "PYTHONPATH": str(copy)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)),
    ) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that tests have started
            out, err = process.communicate()
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise TimeLimitError("".join(re.findall(r"^(tests/\S+::.*?) *$", out, re.MULTILINE)[-1:]))
    if process.returncode in (0, 5):  # 5: these files have no quick test
        return []
    told = re.findall(r"^(?:FAILED|ERROR) (tests/\S.*?)(?: - .*)?$", out, re.MULTILINE)
    return told or [f"pytest ends with status {process.returncode}: {(err or out).strip().splitlines()[-1][:100]}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
