"""Trains one group of claimed runs together, and records how each of them ended, whatever happens in between."""

import contextlib
import dataclasses
import errno
import functools
import os
import pathlib
import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnjax.config import RunConfig
from attnjax.config.mesh import ONE_DEVICE, MeshShape
from attnjax.records import files, inventory, jsonl, status
from attnjax.records.runs import CONFIG, read_manifest
from attnjax.records.values import finite
from attnjax.sweep import manifest
from attnjax.sweep.lease import Lease, heartbeat
from attnjax.sweep.run_context import (
    UNWRITTEN,
    Event,
    Live,
    LostLeaseError,
    Progress,
    RunContext,
    Train,
    update_manifest,
)
from attnjax.sweep.stop import Stop, Terminated
from attnjax.sweep.watchdog import Watchdog

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a disk says that takes no more; libraries below Python pass it on as text."""

OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory|cannot allocate memory|bad_alloc", re.IGNORECASE)
"""What XLA, the C library and C++ say where there is no memory left."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A run that this process holds: folder, config, lease, and how far it was."""

    directory: pathlib.Path
    config: RunConfig
    lease: Lease
    status: status.Status


@dataclasses.dataclass(frozen=True)
class Context:
    """What all groups of a worker share."""

    train: Train
    progress: Progress
    stop: Stop
    machine: Mapping[str, Any]
    watchdog: Watchdog
    protocol: str = ""
    beat: float = 10.0
    mesh: MeshShape = ONE_DEVICE


def train_group(jobs: Sequence[Job], context: Context) -> list[str]:
    """Trains runs together; where that raises, each alone, so that only the culprit fails. Returns those that failed.

    Where a stop is asked for before the turn of a run has come, it is preempted where the population left it.
    """
    with heartbeat([job.lease for job in jobs], context.beat, context.stop):
        left, failed = _train(jobs, context, alone=len(jobs) == 1)
        try:
            while left and not context.stop.reason:
                job, _ = left.pop(0)
                now = dataclasses.replace(job, status=status.read(job.directory))
                failed += _train([now], context, alone=True)[1]
        finally:
            for _, preempt in left if context.stop.reason else ():
                preempt()
    return failed


def _train(
    jobs: Sequence[Job], context: Context, *, alone: bool
) -> tuple[list[tuple[Job, Callable[[], str]]], list[str]]:
    """One call of the training function.

    Returns:
      Runs to be tried alone, because of an error that may not be theirs, each with what to call after a stop if it is not
      tried; and the names of those that failed.
    """
    steps = {job.directory: job.status.step for job in jobs}
    leases = {job.directory: job.lease for job in jobs}
    held = lambda directory: leases[directory].held()
    run_context = RunContext(steps, context.stop, context.progress, context.watchdog.progress, context.mesh, held)
    before, error, start = [read_manifest(job.directory) for job in jobs], None, time.monotonic()
    again, left, failed = [], [], []
    try:
        for job, old in zip(jobs, before, strict=True):
            run_context.check(job.directory)
            _begin(job, jobs, old, context)
        with context.watchdog.watching(lambda text: _warn(run_context, text, context)):
            context.train([job.config for job in jobs], [job.directory for job in jobs], run_context)
    except KeyboardInterrupt as interrupt:
        context.stop.set("SIGTERM" if isinstance(interrupt, Terminated) else "KeyboardInterrupt")
        raise
    except LostLeaseError:  # `context.stop` says so: the runs that are still held are preempted
        pass
    except (Exception, SystemExit) as raised:
        error = raised
    finally:
        again = run_context.running() if error and not alone and not context.stop.reason else []
        for job, old in zip(jobs, before, strict=True):
            seconds = time.monotonic() - start
            if job.directory in again:
                left.append((job, functools.partial(_end, job, run_context, old, None, seconds, context)))
                continue
            state = _end(job, run_context, old, error, seconds, context)
            failed += [job.directory.name] if state in ("failed", UNWRITTEN) else []
    return left, failed


def _warn(run_context: RunContext, text: str, context: Context) -> None:
    """Report that the first run that has not ended seems to hang."""
    for directory in run_context.running()[:1]:
        context.progress(Event(directory.name, "running", run_context.live[directory].step, {}, text))


