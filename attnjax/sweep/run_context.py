"""The run context that a training function gets beside configs and folders: when to stop, and where records go.

    def train(configs: list[RunConfig], directories: list[Path], context: RunContext) -> None

The configs differ only in the fields of `plan.VARIES_INSIDE`. The function resumes from `directory / "checkpoints"`, in which
the name of a checkpoint is its step (a run whose processes die again and again without a newer one is given up), calls
`truncate_after` with the step it resumed from and `step` after every step or few, saves and returns soon after `stopping()`
is not "", calls `fail` where one run of several must end, and raises where all must. Returning without having been asked to
stop means that every run is done.
"""

import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from attnjax.config import SCHEMA, RunConfig
from attnjax.config.mesh import ONE_DEVICE, MeshShape
from attnjax.folder import enter
from attnjax.records import files, inventory, jsonl, status
from attnjax.records.runs import MANIFEST, read_manifest
from attnjax.sweep import manifest
from attnjax.sweep.stop import Stop

ByKey = Mapping[tuple[str, int, str], Any]
"""Arrays by split, length and metric; no type of NumPy, which commands that train nothing do not import."""
QUIET = 2.0
"""Seconds between two writings of a running status."""


UNWRITTEN = "unwritten"
"""The state in an event about a run whose lease, beginning or end could not be written: on the disk it has not ended."""


class Event(NamedTuple):
    """News of one run: its state, step, and numbers such as loss. `reason` says why it ended, or why it is said to hang."""

    run: str
    state: str
    step: int
    numbers: Mapping[str, Any]
    reason: str = ""


class LostLeaseError(Exception):
    """Another process has the run by now: this one writes nothing more about it, not even how it ended here."""


Progress = Callable[[Event], None]


class Train(Protocol):
    """A training function, see the module's text."""

    def __call__(self, configs: list[RunConfig], directories: list[pathlib.Path], context: "RunContext") -> None: ...


@dataclasses.dataclass
class Live:
    """The state of a run in training."""

    step: int
    state: str = "running"
    reason: str = ""
    resumed: int = 0
    written: float = -math.inf
    seen: set[str] | None = None


