"""Running what is not done yet, in this process: claim a group of runs, train it as one population, record how each ended.

The same call again does nothing twice. Runs whose process died are taken over, and those that were stopped are resumed.
A run that fails leaves its traceback and its reason, and the rest goes on.
"""

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attnjax.sweep import inventory, manifest, status
from attnjax.sweep.control import Event, Progress, Train, read_manifest
from attnjax.sweep.lease import Lease, claim, look
from attnjax.sweep.owner import PATIENCE, Owner, Watch
from attnjax.sweep.plan import groups
from attnjax.sweep.population import Context, Job, train_group
from attnjax.sweep.stop import Stop, on_signals
from attnjax.sweep.store import Entry, Store, config_text, read_config

POLL = 0.1
"""Seconds between looks at leases of other machines."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """How runs are executed.

    Args:
      fail_fast: stop at the first failure, instead of going on with the rest.
      population: most runs that train together; None: all with equal shapes.
      patience: seconds without heartbeat after which a worker of another machine counts as dead.
      attempts: deaths of a worker in a row, without progress between them, after which a run counts as failed.
    """

    fail_fast: bool = False
    population: int | None = None
    patience: float = PATIENCE
    attempts: int = 5


DEFAULT = Rules()


@dataclasses.dataclass(frozen=True)
class Summary:
    """How every run stands, and which of them had ended before and were left alone."""

    states: Mapping[str, str]
    skipped: tuple[str, ...]

    def of(self, state: str) -> list[str]:
        """The runs in a state: done, failed, preempted, pending, running (elsewhere) or damaged."""
        return [run for run, found in self.states.items() if found == state]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in Counter(self.states.values()).items())
        return f"{len(self.states)} runs: {counts}" + (f"; {len(self.skipped)} of them before" if self.skipped else "")


def run_here(
    store: Store, train: Train, rules: Rules = DEFAULT, *, progress: Progress | None = None, stop: Stop | None = None
) -> Summary:
    """Train all runs of a sweep that have not ended, in this process; SIGTERM and Ctrl-C stop at the next step."""
    stop = Stop() if stop is None else stop
    before = states(store)
    with on_signals(stop):
        work(store, train, rules, progress or (lambda event: None), stop)
    return summarise(store, before)


def work(store: Store, train: Train, rules: Rules, progress: Progress, stop: Stop) -> None:
    """Claim groups of runs and train them until none is left that nobody has. Called by every worker."""
    watch = Watch(rules.patience)
    waiting = groups(store.runs, key=lambda entry: entry.group, limit=rules.population)
    waiting = [group for group in waiting if any(_open(store, group))]
    machine = manifest.of_machine() if waiting else {}
    while waiting and not stop.reason:
        left, idle = [], True
        for group in waiting:
            theirs, jobs = ([], []) if stop.reason else _claimed(store, group, watch, rules, progress)
            left += [theirs] if theirs else []
            if jobs:
                idle = False
                _train(jobs, Context(train, progress, stop, machine, store.protocol, rules.patience / 6), rules)
        if idle and (not watch.undecided() or stop.wait(POLL)):
            return
        waiting = left


def retry(store: Store) -> list[str]:
    """Make failed runs pending again, and say which."""
    again = []
    for entry in store.runs:
        if _state(store, entry.run) != "failed":
            continue
        directory = store.directory(entry.run)
        if isinstance(lease := claim(directory, Watch()), Lease):
            if _state(store, entry.run) == "failed":
                status.write(directory, status.Status("pending", status.read(directory).step, "tried again"))
                again.append(entry.run)
            lease.release()
    return again


def states(store: Store) -> dict[str, str]:
    """How each run stands on the disk; "damaged" also where the records of an ended one are not those of its end."""
    found = {entry.run: _state(store, entry.run) for entry in store.runs}
    return {run: "damaged" if _differs(store, run, state) else state for run, state in found.items()}


def summarise(store: Store, before: Mapping[str, str]) -> Summary:
    """How all runs stand, given how they stood before."""
    after = states(store)
    skipped = [run for run, state in after.items() if state in status.FINAL and before.get(run) == state]
    return Summary(after, tuple(skipped))


def _train(jobs: list[Job], context: Context, rules: Rules) -> None:
    try:
        failed = [] if context.stop.reason else train_group(jobs, context)
    finally:
        for job in jobs:
            job.lease.release()
    if failed and rules.fail_fast:
        context.stop.set(f"run {failed[0]} failed")


def _claimed(
    store: Store, group: Sequence[Entry], watch: Watch, rules: Rules, progress: Progress
) -> tuple[list[Entry], list[Job]]:
    """Leases of the group's open runs, and the runs that others have. Who loses the first leaves the rest to the winner."""
    theirs: list[Entry] = []
    jobs: list[Job] = []
    try:
        for entry, directory in _open(store, group):
            step = status.read(directory).step
            found = claim(directory, watch, step) if jobs or not theirs else look(directory, watch)
            if isinstance(found, Owner):
                theirs.append(entry)
            elif job := _job(entry, directory, found, rules, progress):
                jobs.append(job)
    except OSError as error:
        for job in jobs:
            job.lease.release()
        raise ValueError(f"results cannot be written to {store.root}: {error.strerror or error}") from error
    return theirs, jobs


def _open(store: Store, group: Sequence[Entry]) -> Iterator[tuple[Entry, pathlib.Path]]:
    for entry in group:
        if _state(store, entry.run) not in (*status.FINAL, "damaged"):
            yield entry, store.directory(entry.run)


def _job(entry: Entry, directory: pathlib.Path, lease: Lease, rules: Rules, progress: Progress) -> Job | None:
    """What to train, now that the run is ours; None where it ended in the meantime, or kills its workers."""
    now = status.read(directory)
    if now.state in status.FINAL:
        lease.release()
        return None
    if lease.owner.attempt > rules.attempts:
        deaths = lease.owner.attempt - 1
        reason = f"its worker died {deaths} times in a row at step {now.step}: killed, or out of memory?"
        status.write(directory, status.Status("failed", now.step, reason))
        progress(Event(entry.run, "failed", now.step, {}, reason))
        lease.release()
        return None
    try:
        return Job(directory, read_config(directory), lease, now)
    except ValueError as error:  # written by a version whose configs this one does not take
        progress(Event(entry.run, "damaged", now.step, {}, str(error)))
        lease.release()
        return None


def _differs(store: Store, run: str, state: str) -> bool:
    if state not in status.FINAL:
        return False
    directory = store.directory(run)
    return bool(inventory.differences(directory, state, read_manifest(directory)))


def _state(store: Store, run: str) -> str:
    """The state of a run, "damaged" where its folder, its status or its config cannot be trusted."""
    try:
        directory = store.directory(run)
        config_text(directory)
        return status.read(directory).state
    except (ValueError, OSError):
        return "damaged"
