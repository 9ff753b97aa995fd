"""Trains the open runs of a sweep in this process: claims a group of runs, trains it as one population, publishes the ends.

The same call again does nothing twice. Runs whose process died are taken over, and those that were stopped are resumed. A run
that fails leaves its traceback and its reason, and the other runs go on.
"""

import contextlib
import dataclasses
import importlib
import os
import pathlib
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attnjax.config import RunConfig
from attnjax.config.mesh import ONE_DEVICE, MeshShape, parse_mesh
from attnjax.config.outside import import_modules
from attnjax.records import jsonl, status
from attnjax.records.files import check_writable
from attnjax.records.runs import CONFIG, MANIFEST, RESULT, folder_of, read_config, read_manifest, status_of
from attnjax.records.values import finite
from attnjax.safety import write
from attnjax.sweep import attempt, live, manifest
from attnjax.sweep.attempt import RunContext, Train, update_manifest
from attnjax.sweep.claim import PATIENCE, Claim, Owner, claim, heartbeat, holder
from attnjax.sweep.outcome import Stop, Summary, is_open, on_signals, states, summarise, why
from attnjax.sweep.plan import groups, population_key
from attnjax.sweep.store import LOGS, Entry, Store

TRAINER = "attnjax.train:train"
"""The training function, unless another is given."""
POLL, LONG_POLL = 0.5, 1.0
"""Seconds until a second look at runs that others have just claimed, and between looks at runs that are waited for."""


@dataclasses.dataclass(frozen=True)
class ExecutionConfig:
    """How runs are executed.

    Args:
      population: most runs that train together; None: all with equal shapes.
      patience: seconds without heartbeat after which a worker of another machine counts as dead.
      attempts: deaths of a worker in a row, without a new checkpoint between them, after which a run counts as failed.
      wait: stay until the runs that other processes train have ended, and take over those whose process dies.
      imports: classes of other projects that the runs name, whose modules are imported before the first run.
      mesh: the devices that a population is spread over, as `attnjax.config.mesh` writes it; "": one device.
      log: write live curves of each run as well, one of `live.FORMATS`; "": none.
    """

    population: int | None = None
    patience: float = PATIENCE
    attempts: int = 5
    wait: bool = False
    imports: tuple[str, ...] = ()
    mesh: str = ""
    log: str = ""


DEFAULT = ExecutionConfig()


@dataclasses.dataclass(frozen=True)
class Job:
    """A run that this process holds: its config, claim, attempt, and how far it was."""

    config: RunConfig
    claim: Claim
    attempt: pathlib.Path
    step: int


def run_here(
    store: Store,
    train: Train,
    execution: ExecutionConfig = DEFAULT,
    *,
    stop: Stop | None = None,
) -> Summary:
    """Train all runs of a sweep that have not ended, in this process; signals stop at the next step, see `outcome.on_signals`.

    Raises ValueError where the folder cannot be written to.
    """
    stop, refused = stop or Stop(), {}
    if is_open(store):
        with on_signals(stop):
            refused = _work(store, train, execution, stop)
    return summarise(store, refused)


def _work(store: Store, train: Train, execution: ExecutionConfig, stop: Stop) -> dict[str, str]:
    """Claim groups of runs and train them until none is left that nobody has; returns why some could not be read or written."""
    import_modules(execution.imports)
    check_writable(store.root / LOGS)
    worker = Worker(store, train, execution, stop, manifest.of_machine(), parse_mesh(execution.mesh))
    waiting, idle = groups(store.runs, key=lambda entry: entry.group, limit=execution.population), 0
    while waiting and not stop.reason:
        trained, waiting = worker.look(waiting, greedy=idle > 0)
        idle = 0 if trained else idle + 1
        if waiting and idle:
            if idle > 1 and not execution.wait:
                break
            stop.wait(POLL if idle == 1 else LONG_POLL)
    return worker.refused


