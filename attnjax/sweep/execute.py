"""Trains the open runs of a sweep in this process: claims a group of runs, trains it as one population, records the ends.

The same call again does nothing twice. Runs whose process died are taken over, and those that were stopped are resumed.
A run that fails leaves its traceback and its reason, and the other runs continue. Runs train together where none of them is
thrown back to an earlier step by another (`_parts`).
"""

import contextlib
import dataclasses
import pathlib
import re
import time
from collections.abc import Collection, Iterator, Sequence

from attnjax.config.mesh import parse_mesh
from attnjax.config.outside import import_modules
from attnjax.folder import enter
from attnjax.records import inventory, status
from attnjax.records.runs import config_table, read_config, read_manifest
from attnjax.sweep import manifest
from attnjax.sweep.lease import PATIENCE, Lease, Owner, Watch, claim, holder, observe
from attnjax.sweep.plan import groups
from attnjax.sweep.population import Context, Job, train_group
from attnjax.sweep.run_context import UNWRITTEN, Event, Progress, Train
from attnjax.sweep.stop import Stop, on_signals
from attnjax.sweep.store import Entry, Store
from attnjax.sweep.summary import Ledger, Summary, summarise
from attnjax.sweep.watchdog import watchdog

STEP = re.compile(r"0|[1-9][0-9]{0,17}")
"""Names of checkpoints."""
POLL = 0.1
"""Seconds between looks at leases of other machines."""
LONG_POLL = 1.0
"""Seconds between looks at runs that others train, and that are waited for."""


@dataclasses.dataclass(frozen=True)
class ExecutionConfig:
    """How runs are executed.

    Args:
      fail_fast: stop at the first failure, instead of going on with the rest.
      population: most runs that train together; None: all with equal shapes.
      patience: seconds without heartbeat after which a worker of another machine counts as dead.
      attempts: deaths of a worker in a row, without a new checkpoint between them, after which a run counts as failed.
      wait: stay until the runs that other processes train have ended, and take over those whose process dies.
      stall: seconds without a step or other progress of a run after which the stacks of all threads are written.
      imports: classes of other projects that the runs name, whose modules are imported before the first run.
      mesh: the devices that a population is spread over, as `attnjax.config.mesh` writes it; "": one device.
    """

    fail_fast: bool = False
    population: int | None = None
    patience: float = PATIENCE
    attempts: int = 5
    wait: bool = False
    stall: float = 600.0
    imports: tuple[str, ...] = ()
    mesh: str = ""


DEFAULT = ExecutionConfig()


def run_here(
    store: Store,
    train: Train,
    execution: ExecutionConfig = DEFAULT,
    *,
    progress: Progress | None = None,
    stop: Stop | None = None,
    warnings: Sequence[int] = (),
) -> Summary:
    """Train all runs of a sweep that have not ended, in this process; SIGTERM and Ctrl-C stop at the next step, and so do the
    signals of `warnings`, see `stop.on_signals`.
    """
    stop = Stop() if stop is None else stop
    before, ledger = statuses(store), Ledger(progress)
    with on_signals(stop, warnings=warnings):
        work(store, train, execution, ledger, stop)
    return summarise(store, before, states(store), ledger)


def work(store: Store, train: Train, execution: ExecutionConfig, progress: Progress, stop: Stop, log: str = "") -> None:
    """Claim groups of runs and train them until none is left that nobody has. Called by every worker.

    Args:
      store: the sweep.
      train: the training function.
      execution: how runs are executed.
      progress: called with every event.
      stop: asks to stop at the next step.
      log: the file that standard error is written to, for the stacks of a run that hangs; "": they get their own file.
    """
    watch = Watch(execution.patience)
    waiting = groups(store.runs, key=lambda entry: entry.group, limit=execution.population)
    if not is_open(store):
        return
    import_modules(execution.imports)
    with watchdog(store.root, execution.stall, log) as dog:
        machine, mesh = manifest.of_machine(), parse_mesh(execution.mesh)
        context = Context(train, progress, stop, machine, dog, store.protocol, execution.patience / 6, mesh)
        while waiting and not stop.reason:
            left, idle = [], True
            for group in waiting:
                parts, of_others = _parts(store, group, execution.attempts), set()
                while parts and not stop.reason:
                    theirs, jobs = _claimed(store, parts.pop(0), watch, execution, progress)
                    of_others |= {entry.run for entry in theirs}
                    if jobs:
                        idle = False
                        _train(jobs, context, execution)
                        # That may have taken hours, in which others have trained some of the rest.
                        rest = {entry.run for part in parts for entry in part}
                        parts = _parts(store, _among(group, rest), execution.attempts)
                left += [_among(group, of_others)] if of_others else []
            # Runs that ended are looked at no more, so that nothing would be heard of their owners again.
            watch.keep({store.directory(entry.run) for group in left for entry in group})
            if idle and not _wait(watch, execution, stop):
                return
            waiting = left


