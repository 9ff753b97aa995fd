"""A child process that stays warm: it runs one command after another and answers each with a line of JSON.

    python -m tests.fuzz.worker REPLIES        REPLIES is the number of a descriptor to answer on

Each line of its input is {"program": "module:function", "arguments", "folder", "output", "figures"}. The function is called
as `main(arguments)` in that folder, with all that it prints in the file `output`. What escapes it is told, not raised.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import pathlib
import resource
import signal
import sys
import traceback
from typing import Any

MEMORY = 8 * 2**30
LARGEST_FILE = 2**30
PATIENCE = 3.0
"""Seconds after which a lease of another machine counts as dead here; the command line waits for a minute."""


def main() -> None:
    """Serve until the input ends."""
    replies = int(sys.argv[1])
    tasks = os.fdopen(os.dup(0), encoding="utf-8")
    _point(0, os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    _be_patient_for_less()
    for line in tasks:
        os.write(replies, json.dumps(answer(json.loads(line))).encode() + b"\n")


def _point(descriptor: int, path: str, flags: int) -> None:
    """Make a descriptor that of a file."""
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def answer(task: dict[str, Any]) -> dict[str, Any]:
    """Run one task: its exit status (None where an exception escaped), the exception, and the memory it took beyond."""
    os.chdir(task["folder"])
    _point(1, task["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(1, 2)
    before = _peak(reset=True)
    status, escaped = None, ""
    try:
        module, _, name = task["program"].partition(":")
        function = getattr(importlib.import_module(module), name)
        with contextlib.nullcontext() if task["figures"] else _no_figures():
            status = function(task["arguments"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        escaped = traceback.format_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    grown = _peak() - before
    _point(1, os.devnull, os.O_WRONLY)
    os.dup2(1, 2)
    return {"status": status, "escaped": escaped, "grown": grown}


@contextlib.contextmanager
def _no_figures():
    """Reports without their figures, which take seconds and say nothing that the tables do not."""
    build = sys.modules.get("attnjax.report.build") or importlib.import_module("attnjax.report.build")
    drawn = getattr(build, "all_figures", None)
    build.all_figures = lambda *_: iter(())
    try:
        yield
    finally:
        build.all_figures = drawn


def _be_patient_for_less() -> None:
    from attnjax.cli import execution

    made = execution.ExecutionConfig
    execution.ExecutionConfig = lambda **options: made(**{**options, "patience": PATIENCE})


def _peak(*, reset: bool = False) -> int:
    """The most memory resident, in bytes, since the last reset; 0 where the system does not say."""
    try:
        if reset:
            pathlib.Path("/proc/self/clear_refs").write_text("5")
        text = pathlib.Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0


if __name__ == "__main__":
    main()