@dataclasses.dataclass(frozen=True)
class Worker:
    """This process as a worker of a sweep. It leaves alone the runs that it has `refused`, and says why."""

    store: Store
    train: Train
    execution: ExecutionConfig
    stop: Stop
    machine: Mapping[str, Any]
    mesh: MeshShape
    refused: dict[str, str] = dataclasses.field(default_factory=dict)

    def look(self, waiting: Sequence[list[Entry]], *, greedy: bool) -> tuple[bool, list[list[Entry]]]:
        """Train one part of each group that can be claimed; returns whether there was any, and the groups that are open."""
        trained, left = False, []
        for group in waiting:
            parts = [] if self.stop.reason else self.parts(group)
            left += [group] if parts else []
            for part in parts:
                if jobs := self.claimed(part, greedy=greedy):
                    trained = True
                    self.train_group(jobs)
                    break  # others may have trained the rest of the group meanwhile: it is looked at again
        return trained, left

    def parts(self, group: Sequence[Entry]) -> list[list[Entry]]:
        """Return the open runs of a group in parts that train together, so that none is thrown back to an earlier step."""
        found: dict[str, list[Entry]] = {}
        for entry in group:
            with contextlib.suppress(OSError, ValueError):  # the summary at the end says what is damaged
                run = self.store.directory(entry.run)
                if entry.run not in self.refused and status_of(run).state not in status.FINAL:
                    found.setdefault(self._together(run), []).append(entry)
        return list(found.values())

    def _together(self, run: pathlib.Path) -> str:
        """Return a word that is equal for runs that train together: those that did so last, and those that have not begun.

        A run on its last attempt is alone, because the population may be what no memory holds.
        """
        folder, owner = folder_of(run), holder(run)
        step, before = attempt.newest_step(folder), read_manifest(folder)
        if owner is not None and step <= owner.step and owner.deaths + 2 >= self.execution.attempts:
            return run.name
        if before.get("state") in ("running", "preempted"):
            return str(before.get("population"))
        return run.name if step else ""

    def claimed(self, part: Sequence[Entry], *, greedy: bool) -> list[Job]:
        """Claim the runs of a part. Where another process has the first, the rest is left to it, unless `greedy`."""
        jobs: list[Job] = []
        for entry in part:
            try:
                found = self._begun(self.store.directory(entry.run))
            except (OSError, ValueError) as error:
                self.refused[entry.run] = why(error)
                continue
            if isinstance(found, Job):
                jobs.append(found)
            elif found and not jobs and not greedy:
                break
        return jobs

    def _begun(self, run: pathlib.Path) -> Job | Owner | None:
        """Claim a run and begin an attempt; returns its owner where that is another process, None where it has ended."""
        token = attempt.next_token(run)
        mine = claim(run, self.execution.patience, attempt=token, step=attempt.newest_step(folder_of(run)))
        if isinstance(mine, Owner):
            return mine
        with contextlib.ExitStack() as otherwise:
            otherwise.callback(mine.release)
            now = status_of(run)
            if now.state in status.FINAL:
                return None
            job = Job(read_config(run), mine, attempt.begin(run, token), now.step)
            if mine.certain:
                attempt.forget_others(run, job.attempt)
            if mine.owner.deaths >= self.execution.attempts:
                told = f"without a new checkpoint, the last time at step {now.step}: killed, or out of memory?"
                self._give_up(job, f"its worker died {mine.owner.deaths} times in a row {told}")
                return None
            otherwise.pop_all()
        return job

    def _give_up(self, job: Job, reason: str) -> None:
        update_manifest(job.attempt, {"state": "failed", "reason": reason})
        status.write(job.attempt, status.Status("failed", job.step, reason))
        attempt.publish(job.attempt)

    def train_group(self, jobs: Sequence[Job]) -> None:
        """Train runs together; where that raises, each alone, so that only the culprit fails."""
        lost = lambda one: self.stop.set(f"run {one.run.name} was taken over by another process")
        try:
            with heartbeat([job.claim for job in jobs], self.execution.patience / 6, lost):
                for job in self._train(jobs):
                    if self.stop.reason:
                        self._end(job, RunContext({job.attempt: job.step}, self.stop), None, 0.0)
                    else:
                        self._train([dataclasses.replace(job, step=status.read(job.attempt).step)])
        finally:
            for job in jobs:
                job.claim.release()

    def _train(self, jobs: Sequence[Job]) -> list[Job]:
        """Call the training function once; returns the runs to be tried alone, because of an error that may not be theirs."""
        steps = {job.attempt: job.step for job in jobs}
        context = RunContext(steps, self.stop, self.mesh)
        error, again, start = None, [], time.monotonic()
        configs = [job.config for job in jobs]
        try:
            for job in jobs:
                self._start(job, jobs)
            with live.recorded(context, self.execution.log, self.store.root, configs) as recorded:
                self.train(configs, list(steps), recorded)
        except KeyboardInterrupt:
            self.stop.set("SIGINT")
            raise
        except (Exception, SystemExit) as raised:
            error = raised
        finally:
            if error and len(jobs) > 1 and not self.stop.reason:
                again = [job for job in jobs if job.attempt in context.running()]
            for job in jobs:
                if job not in again:
                    self._end(job, context, error, time.monotonic() - start)
        return again

    def _start(self, job: Job, jobs: Sequence[Job]) -> None:
        """Write manifest and status of an attempt; also what has changed, for this part may be killed."""
        (job.attempt / "traceback.txt").unlink(missing_ok=True)
        if not attempt.newest_step(job.attempt):  # nothing is left of the parts before
            (job.attempt / MANIFEST).unlink(missing_ok=True)
        names, token = [one.claim.run.name for one in jobs], job.claim.owner.attempt
        fields = manifest.of_run(job.config, attempt=token, population=names, mesh=self.mesh)
        update_manifest(job.attempt, {**self.machine, **manifest.of_jax(), **fields, "state": "running"})
        status.write(job.attempt, status.Status("running", job.step))

    def _end(self, job: Job, context: RunContext, error: BaseException | None, seconds: float) -> None:
        """Write how an attempt ended, and publish it where its run has. Whatever refuses leaves a run that goes on."""
        ended, run = context.live[job.attempt], job.claim.run
        state, reason = ended.state, ended.reason
        if state == "running":
            state, reason = ("preempted", self.stop.reason) if self.stop.reason else ("done", "")
            state, reason = ("failed", why(error)) if error else (state, reason)
        try:
            if error and ended.state == "running":
                text = "".join(traceback.format_exception(error))
                write(job.attempt / "traceback.txt", text.encode(errors="replace"))
            for path in (*(job.attempt / name for name in jsonl.FILES), run / CONFIG):
                jsonl.sync(path)
            before = read_manifest(job.attempt).get("wall_seconds") if ended.resumed else 0.0
            wall = round(seconds + (before if finite(before) else 0.0), 3)
            fields = {"state": state, "reason": reason, "steps": ended.step, "resumed_from": ended.resumed}
            fields |= {"end_time": manifest.now(), "wall_seconds": wall, **manifest.of_jax()}
            update_manifest(job.attempt, fields, durable=True)
            status.write(job.attempt, status.Status(state, ended.step, reason))
            if state in status.FINAL:
                attempt.publish(job.attempt)
                job.claim.release()
        except (OSError, ValueError) as refusal:
            if not (run / RESULT).is_dir():  # or another process has published, and deleted this attempt
                told = f"its end ({state}) could not be written: {why(refusal)}; {reason}".rstrip("; ")
                self.refused[run.name] = told


