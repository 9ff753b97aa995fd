"""An attempt at a run: a folder of its own, from the copy of the attempt before it to the result.

    <run>/attempt-0002-1f3b90aa/    checkpoints and records that one process writes
    <run>/result/                   the attempt with which the run ended, moved there by one rename: the first wins

A training function gets the folders of attempts, and a `RunContext` that takes their records and says when to stop:

    def train(configs: list[RunConfig], directories: list[Path], context: RunContext) -> None

The configs differ only in the fields of `plan.VARIES_INSIDE`. The function resumes from `directory / "checkpoints"`, in which
the name of a checkpoint is its step, calls `truncate_after` with the step it resumed from and `step` after every step or few,
saves and returns soon after `stopping()` is not "", calls `fail` where one run of several must end, and raises where all must.
Returning without having been asked to stop means that every run is done.
"""

import dataclasses
import errno
import math
import os
import pathlib
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnjax import safety
from attnjax.config import SCHEMA, RunConfig
from attnjax.config.mesh import ONE_DEVICE, MeshShape
from attnjax.records import files, jsonl, status
from attnjax.records.runs import ATTEMPT, EXAMPLES, MANIFEST, RESULT, folder_of, read_manifest
from attnjax.sweep import claim, manifest
from attnjax.sweep.outcome import Stop

ByKey = Mapping[tuple[str, int, str], Any]
"""Arrays by split, length and metric; no type of NumPy, which commands that train nothing do not import."""
STEP = re.compile(r"0|[1-9][0-9]{0,17}")
"""Names of checkpoints."""
OWN = re.compile(rf"\..*|{re.escape(status.FILE)}|traceback\.txt")
"""What a new attempt does not take over from the one before it; nor saves that were not finished."""
UNFINISHED = re.compile(r"partial-.*|.*\.tmp")
QUIET = 2.0
"""Seconds between two writings of a running status."""


def next_token(run: pathlib.Path) -> str:
    """Return the name of the next attempt at a run: a number, by which attempts are ordered, and a random word."""
    numbers = [int(path.name.split("-")[1]) for path in run.glob(f"{ATTEMPT}[0-9]*-*")]
    return f"{max(numbers, default=0) + 1:04d}-{secrets.token_hex(4)}"


def begin(run: pathlib.Path, token: str) -> pathlib.Path:
    """Make the folder of a new attempt, as a copy of the newest one: files in subfolders, which never change, by hard links.

    Raises OSError where the disk refuses, ValueError where there is a link in the folder of the newest one.
    """
    source, made = folder_of(run), run / f".{ATTEMPT}{token}.tmp"
    made.mkdir()
    if source.is_dir():
        _copy(source, made)
    return made.rename(run / f"{ATTEMPT}{token}")


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    for path in safety.files(source):
        parts = path.relative_to(source).parts
        if OWN.fullmatch(parts[0]) or any(UNFINISHED.fullmatch(part) for part in parts):
            continue
        new = target.joinpath(*parts)
        if len(parts) == 1:
            safety.write(new, safety.read(path, jsonl.LARGEST), durable=False)
            continue
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, new)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, new)


def newest_step(folder: pathlib.Path) -> int:
    """Return the step of the newest checkpoint in the folder of an attempt; 0 where there is none."""
    try:
        return max((int(name) for name in os.listdir(folder / "checkpoints") if STEP.fullmatch(name)), default=0)
    except OSError:
        return 0


def publish(attempt: pathlib.Path) -> bool:
    """Make an attempt the result of its run, and delete all others; False where another one is the result already.

    Raises OSError where the disk refuses.
    """
    run, first = attempt.parent, True
    try:
        os.rename(attempt, run / RESULT)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        first = False
    forget_others(run)
    safety.sync(run)
    return first


def forget_others(run: pathlib.Path, kept: pathlib.Path | None = None) -> None:
    """Delete all attempts at a run but one, and what killed processes left unfinished."""
    for path in run.iterdir():
        if path.name.startswith((ATTEMPT, f".{ATTEMPT}", f".{claim.FILE}-")) and path != kept:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def reopen(run: pathlib.Path) -> None:
    """Make a run that has ended pending again: its result becomes an attempt, from which the next one goes on."""
    folder = folder_of(run)
    if folder.name == RESULT:
        folder = folder.rename(run / f"{ATTEMPT}{next_token(run)}")
    status.write(folder, status.Status("pending", status.read(folder).step, "tried again"))


