"""Says which share of planted bugs the quick tests notice; see README.md.

    python -m tests.planted                       every bug
    python -m tests.planted train attention/ring  the bugs in files whose paths begin so
    python -m tests.planted --measure             after looking anew which test reaches which line
    python -m tests.planted --list                names the bugs and runs nothing

The exit status is 1 where a bug is STALE, or a test that notices one fails without it too.
"""

import argparse
import ast
import os
import pathlib
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent import futures

import coverage

from tests.planted.mutants import Bug, mutants

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KEPT_OUT = (".git", ".venv*", "__pycache__", "runs", ".*_cache", "coverage")
REACHED = ROOT / "build" / "coverage"
"""Which quick test reaches which line of the package."""
PATIENCE = 20
WHOLE = 36_000
"""Seconds of processor time for the tests that noticed bugs, in the end without any bug."""


def main(arguments: Sequence[str]) -> int:
    """Plants the bugs one after another in copies of the checkout, and prints which test notices each."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description="Plant bugs; see which tests notice.")
    parser.add_argument("files", nargs="*", help="how the paths of files below attnjax/ begin; all if none is given")
    parser.add_argument("--list", action="store_true", help="print the bugs and run nothing")
    parser.add_argument("--measure", action="store_true", help="look anew which test reaches which line")
    parser.add_argument("--limit", type=float, default=120, help="seconds of processor time for each bug (120)")
    parser.add_argument("--jobs", type=int, default=2, help="bugs at a time, each in a copy of its own (2)")
    parser.add_argument("--each", type=int, default=3, help="automatic bugs of a folder of the package (3)")
    parser.add_argument("--seed", type=int, default=8, help="draws other automatic bugs (8)")
    options = parser.parse_args(arguments)
    bugs = [*by_hand(ROOT / "attnjax"), *mutants(ROOT / "attnjax", options.seed, options.each)]
    bugs = [bug for bug in bugs if bug.file.startswith(tuple(options.files) or "")]
    if options.list:
        print("\n".join(f"{bug.file}: {bug.kind}: {bug.breaks}{': STALE' * (bug.text is None)}" for bug in bugs))
        return int(any(bug.text is None for bug in bugs))
    if options.measure or not REACHED.exists():
        measure()
    told, unsound = plant(bugs, options.jobs, options.limit)
    stale, missed = told.count("STALE"), sum(one.startswith("MISSED") for one in told)
    count = len(bugs) - stale
    print(
        f"{count - missed} of {count} caught, {len(bugs)} bugs of {len({bug.kind for bug in bugs})} kinds, {stale} STALE"
    )
    print("".join(f"fails without a bug too: {test}\n" for test in unsound), end="")
    return int(bool(stale or unsound))


def by_hand(package: pathlib.Path) -> list[Bug]:
    """Returns the bugs of bugs.toml. Raises SyntaxError where one would be no Python."""
    made = []
    table = tomllib.loads(pathlib.Path(__file__).with_name("bugs.toml").read_text(encoding="utf-8"))
    for file, kind, breaks, right, wrong in table["bugs"]:
        source = path.read_text(encoding="utf-8") if (path := package / file).exists() else ""
        text = source.replace(right, wrong) if source.count(right) == 1 else None
        ast.parse(text or "")
        made.append(Bug(file, kind, breaks, text))
    return made


def measure() -> None:
    """Runs all quick tests once, and keeps which of them reaches which line."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-q", "-p", "no:cacheprovider"]
    command += ["--cov", "--cov-context=test", "--cov-report="]
    REACHED.parent.mkdir(exist_ok=True)
    subprocess.run(command, cwd=ROOT, env={**os.environ, "COVERAGE_FILE": str(REACHED)}, check=True)


def plant(bugs: Sequence[Bug], jobs: int, limit: float) -> tuple[list[str], list[str]]:
    """Returns what became of each bug, and the tests that noticed one and fail without it too."""
    reached, copies = coverage.CoverageData(str(REACHED)), queue.SimpleQueue()
    reached.read()
    with tempfile.TemporaryDirectory() as folder, futures.ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copies.put(copy := pathlib.Path(folder) / str(number) / "attnjax")
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*KEPT_OUT), symlinks=True)

        def one(bug: Bug, stages: list[list[str]]) -> str:
            copy = copies.get()
            try:
                told = "STALE" if bug.text is None else caught(copy, bug, stages, limit)
            finally:
                copies.put(copy)
            print(f"{bug.file}: {bug.kind}: {bug.breaks}: {told}", flush=True)
            return told

        told = list(pool.map(one, bugs, [tests_of(bug, reached) for bug in bugs]))
        found = dict.fromkeys(one.removeprefix("HANGS ") for one in told if "tests/" in one)
        return told, first_failures(copies.get(), list(found), WHOLE) if found else []


