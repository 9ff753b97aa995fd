"""The parent's side of the worker: start it, ask it, and replace it where it died, hung or has served for long."""

import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
HANG = 60.0
CASES = 200
"""Cases after which a worker is replaced: compiled programs pile up."""
MOST_OUTPUT = 2**20
ALL_RIGHTS = "-dac_override,-dac_read_search"
"""Without these even root obeys the permissions of files that it owns."""


class Reply(NamedTuple):
    """How a command ended: exit status, None where it did not end itself; output; exception; death or hang; memory."""

    status: int | None
    output: str
    escaped: str = ""
    ended: str = ""
    grown: int = 0
    seconds: float = 0.0


class Worker:
    """See the module's text. `home` is a folder for caches and output."""

    def __init__(self, home: pathlib.Path, limit: float = HANG):
        self.home, self.limit = home, limit
        self._process: subprocess.Popen[str] | None = None
        self._served = 0

    def call(
        self, program: str, arguments: Sequence[str], folder: pathlib.Path, *, figures: bool = False, limit: float = 0
    ) -> Reply:
        """Run one command; a worker that does not answer within the limit of seconds is stopped."""
        if self._process is None or self._served >= CASES:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        output, start = self.home / "output.txt", time.monotonic()
        task = {"program": program, "arguments": [*map(str, arguments)], "folder": str(folder), "output": str(output)}
        self._process.stdin.write(json.dumps({**task, "figures": figures}) + "\n")
        self._process.stdin.flush()
        self._served += 1
        line, ended = self._answer(limit or self.limit)
        text = output.read_bytes()[:MOST_OUTPUT].decode("utf-8", "replace") if output.exists() else ""
        seconds = time.monotonic() - start
        if ended:
            return Reply(None, text, "", ended, 0, seconds)
        return Reply(output=text, ended="", seconds=seconds, **json.loads(line))

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            os.close(self._replies)
            self._process, self._served = None, 0

    def _answer(self, limit: float) -> tuple[bytes, str]:
        """The line it answered, or how it ended instead."""
        line, deadline = b"", time.monotonic() + limit
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._replies], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._replies, 2**16) if ready else b""
            line += part
            if not part:
                return b"", self._end(limit, hung=not ready)
        return line, ""

    def _end(self, limit: float, *, hung: bool) -> str:
        """Stop a worker; the stacks of one that hung are in the output."""
        assert self._process is not None
        if hung:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(1.0)
            self.close()
            return f"did not end within {limit:.0f} s"
        status = self._process.wait()
        self.close()
        return f"the process died with {status}"

    def _start(self) -> None:
        self.close()
        self._replies, theirs = os.pipe()
        rights = ["setpriv", "--bounding-set", ALL_RIGHTS] if obeys_permissions() and os.getuid() == 0 else []
        command = [*rights, sys.executable, "-m", "tests.fuzz.worker", str(theirs)]
        log = (self.home / "worker.log").open("a")
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            pass_fds=[theirs],
        )
        os.close(theirs)
        log.close()

    def _environment(self) -> dict[str, str]:
        """Programs are optimised little and kept, since compiling them would take most of the time."""
        keep = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
        keep |= {"JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_COMPILATION_CACHE_DIR": str(self.home / "programs")}
        quick = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "NPROC": "1"}
        quick["XLA_FLAGS"] = "--xla_cpu_parallel_codegen_split_count=1"
        return {**os.environ, **keep, **quick, "HOME": str(self.home), "PYTHONPATH": str(ROOT)}


def obeys_permissions() -> bool:
    """Whether the worker is refused what permissions forbid: root only where `setpriv` can take its rights away."""
    return os.getuid() != 0 or shutil.which("setpriv") is not None