def _parts(store: Store, group: Sequence[Entry], attempts: int) -> list[list[Entry]]:
    """The open runs of a group in parts that train together, so that none is thrown back to an earlier step by another.

    Runs that were trained together last stay together: where their process died amid a save some of them lack the newest
    checkpoint, and those that have fitted their task have an older one. Others join each other where all have the same newest
    checkpoint, or none. A run on its last attempt is alone: the population may be what no memory holds.
    """
    if len(group) < 2:
        return [list(group)] if group else []
    there = [*_open(store, group)]
    kinds = {entry.run: entry.run for entry, *_ in there}
    populations: dict[str, dict[str, tuple[list[int], int]]] = {}
    for entry, directory, step in there:
        with contextlib.suppress(OSError, ValueError):  # one that cannot be read is alone too
            steps = _checkpoints(directory)
            if not _is_last_attempt(directory, max(steps, default=0), attempts):
                populations.setdefault(_last_population(directory, entry.run), {})[entry.run] = steps, step
    for name, members in populations.items():
        newest = max(saved for steps, _ in members.values() for saved in (0, *steps))
        alike = all(newest in (0, *steps) for steps, _ in members.values())
        begun = newest > 0 or any(step for _, step in members.values())
        kinds |= dict.fromkeys(members, f"from {newest}, {begun}" if alike else name)
    return groups([entry for entry, *_ in there], key=lambda entry: kinds[entry.run])


def _among(group: Sequence[Entry], runs: Collection[str]) -> list[Entry]:
    return [entry for entry in group if entry.run in runs]


def _last_population(directory: pathlib.Path, run: str) -> str:
    """The runs that this one was trained with last; itself alone where it was not, or failed, and is tried again."""
    found = read_manifest(directory)
    names = found.get("population") if found.get("state") in ("running", "preempted") else None
    return f"with {names or [run]}"


def _is_last_attempt(directory: pathlib.Path, saved: int, attempts: int) -> bool:
    """Whether its workers died in a row, so often that it is given up if the next one dies too; see `lease.claim`."""
    owner = holder(directory)
    return owner is not None and not owner.released and saved <= owner.step and owner.attempt + 1 >= attempts