def caught(copy: pathlib.Path, bug: Bug, stages: list[list[str]], limit: float) -> str:
    """Returns the first quick test that fails with the bug, or that none did (in the time there was)."""
    source = copy / "attnjax" / bug.file
    sound = source.read_text(encoding="utf-8")
    source.write_text(bug.text or "", encoding="utf-8")
    try:
        for tests in stages:
            if found := tests and first_failures(copy, tests, limit, "-x"):
                return found[0]
    except TimeLimitError as reached:
        return hangs(copy, str(reached), limit) or f"MISSED in {limit:g} s"
    finally:
        source.write_text(sound, encoding="utf-8")
    return "MISSED"


def hangs(copy: pathlib.Path, test: str, limit: float) -> str:
    """Returns that a test alone takes longer than the limit too, or fails in the end; "" where it passes."""
    try:
        return "".join(first_failures(copy, [test], limit)[:1]) if test else ""
    except TimeLimitError:
        return f"HANGS {test}"


def tests_of(bug: Bug, reached: coverage.CoverageData) -> list[list[str]]:
    """Returns the tests for one bug, in the order in which they run.

    First the tests in the folder of the file that reach its line; then those elsewhere; then the files of tests that name
    its module, and the whole folder, because what runs at import or for several tests at once is reached by the first alone.
    """
    path = ROOT / "attnjax" / bug.file
    lines = changed(path.read_text(encoding="utf-8"), bug.text or "")
    contexts = reached.contexts_by_lineno(f"attnjax/{bug.file}")
    tests = sorted({one.rpartition("|")[0] for line in lines for one in contexts.get(line, ()) if one})
    *folders, last = pathlib.PurePath(bug.file).with_suffix("").parts
    stem = folders[0] if folders else last
    folder = f"tests/{stem}"
    near = [test for test in tests if test.startswith(f"{folder}/")]
    name = re.compile(rf"{re.escape('.'.join(['attnjax', *folders]))}(\.{last}\b| import .*\b{last}\b)")
    everything = sorted((ROOT / "tests").rglob("test_*.py"))
    naming = [file for file in everything if name.search(file.read_text(encoding="utf-8"))]
    whole = [*(ROOT / folder).rglob("test_*.py"), *(ROOT / "tests").glob(f"test_{stem}*.py")]
    last_of_all = [str(file.relative_to(ROOT)) for file in dict.fromkeys([*naming, *sorted(whole)])]
    return [near, [test for test in tests if test not in set(near)], last_of_all]


def changed(sound: str, wrong: str) -> range:
    """Returns the numbers of the lines from the start of the first statement that differs to the difference."""
    pairs = zip(sound.splitlines(), [*wrong.splitlines(), *sound.splitlines()])
    line = next((number for number, (one, other) in enumerate(pairs, 1) if one != other), 1)
    nodes = [node for node in ast.walk(ast.parse(sound)) if isinstance(node, ast.stmt)]
    starts = [node.lineno for node in nodes if node.lineno <= line <= (node.end_lineno or line)]
    return range(max(starts, default=line), line + 1)


class TimeLimitError(Exception):
    """Tests took longer than they may; its text is the test that was running."""


def first_failures(copy: pathlib.Path, tests: Sequence[str], limit: float, *more: str) -> list[str]:
    """Returns the quick tests among these that fail.

    Raises TimeLimitError after `limit` seconds of processor time, or `PATIENCE` times as long by the clock.
    """
    listed = copy.parent / "tests.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *more, f"@{listed}"]
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
    if re.search(r"no match in any of|not found: tests", err):  # status 4 is also that of a conftest.py that fails
        raise RuntimeError(f"{REACHED} names tests that are gone: call this with --measure")
    if process.returncode in (0, 5):  # 5: these files have no quick test
        return []
    told = re.findall(r"^(?:FAILED|ERROR) (tests/\S.*?)(?: - .*)?$", out, re.MULTILINE)
    return told or [f"pytest ends with status {process.returncode}: {(err or out).strip().splitlines()[-1][:100]}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