class RunContext:
    """See the module's text. Every method takes the run's folder, as handed to the training function; `mesh` says on how many
    devices to train. `held` says whether this process still holds the run. Every method that writes asks it first, and raises
    `LostLeaseError` where it does not: a process that was suspended for longer than others wait may wake at any line.
    """

    def __init__(
        self,
        runs: Mapping[pathlib.Path, int],
        stop: Stop,
        progress: Progress,
        alive: Callable[[], None] = lambda: None,
        mesh: MeshShape = ONE_DEVICE,
        held: Callable[[pathlib.Path], bool] = lambda directory: True,
    ):
        self.mesh, self._held = mesh, held
        self.live = {directory: Live(step) for directory, step in runs.items()}
        self._stop, self._progress, self._alive = stop, progress, alive

    def stopping(self) -> str:
        """Why to save and return at this step, as "SIGTERM"; "" while training should go on."""
        return self._stop.reason

    def stop(self, reason: str) -> None:
        """Another process that trains these runs too is asked to stop."""
        self._stop.set(reason)

    def holds(self, directory: pathlib.Path) -> bool:
        """Whether this process may still write into the folder; where another has taken it over, training is asked to stop."""
        held = self._held(directory)
        if not held:
            self._stop.set(f"the lease of {directory.name} was taken over")
        return held

    def check(self, directory: pathlib.Path) -> None:
        """Called before each write. Raises LostLeaseError where `holds` is false, OSError where that cannot be read."""
        if not self.holds(directory):
            raise LostLeaseError(self._stop.reason)

    def step(self, directory: pathlib.Path, step: int, **numbers: float) -> None:
        """The run has done `step` steps; `numbers` are for the display."""
        self._alive()
        live = self.live[directory]
        live.step = int(step)
        if time.monotonic() - live.written >= QUIET:
            self.check(directory)
            live.written = time.monotonic()
            status.write(directory, status.Status("running", live.step))
        self._progress(Event(directory.name, "running", live.step, numbers))

    def metrics(self, directory: pathlib.Path, record: Mapping[str, Any]) -> None:
        """Append one line, {"step": 100, "loss": ...}, to the training log."""
        self._alive()
        self.check(directory)
        jsonl.append(directory / jsonl.METRICS, record)

    def results(self, directory: pathlib.Path, *found: Mapping[str, Any]) -> None:
        """Append evaluations, {"step", "length", "metric", "value", "count", "split"}; what is there is not repeated."""
        self._alive()
        live, path = self.live[directory], directory / jsonl.RESULTS
        if live.seen is None:
            there = (line.table for line in jsonl.each(path, current=True))
            live.seen = {jsonl.identity(table) for table in there if table is not None}
        new = {jsonl.identity(record): record for record in found}
        new = {name: {"run": directory.name, **record} for name, record in new.items() if name not in live.seen}
        if new:
            self.check(directory)
            jsonl.append(path, *new.values())
            live.seen |= new.keys()

    def examples(self, directory: pathlib.Path, step: int, scores: ByKey, by_position: ByKey) -> None:
        """Write the scores of single examples and positions, of the evaluation at the end; see `attnjax.records.examples`."""
        from attnjax.records import examples

        self._alive()
        self.check(directory)
        examples.write(directory, examples.Examples(int(step), scores, by_position))

    def truncate_after(self, directory: pathlib.Path, step: int) -> None:
        """Forget the training log and the evaluations after `step`, from which training resumes; also damaged lines, and those
        of other runs.

        The other lines stay as they are. Raises OSError or ValueError, and changes nothing, where a file cannot be read.
        """
        self._alive()
        self.check(directory)
        live = self.live[directory]
        live.step, live.resumed, live.seen = int(step), int(step), None
        if step == 0 and read_manifest(directory).get("changed_on_resume"):  # of parts of which nothing is left
            update_manifest(directory, {"changed_on_resume": []})
        for name in jsonl.FILES:
            self.check(directory)
            jsonl.keep(directory / name, lambda record: _is_of(record, directory.name) and _step_of(record) <= step)
        self.check(directory)
        with enter(directory) as folder:
            if folder.kind(inventory.EXAMPLES):
                folder.remove(inventory.EXAMPLES)  # the evaluation at the end, which is due again, writes it

    def log_manifest(self, directory: pathlib.Path, **fields: Any) -> None:
        """Add fields to the run's manifest: parameter count, chance levels, hashes of data and parameters.

        What is not as before in a run that goes on is told at once, since this part may be killed.
        """
        self._alive()
        self.check(directory)
        old = read_manifest(directory)
        if self.live[directory].resumed > 0:
            fields["changed_on_resume"] = manifest.changed(old, {**old, **fields})
        update_manifest(directory, fields)

    def fail(self, directory: pathlib.Path, step: int, reason: str) -> None:
        """This run has failed at `step`, for example with NaN; the other members of the population continue."""
        live = self.live[directory]
        live.step, live.state, live.reason = int(step), "failed", reason

    def done(self, directory: pathlib.Path, step: int) -> None:
        """This run is complete, whatever happens to the others. Needed only when returning after `stopping()`."""
        live = self.live[directory]
        live.step, live.state = int(step), "done"

    def running(self) -> Sequence[pathlib.Path]:
        """The runs that have not ended."""
        return [directory for directory, live in self.live.items() if live.state == "running"]


def update_manifest(directory: pathlib.Path, fields: Mapping[str, Any], *, durable: bool = False) -> dict[str, Any]:
    """Merge fields into a run's manifest; a damaged one is begun anew. Returns it. `durable`: it is on the disk by then.

    Raises OSError where it cannot be read or written.
    """
    path = directory / MANIFEST
    table = {**read_manifest(directory), **fields, "schema": SCHEMA}
    files.write_table(path, table, durable=durable)
    return table


def _is_of(record: Mapping[str, Any], run: str) -> bool:
    """Whether a record is of this run: somebody may have put the file of another in its place."""
    return record.get("run", run) == run


def _step_of(record: Mapping[str, Any]) -> float:
    step = record.get("step")
    return step if isinstance(step, int | float) else float("-inf")