def retry(store: Store, patience: float = PATIENCE) -> list[str]:
    """Make failed runs pending again that no living process holds, and return their ids."""
    again = []
    for run in (run for run, state in states(store).items() if state == "failed"):
        directory = store.directory(run)
        if isinstance(mine := claim(directory, patience), Claim):
            attempt.reopen(directory)
            mine.release()
            again.append(run)
    return again


def import_train(name: str) -> Train:
    """Return the function `module:function`. Raises ValueError if there is none."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no training function {name!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{name!r} is no function")
    return found


def check(trainer: str, configs: Iterable[RunConfig], mesh: MeshShape = ONE_DEVICE) -> None:
    """Call the functions `check` and `check_mesh` of the trainer's module, where it has them, for one run of each population.

    Raises ValueError, also for a mesh of several devices and a trainer without `check_mesh`, which trains on one.
    """
    import_train(trainer)
    module = importlib.import_module(trainer.partition(":")[0])
    found, on_mesh = getattr(module, "check", None), getattr(module, "check_mesh", None)
    if mesh.devices > 1 and on_mesh is None:
        raise ValueError(f"the trainer {trainer} knows no mesh: {module.__name__} has no function check_mesh")
    # Inside a population the numbers of an encoding may differ.
    for config, *_ in groups(configs, key=lambda config: f"{population_key(config)} {config.model.encoding}"):
        if found is not None:
            found(config)
        if on_mesh is not None and mesh.devices > 1:
            on_mesh(mesh, config)


@contextlib.contextmanager
def on_cpu(devices: int) -> Iterator[None]:
    """JAX, where it is imported in the block, sees so many devices of the CPU alone: accelerators are for workers."""
    before = dict(os.environ)
    os.environ |= {"JAX_PLATFORMS": "cpu"} | ({"JAX_NUM_CPU_DEVICES": str(devices)} if devices > 1 else {})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def worker_words(root: pathlib.Path, trainer: str, execution: ExecutionConfig) -> list[str]:
    """Return the words after `attnjax` that start a worker, with the options that are not as they are by default."""
    words = ["work", str(root), *(["--trainer", trainer] if trainer != TRAINER else [])]
    for name in ("population", "patience", "attempts", "mesh", "log"):
        if (value := getattr(execution, name)) != getattr(DEFAULT, name):
            words += [f"--{name}", str(value)]
    return words + ["--wait"] * execution.wait + [word for one in execution.imports for word in ("--import", one)]
