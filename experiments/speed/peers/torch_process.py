"""Our end of the line to `torch_worker.py`, which runs PyTorch in an environment of its own.

    with TorchPeer(python) as peer:
        peer.prepare({"kind": "sdpa", "backward": False}, {"q": q, "k": k, "v": v})
        seconds = peer.run()

A worker that dies, says nothing for too long, or answers what is no answer is ended, and told of by a `PeerError`.
"""

import contextlib
import functools
import json
import math
import os
import pathlib
import queue
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from experiments.speed.harness import Settings
from experiments.speed.suites import SUITES

WORKER = pathlib.Path(__file__).with_name("torch_worker.py")
TAIL = 1500
"""Characters of a dead worker's last words."""


class PeerError(RuntimeError):
    """What the worker could not do, or what became of it."""


class TorchPeer:
    """A worker process that holds one prepared case at a time. A context manager: on leaving it the process ends.

    `python`: the interpreter of the other environment. `timeout`: seconds that one answer may take, compilation included.
    Raises PeerError where the process cannot be started.
    """

    def __init__(self, python: pathlib.Path, *, worker: pathlib.Path = WORKER, timeout: float = 900.0):
        self._timeout, self._ended = timeout, False
        self._folder = tempfile.TemporaryDirectory(prefix="attnjax-bench-")
        self._place = pathlib.Path(self._folder.name)
        self._log = self._place / "worker.txt"
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        try:
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    [str(python), "-I", str(worker)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment(),
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,  # Ctrl-C is for us, and we end the worker
                )
        except OSError as error:
            self._folder.cleanup()
            raise PeerError(f"{python} cannot be started: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._lines = self._process.stdin, self._process.stdout
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # whoever is interrupted does not wait for a run to end
            self._end()
        self.close()

    def versions(self) -> dict[str, Any]:
        """Versions of Python, torch, x-transformers and NumPy over there; threads, and vector instructions in use."""
        return self._ask({"op": "hello"})

    def prepare(self, case: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Build a case, see `torch_worker`, and run it once; returns what the worker says about it.

        Raises PeerError with the worker's words where it cannot; the worker then waits for another case.
        """
        self._check()
        path = self._place / "arrays.npz"
        named: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
        np.savez(path, **named)
        return self._ask({"op": "prepare", "case": case, "arrays": str(path)})

    def run(self) -> float:
        """Run the prepared case; its seconds are taken by the worker, so that they hold nothing of the line between us."""
        seconds = self._ask({"op": "run"}).get("seconds")
        if not isinstance(seconds, float) or not 0 < seconds < math.inf:
            raise PeerError(f"the worker's seconds must be a positive number, got {seconds!r}")
        return seconds

    def results(self) -> dict[str, np.ndarray]:
        """What the prepared case returned when it last ran."""
        path = self._place / "results.npz"
        self._ask({"op": "result", "path": str(path)})
        try:
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (OSError, ValueError) as error:
            raise PeerError(f"the worker wrote no results that can be read: {error}") from error

    def close(self) -> None:
        """End the worker, and remove the files between us. May be called again."""
        if not self._ended:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._send({"op": "quit"})
                self._process.wait(timeout=5)
        self._end()
        self._folder.cleanup()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._check()
        with contextlib.suppress(OSError):  # of a worker that is dead: its end is found below
            self._send(request)
        try:
            line = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            raise self._lost(f"did not answer {request['op']!r} within {self._timeout:g} s") from None
        if line is None:
            raise self._lost(f"ended during {request['op']!r}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._lost(f"answered {request['op']!r} by what is no answer, {line.rstrip()[:200]!r}")
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer

    def _check(self) -> None:
        if self._ended:
            raise PeerError("the worker has ended")

    def _send(self, request: dict[str, Any]) -> None:
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()

    def _listen(self) -> None:
        for line in self._lines:
            self._answers.put(line)
        self._answers.put(None)

    def _lost(self, what: str) -> PeerError:
        """End a worker that cannot be trusted any more; the error to raise, with its last words."""
        self._end()
        said = self._log.read_text(encoding="utf-8", errors="replace")[-TAIL:].strip()
        return PeerError(f"the worker {what}" + (f". It said:\n{said}" if said else ""))

    def _end(self) -> None:
        self._ended = True
        self._process.kill()
        self._process.wait()
        self._listener.join(timeout=5)
        for pipe in (self._requests, self._lines):
            with contextlib.suppress(OSError):
                pipe.close()


def beside_torch(measure: Callable[[Settings, TorchPeer, dict[str, Any]], None]) -> Callable[[Settings], None]:
    """The suite that gives `measure` a worker and its versions; a line in its place where there is no such environment."""
    name = measure.__name__

    @functools.wraps(measure)
    def suite(settings: Settings) -> None:
        package = SUITES[name].needs
        if settings.torch is None:
            settings.say(
                f"{name}: left out, because it needs {package}: `python -m venv torch && torch/bin/pip install torch numpy "
                f"{package}` makes an environment (a CPU build is enough), and `--torch torch/bin/python` names it"
            )
            return
        with TorchPeer(settings.torch) as peer:
            known = peer.versions()
            if known.get(package) is None:
                settings.say(f"{name}: left out, because that environment has no {package}")
            else:
                measure(settings, peer, known)

    return suite


def environment() -> dict[str, str]:
    """The worker's environment. It may use all cores of ours, but must not hold on to them when it has nothing to do.

    After a parallel loop the threads of OpenMP wait for the next one without sleeping, by default for 4 to 9 ms (GNU, as
    measured) or 200 (Intel, LLVM). Here it is at most 0.4 ms (measured) or 1: long enough for the loops of one call, which
    would be slower if each had to wake the threads, and over before the worker answers. Compilation happens in the worker
    itself, so that no process outlives it.
    """
    threads = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    mine = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    waits = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
    return {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | mine | waits


def first_words(error: PeerError) -> str:
    """The first line of an error, without paths: short enough for a note that is published."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return re.sub(r"\S*[/\\]\S*", "...", line)[:200]