def _begin(job: Job, jobs: Sequence[Job], old: Mapping[str, Any], context: Context) -> None:
    """Writes manifest and status of a run that begins or goes on; what has changed too, for this part may be killed."""
    files.sweep_up(job.directory)
    (job.directory / "traceback.txt").unlink(missing_ok=True)
    names = [one.directory.name for one in jobs]
    fields = manifest.of_run(job.config, attempt=job.lease.owner.attempt, population=names, protocol=context.protocol)
    mesh = {"mesh": str(context.mesh)} if context.mesh.devices > 1 or "mesh" in old else {}
    # The trainer says it of its own mesh.
    mesh |= {"token_order": ""} if "token_order" in old else {}
    now = {**context.machine, **manifest.of_jax(), **fields, **mesh}
    update_manifest(job.directory, {**now, "changed_on_resume": manifest.changed(old, now), "state": "running"})
    status.write(job.directory, status.Status("running", job.status.step))
    context.progress(Event(job.directory.name, "running", job.status.step, {}))


def _end(
    job: Job,
    run_context: RunContext,
    old: Mapping[str, Any],
    error: BaseException | None,
    seconds: float,
    context: Context,
) -> str:
    """Writes status, manifest and traceback of a run that ended; nothing where another process has it by now.

    The status comes last: whatever refuses before leaves a run that has not ended, which the next start goes on with.
    Returns how it ended.
    """
    try:
        run_context.check(job.directory)
    except (LostLeaseError, OSError, ValueError):  # also where somebody removed the folder
        return ""
    live = run_context.live[job.directory]
    state, reason = _outcome(live, error, context.stop)
    try:
        for name in jsonl.FILES:
            jsonl.sync(job.directory / name)
        with contextlib.suppress(PermissionError):  # somebody may have made it read-only
            jsonl.sync(job.directory / CONFIG)
        if error is not None and live.state == "running":
            text = "".join(traceback.format_exception(error))
            files.write(job.directory / "traceback.txt", text)
        ending = _ending(job.directory, live, old, state, reason, seconds)
        run_context.check(job.directory)
        update_manifest(job.directory, ending, durable=True)
        run_context.check(job.directory)
        status.write(job.directory, status.Status(state, live.step, reason))
        job.lease.ended = state if state in status.FINAL else ""
        if job.lease.ended:  # others of its population may be trained for hours from here on
            job.lease.release()
    except LostLeaseError:
        return ""
    except (OSError, ValueError) as refusal:
        why = (refusal.strerror if isinstance(refusal, OSError) else "") or refusal
        reason = f"its end ({state}) could not be written: {why}; {reason}".rstrip("; ")
        state = UNWRITTEN
    context.progress(Event(job.directory.name, state, live.step, {"seconds": round(seconds, 3)}, reason))
    return state


def _outcome(live: Live, error: BaseException | None, stop: Stop) -> tuple[str, str]:
    if live.state != "running":
        return live.state, live.reason
    if error is not None:
        return "failed", _reason(error)
    return ("preempted", stop.reason) if stop.reason else ("done", "")


def _reason(error: BaseException) -> str:
    """The reason of a failure in one line, after a word for its kind, such as `oom:`."""
    whole = " ".join(str(error).split())
    text = whole[:300]
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, OSError) and (error.errno in FULL or any(os.strerror(number) in whole for number in FULL)):
        return f"disk full: {line}"
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(whole):
        return f"oom: {line}"
    return f"exit: {line}" if isinstance(error, SystemExit) else line


def _ending(
    directory: pathlib.Path, live: Live, old: Mapping[str, Any], state: str, reason: str, seconds: float
) -> dict[str, Any]:
    fields = {**manifest.of_jax(), "state": state, "reason": reason, "steps": live.step, "end_time": manifest.now()}
    now = {**read_manifest(directory), **fields}
    resumed = live.resumed > 0
    changed = manifest.changed({**old, "changed_on_resume": now.get("changed_on_resume")}, now) if resumed else []
    exact = "bitwise" if now.get("backend") == "cpu" else "statistical"
    fields["determinism"] = "unknown" if "backend" not in fields else "statistical" if changed else exact
    fields["changed_on_resume"], fields["resumed_from"] = changed, live.resumed
    fields[inventory.FIELD] = inventory.take(directory)
    before: Any = old.get("wall_seconds", 0.0) if resumed else 0.0
    fields["wall_seconds"] = round(seconds + (before if finite(before) else 0.0), 3)
    return fields