Train = Callable[[list[RunConfig], list[pathlib.Path], "RunContext"], None]
"""A training function, see the text of the module."""


@dataclasses.dataclass
class Live:
    """The state of a run in training."""

    step: int
    state: str = "running"
    reason: str = ""
    resumed: int = 0
    written: float = -math.inf
    seen: set[str] = dataclasses.field(default_factory=set)


class RunContext:
    """Takes the records of a training function, and says when to stop. Methods take the folder of an attempt.

    Args:
      steps: how far each attempt is, by its folder.
      stop: asks to stop at the next step.
      mesh: the devices to train on.
    """

    def __init__(self, steps: Mapping[pathlib.Path, int], stop: Stop, mesh: MeshShape = ONE_DEVICE):
        self.mesh = mesh
        self.live = {directory: Live(step) for directory, step in steps.items()}
        self._stop = stop

    def stopping(self) -> str:
        """Return why to save and return at this step, as "SIGTERM"; "" while training should go on."""
        return self._stop.reason

    def stop(self, reason: str) -> None:
        """Ask for a stop: another process that trains these runs too is asked to."""
        self._stop.set(reason)

    def step(self, directory: pathlib.Path, step: int) -> None:
        """Say that the run has done `step` steps."""
        live = self.live[directory]
        live.step = int(step)
        if time.monotonic() - live.written >= QUIET:
            live.written = time.monotonic()
            status.write(directory, status.Status("running", live.step))

    def metrics(self, directory: pathlib.Path, record: Mapping[str, Any]) -> None:
        """Append one line, {"step": 100, "loss": ...}, to the training log."""
        jsonl.append(directory / jsonl.METRICS, record)

    def results(self, directory: pathlib.Path, *found: Mapping[str, Any]) -> None:
        """Append evaluations, {"step", "length", "metric", "value", "count", "split"}; what is there is not repeated."""
        seen = self.live[directory].seen
        new = {name: record for record in found if (name := jsonl.identity(record)) not in seen}
        if new:
            run = directory.parent.name
            jsonl.append(directory / jsonl.RESULTS, *({"run": run, **record} for record in new.values()))
            seen |= new.keys()

    def examples(self, directory: pathlib.Path, step: int, scores: ByKey) -> None:
        """Write the scores of single examples, of the evaluation at the end; see `attnjax.records.examples`."""
        from attnjax.records import examples

        examples.write(directory, examples.Examples(int(step), scores))

    def truncate_after(self, directory: pathlib.Path, step: int) -> None:
        """Forget the training log and the evaluations after `step`, from which training resumes, and damaged lines.

        Raises OSError or ValueError where a file cannot be read.
        """
        live, run = self.live[directory], directory.parent.name
        live.step = live.resumed = int(step)
        if step == 0:  # nothing is left of the parts before
            update_manifest(directory, {"changed_on_resume": []})
        for name in jsonl.FILES:
            jsonl.keep(directory / name, lambda record: record.get("run", run) == run and record.get("step", 0) <= step)
        live.seen = {jsonl.identity(record) for record in jsonl.read(directory / jsonl.RESULTS).rows}
        (directory / EXAMPLES).unlink(missing_ok=True)  # the evaluation at the end, which is due again, writes it

    def log_manifest(self, directory: pathlib.Path, **fields: Any) -> None:
        """Add fields to the manifest: parameter count, chance levels, hashes of data and parameters."""
        update_manifest(directory, fields)

    def fail(self, directory: pathlib.Path, step: int, reason: str) -> None:
        """Say that this run has failed at `step`, for example with NaN; the other members of the population continue."""
        live = self.live[directory]
        live.step, live.state, live.reason = int(step), "failed", reason

    def running(self) -> Sequence[pathlib.Path]:
        """Return the attempts that have not ended."""
        return [directory for directory, live in self.live.items() if live.state == "running"]


def update_manifest(attempt: pathlib.Path, fields: Mapping[str, Any], *, durable: bool = False) -> None:
    """Merge fields into the manifest of an attempt, and name those in which it differs from the parts of the run before.

    A damaged manifest is begun anew. Raises OSError where it cannot be written.
    """
    old = read_manifest(attempt)
    new = {**old, "changed_on_resume": manifest.changed(old, fields), **fields, "schema": SCHEMA}
    files.write_table(attempt / MANIFEST, new, durable=durable)