def _saved(directory: pathlib.Path) -> int:
    """The step of the newest checkpoint; 0 where there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        return max(_checkpoints(directory), default=0)
    return 0


def _checkpoints(directory: pathlib.Path) -> list[int]:
    """The steps of a run that a training function may resume from."""
    with enter(directory) as run:
        if run.kind("checkpoints") != "folder":
            return []
        with run.enter("checkpoints") as folder:
            return [int(name) for name in folder.names() if STEP.fullmatch(name)]


def _wait(watch: Watch, execution: ExecutionConfig, stop: Stop) -> bool:
    """Wait for other processes for a while; False if there is nothing to wait for."""
    if watch.undecided():
        return not stop.wait(POLL)
    return execution.wait and not stop.wait(LONG_POLL)


def retry(store: Store, patience: float = PATIENCE) -> list[str]:
    """Make failed runs pending again, and return their ids. What a lease says of the end counts for more than a status.

    A run that another process holds is left as it is, once that is known to live; one on another machine of which no heartbeat
    is observed for `patience` seconds is dead.
    """
    watch, again = Watch(patience), set()
    left = [entry.run for entry in store.runs if _state(store, entry.run) == "failed"]
    while left:
        for run in left:
            directory = store.directory(run)
            if isinstance(lease := claim(directory, watch, again=True), Lease):
                if lease.ended != "done" and _state(store, run) == "failed":
                    status.write(directory, status.Status("pending", status.read(directory).step, "tried again"))
                    lease.ended = ""
                    again.add(run)
                lease.release()
        left = [run for run in left if watch.undecided(store.directory(run))]
        time.sleep(POLL if left else 0.0)
    return [entry.run for entry in store.runs if entry.run in again]


def is_open(store: Store) -> bool:
    """Whether a run is left that has not ended. Looks no further than the first."""
    return next(_open(store, store.runs), None) is not None


def statuses(store: Store) -> dict[str, str]:
    """The state of each run as its status alone says; "damaged" where that cannot be read. Quicker than `states`."""
    found = {}
    for entry in store.runs:
        try:
            found[entry.run] = store.status(entry.run).state
        except (ValueError, OSError):
            found[entry.run] = "damaged"
    return found


def states(store: Store) -> dict[str, str]:
    """The state of each run on the disk; "damaged" also if the records of an ended run have changed since."""
    found = {entry.run: _state(store, entry.run) for entry in store.runs}
    return {run: "damaged" if _differs(store, run, state) else state for run, state in found.items()}


def _train(jobs: list[Job], context: Context, execution: ExecutionConfig) -> None:
    try:
        failed = [] if context.stop.reason else train_group(jobs, context)
    finally:
        for job in jobs:
            job.lease.release()
    if failed and execution.fail_fast:
        context.stop.set(f"run {failed[0]} failed")


def _claimed(
    store: Store, group: Sequence[Entry], watch: Watch, execution: ExecutionConfig, progress: Progress
) -> tuple[list[Entry], list[Job]]:
    """Leases of the group's open runs, and the runs that others have. Who loses the first leaves the rest to the winner.

    A run whose lease says that it has ended is neither: its status is an old one, which this machine still sees. One whose
    lease the disk refuses is left as it is and reported: it is neither ours nor anybody else's.
    """
    theirs: list[Entry] = []
    jobs: list[Job] = []
    for entry, directory, step in _open(store, group):
        try:
            found = claim(directory, watch, _saved(directory)) if jobs or not theirs else observe(directory, watch)
            if isinstance(found, Owner):
                theirs += [] if found.ended else [entry]
            elif job := _job(entry, directory, found, execution, progress):
                jobs.append(job)
        except OSError as error:
            reason = f"its lease could not be written: {error.strerror or error}"
            progress(Event(entry.run, UNWRITTEN, step, {}, reason))
    return theirs, jobs


def _open(store: Store, group: Sequence[Entry]) -> Iterator[tuple[Entry, pathlib.Path, int]]:
    """The runs that have not ended and are sound, with folder and step. Of one that has ended its status alone is read."""
    for entry in group:
        try:
            directory = store.directory(entry.run)
            now = status.read(directory)
            if now.state in status.FINAL:
                continue
            config_table(directory)
        except (ValueError, OSError):
            continue
        yield entry, directory, now.step


def _job(
    entry: Entry, directory: pathlib.Path, lease: Lease, execution: ExecutionConfig, progress: Progress
) -> Job | None:
    """What to train, now that the run is ours; None, and the lease released, where there is nothing to train."""
    job = None
    try:
        job = _found(entry, directory, lease, execution, progress)
    finally:
        if job is None:
            lease.release()
    return job


def _found(
    entry: Entry, directory: pathlib.Path, lease: Lease, execution: ExecutionConfig, progress: Progress
) -> Job | None:
    """The same; None where the run ended in the meantime, kills its workers, or cannot be read."""
    now = status.read(directory)
    if now.state in status.FINAL:
        return None
    if lease.owner.attempt > execution.attempts:
        deaths = lease.owner.attempt - 1
        told = f"without a new checkpoint, the last time at step {now.step}: killed, or out of memory?"
        reason = f"its worker died {deaths} times in a row {told}"
        status.write(directory, status.Status("failed", now.step, reason))
        lease.ended = "failed"
        progress(Event(entry.run, "failed", now.step, {}, reason))
        return None
    try:
        return Job(directory, read_config(directory), lease, now)
    except ValueError as error:  # written by a version whose configs this one does not take
        progress(Event(entry.run, "damaged", now.step, {}, str(error)))
        return None


def _differs(store: Store, run: str, state: str) -> bool:
    if state not in status.FINAL:
        return False
    directory = store.directory(run)
    return bool(inventory.differences(directory, state, read_manifest(directory)))


def _state(store: Store, run: str) -> str:
    """The state of a run; "damaged" if its folder, status or config is not sound."""
    try:
        directory = store.directory(run)
        config_table(directory)
        return status.read(directory).state
    except (ValueError, OSError):
        return "damaged"
