"""The training loop: trains a population of runs, and resumes it from its checkpoints.

    train(configs, directories, context)

The result is a function of the configs and the number of steps alone, so a run that was killed ends with the same bits as one
that was not, on the same machine with the same population.

With `train.until`, a run ends early: at the first evaluation, every `evaluate.every` steps, whose exact match over the
validation lengths has that mean. `fitted.json` in its folder says at which step, once that checkpoint is on the disk. It keeps
its place in the compiled program, which computes each member from its own data alone, so that the others have the same
bits as if it had gone on; what the program computes of it from then on is dropped. Huang et al. 2025 (arXiv:2410.02140) stop at
the first evaluation without an error too; Kazemnejad et al. 2023 (arXiv:2305.19466) train every run to the last step, and test
the best checkpoint by validation.
"""

import concurrent.futures
import hashlib
import json
import math
import pathlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from attnjax import safety, tasks
from attnjax.config import RunConfig
from attnjax.config.mesh import MeshShape
from attnjax.config.names import is_class_path
from attnjax.config.outside import construct
from attnjax.tasks.base import Task
from attnjax.train import checkpoint, processes
from attnjax.train.checkpoint import CHECKPOINTS
from attnjax.train.evaluate import Evaluator, Measured, evaluation_lengths, ngram_levels
from attnjax.train.mesh import axis_of_tokens, make_mesh, on_host, padded, place
from attnjax.train.model import encoding_of
from attnjax.train.step import LONGEST, Member, Metrics, State, Trainer, members
from attnjax.typing import PyTree

FITTED = "fitted.json"
SECONDS = 1.0
"""What one call of the compiled program should take at most, so that an interruption is answered soon."""
ByKey = Mapping[tuple[str, int, str], np.ndarray]
"""Scores by split, length and metric."""
Ended = dict[int, tuple[int, PyTree]]
"""Members that have ended: at which step, and with which parameters."""


@runtime_checkable
class RunContext(Protocol):
    """Receives the records of `train` and tells it when to stop: the interface of `attnjax.sweep.RunContext`."""

    mesh: MeshShape

    def stopping(self) -> str: ...
    def stop(self, reason: str) -> None: ...
    def step(self, directory: pathlib.Path, step: int) -> None: ...
    def metrics(self, directory: pathlib.Path, record: Mapping[str, Any]) -> None: ...
    def results(self, directory: pathlib.Path, *found: Mapping[str, Any]) -> None: ...
    def examples(self, directory: pathlib.Path, step: int, scores: ByKey) -> None: ...
    def truncate_after(self, directory: pathlib.Path, step: int) -> None: ...
    def log_manifest(self, directory: pathlib.Path, **fields: Any) -> None: ...
    def fail(self, directory: pathlib.Path, step: int, reason: str) -> None: ...


class Follower:
    """The context of every process but the first: records nothing. `asked` returns why to stop, "" while not.

    Example:
      >>> Follower(MeshShape(data=2)).stopping()
      ''
    """

    def __init__(self, mesh: MeshShape, asked: Callable[[], str] = lambda: ""):
        self.mesh, self.stopping = mesh, asked

    def stop(self, reason: str) -> None: ...
    def step(self, directory: pathlib.Path, step: int) -> None: ...
    def metrics(self, directory: pathlib.Path, record: Mapping[str, Any]) -> None: ...
    def results(self, directory: pathlib.Path, *found: Mapping[str, Any]) -> None: ...
    def examples(self, directory: pathlib.Path, step: int, scores: ByKey) -> None: ...
    def truncate_after(self, directory: pathlib.Path, step: int) -> None: ...
    def log_manifest(self, directory: pathlib.Path, **fields: Any) -> None: ...
    def fail(self, directory: pathlib.Path, step: int, reason: str) -> None: ...


def train(configs: list[RunConfig], directories: list[pathlib.Path], context: RunContext) -> None:
    """Train a population of runs, from their newest common checkpoint to the evaluation at the end.

    Args:
      configs: runs that differ only in seeds, learning rate, weight decay and the numeric options of their encoding.
      directories: the folder of each run, where checkpoints are written.
      context: where records go, the devices to train on, and what asks to stop; training then saves and returns after the
        current call of the compiled program.

    Raises:
      ValueError: where configs do not fit together, or a checkpoint is of another run.
      OSError: where a checkpoint cannot be read or written.

    Example:
      >>> import tempfile
      >>> from unittest.mock import Mock
      >>> from attnjax.config import parse
      >>> run = {"model": {"layers": 1, "model": 8, "heads": 1, "hidden": 8}, "train": {"steps": 2, "batch": 2}}
      >>> context = Mock(spec=RunContext, mesh=MeshShape(), stopping=lambda: "")  # a RunContext that does nothing
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     train([parse(run | {"evaluate": {"lengths": [], "validation_lengths": []}})], [pathlib.Path(folder)], context)
      ...     checkpoint.steps(pathlib.Path(folder) / CHECKPOINTS)
      [2]
      >>> context.metrics.call_args.args[1]["step"]
      2
    """
    # Several processes have as many devices each, whether members fill them or not.
    shape = context.mesh if jax.process_count() > 1 else context.mesh.for_members(len(configs))
    run, mesh = configs[0], make_mesh(shape)
    task = make_task(run)
    trainer = Trainer(run, task, mesh, encoding=encoding_of(configs))
    evaluator = Evaluator(run, task, trainer.model, mesh)
    # The last member stands in for those that the devices have room for, and is recorded once.
    count = padded(len(configs), mesh)
    population = place(members([*configs, *configs[-1:] * (count - len(configs))]), mesh)
    step, state, ended = _resume(run, trainer, population, directories, context)
    alive = [i for i in range(len(configs)) if i not in ended]
    _log_manifests(run, directories, trainer, state, ended, context)

    started, saved, affordable = time.monotonic(), step, 1  # the first call takes one step: it also compiles
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint") as pool:
        saving = pool.submit(lambda: None)

        def save() -> concurrent.futures.Future[None]:
            saving.result()  # one at a time; raises the error of the save before
            return _start_saving(pool, step, state, mesh, {i: directories[i] for i in alive}, run.train.keep)

        while step < run.train.steps and alive:
            stop, count = _agree(context, _steps_of_call(run, step, affordable))
            if stop:
                break
            # Not at the end of the step before: a run that died between its checkpoint and its evaluation resumes here.
            if step and _due(step, run.evaluate.every):
                steps = dict.fromkeys(alive, step)
                found = _evaluate(evaluator, population, state, ("validation",), directories, steps, context)
                if found is None:
                    break
                if fitted := [i for i in alive if _has_fitted(run, found, i)]:
                    if saved < step:  # all of them, so that the others can be resumed from here too
                        saving, saved = save(), step
                    saving.result()
                    _log_fitted([directories[i] for i in fitted], step, context)
                    params = on_host(state.params, mesh)
                    ended |= {i: (step, _member(params, i)) for i in fitted}
                    alive = [i for i in alive if i not in fitted]
                    if not alive:
                        break
            before = time.monotonic()
            state, metrics = trainer.advance(state, population, count)
            affordable = max(1, int(SECONDS * count / max(time.monotonic() - before, 1e-9)))
            step += count
            if saving.done():
                saving.result()  # raises the error of a save that has failed
            alive = _record(run, directories, alive, metrics, step, time.monotonic() - started, context)
            if _due(step, run.train.checkpoint_every) or step == run.train.steps:
                saving, saved = save(), step
        if saved < step:
            saving = save()

        if step == run.train.steps or not alive:
            steps = dict.fromkeys(alive, step) | {i: at for i, (at, _) in ended.items()}
            state = state._replace(params=_with_ended(state.params, ended, mesh))
            _finish(evaluator, population, state, directories, steps, saving, context)
        saving.result()


def _start_saving(
    pool: concurrent.futures.Executor,
    step: int,
    state: State,
    mesh: jax.sharding.Mesh | None,
    directories: Mapping[int, pathlib.Path],
    keep: int,
) -> concurrent.futures.Future[None]:
    """Save the members in these directories in the background, by the first process."""
    here = on_host(state, mesh)
    directories = directories if processes.leads() else {}
    # A copy, since the next step overwrites the memory of the state.
    copies = {folder: jax.tree.map(lambda leaf, i=i: np.array(leaf[i]), here) for i, folder in directories.items()}

    def save() -> None:
        for directory, copy in copies.items():
            checkpoint.save(directory / CHECKPOINTS, step, copy, keep=None)
        for directory in copies:  # of runs that all have the new step, so that there is always one that all have
            checkpoint.prune(directory / CHECKPOINTS, keep)

    return pool.submit(save)


def _finish(
    evaluator: Evaluator,
    population: Member,
    state: State,
    directories: Sequence[pathlib.Path],
    steps: Mapping[int, int],
    saving: concurrent.futures.Future[None],
    context: RunContext,
) -> None:
    """Test the members, each after its own number of steps, and record their parameters, unless a stop is asked for."""
    if not _agree(context)[0]:
        _evaluate(evaluator, population, state, ("test", "validation"), directories, steps, context)
    saving.result()
    # Before the n-gram models of a long text, which take minutes; the evaluation is then done again.
    if not _agree(context)[0]:
        levels = ngram_levels(evaluator.run, evaluator.task, evaluator)
        known, params = {} if levels is None else {"baselines": levels}, on_host(state.params, evaluator.mesh)
        for i in steps:
            context.log_manifest(directories[i], parameters_sha256=fingerprint(_member(params, i)), **known)


def make_task(run: RunConfig) -> Task:
    """Return the task of a run, on its training split. Raises ValueError for options that the task does not take."""
    if "split" in run.task.options:
        raise ValueError("task.options.split must be left out: training and evaluation each read their own split")
    if is_class_path(run.task.name):
        return construct(run.task.name, Task, run.task.options).for_split("train")
    return tasks.task(run.task.name, **run.task.options).for_split("train")


def _resume(
    run: RunConfig, trainer: Trainer, population: Member, directories: Sequence[pathlib.Path], context: RunContext
) -> tuple[int, State, Ended]:
    """Return the newest step that all runs have, the states at it, and the runs that ended before; forget what came later."""
    found = _newest(run, trainer, directories)
    steps = [one.step for one in found] or [0] * len(directories)
    processes.check_same(steps, f"other checkpoints in {directories[0]}: all processes must see the folder of runs")
    for i, (directory, at) in enumerate(zip(directories, steps, strict=True)):
        if processes.leads():
            checkpoint.drop_after(directory / CHECKPOINTS, at)
            if not found or not found[i].ended:
                (directory / FITTED).unlink(missing_ok=True)
        context.truncate_after(directory, at)
    if not found:
        return 0, place(trainer.start(population), trainer.mesh), {}
    ended = {i: (one.step, one.state.params) for i, one in enumerate(found) if one.ended}
    states = [one.state for one in found]
    states += states[-1:] * (len(population.seed) - len(states))
    stacked = jax.tree.map(lambda *leaves: jax.numpy.asarray(np.stack(leaves)), *states)
    step = max([one.step for one in found if not one.ended] or steps)
    return step, place(stacked, trainer.mesh), ended


class _Found(NamedTuple):
    """Where a run resumes, and whether it has ended there."""

    step: int
    ended: bool
    state: State


def _newest(run: RunConfig, trainer: Trainer, directories: Sequence[pathlib.Path]) -> list[_Found]:
    """Return the newest step of which every run that has not ended has an undamaged checkpoint; [] where there is none.

    Runs that have ended have the step at which they did.
    """
    if not all(checkpoint.steps(directory / CHECKPOINTS) for directory in directories):
        return []
    ended = {i: at for i, directory in enumerate(directories) if (at := _fitted_step(run, directory))}
    like = trainer.shapes()  # not before: it traces the model
    newest: int | None = None
    while True:
        found = [
            checkpoint.restore(directory / CHECKPOINTS, like, ended.get(i, newest))
            for i, directory in enumerate(directories)
        ]
        if lost := [i for i, at in ended.items() if (one := found[i]) is None or one.step != at]:
            for i in lost:  # it goes on from a checkpoint, as the others do
                del ended[i]
            continue
        there = [one for one in found if one is not None]
        if len(there) < len(found):
            return []
        steps = {one.step for i, one in enumerate(there) if i not in ended}
        if len(steps) <= 1:
            return [_Found(one.step, i in ended, one.state) for i, one in enumerate(there)]
        newest = min(steps)


def _agree(context: RunContext, count: int = 0) -> tuple[bool, int]:
    """Return whether to stop, and how many steps the next call takes: those of process 0."""
    stop, count = processes.agree(stop=bool(context.stopping()), count=count)
    if stop and not context.stopping():
        context.stop("another process was asked to stop")
    return stop, count


def _steps_of_call(run: RunConfig, step: int, affordable: int) -> int:
    """Return how many steps the call after `step` takes: until something is due, and at most as many as are affordable."""
    intervals = (run.train.log_every, run.train.checkpoint_every, run.evaluate.every)
    due = [interval - step % interval for interval in intervals if interval]
    return min(LONGEST, affordable, run.train.steps - step, *due)


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _record(
    run: RunConfig, directories, alive: list[int], metrics: Metrics, step: int, seconds: float, context: RunContext
) -> list[int]:
    """Log the last step of a call. Runs with a loss or gradient that is not finite fail; returns the others."""
    left = []
    for i in alive:
        mine = _member(metrics, i)
        if bad := _nan(mine, step):
            context.fail(directories[i], *bad)
            continue
        left.append(i)
        numbers = {name: float(values[-1]) for name, values in mine._asdict().items()}
        context.step(directories[i], step)
        if _due(step, run.train.log_every) or step == run.train.steps:
            context.metrics(directories[i], {"step": step, **numbers, "seconds": round(seconds, 3)})
    return left


def _nan(metrics: Metrics, step: int) -> tuple[int, str] | None:
    """Return the first step with a loss or gradient that is not finite, and the reason, of a call that ends at `step`.

    A gradient that overflows leaves a finite loss for a while: clipped by its norm of infinity it is 0 or NaN.
    """
    bad = np.flatnonzero(~(np.isfinite(metrics.loss) & np.isfinite(metrics.gradient_norm)))
    if not bad.size:
        return None
    i = int(bad[0])
    first = step - len(metrics.loss) + i + 1
    if np.isfinite(metrics.loss[i]):
        return first, f"nan at step {first}: the norm of the gradient was {metrics.gradient_norm[i]}"
    return first, f"nan at step {first}: the loss was {metrics.loss[i]}"


def _evaluate(
    evaluator: Evaluator, population: Member, state: State, splits, directories, steps: Mapping[int, int], context
) -> list[list[Measured]] | None:
    """Record each length of these members when it is measured, and after tests the scores of single examples.

    `steps`: of which step the parameters of each member are. Returns what all members score at each length; None after a stop.
    """
    found = []
    for measured in evaluator.measure(state.params, splits, population.encoding):
        for i, step in steps.items():
            context.results(directories[i], *({"step": step, **record} for record in measured[i].records))
        if _agree(context)[0]:
            return None
        found.append(measured)
    for i, step in steps.items() if "test" in splits else ():
        scores = {key: x for measured in found for key, x in measured[i].scores.items()}
        context.examples(directories[i], step, scores)
    return found


def _has_fitted(run: RunConfig, found: Sequence[Sequence[Measured]], i: int) -> bool:
    """Return whether the mean exact match of member `i` over the validation lengths is at least `train.until`."""
    records = [record for measured in found for record in measured[i].records]
    values = [one["value"] for one in records if (one["metric"], one["split"]) == ("exact_match", "validation")]
    # The mean of 0.99 at three lengths is 0.9899999999999999.
    return bool(run.train.until and values) and round(fmean(values), 12) >= run.train.until


def _log_fitted(directories: Sequence[pathlib.Path], step: int, context: RunContext) -> None:
    for directory in directories:
        context.log_manifest(directory, stopped_at=step)
        context.step(directory, step)
        if processes.leads():
            safety.write(directory / FITTED, json.dumps({"schema": 1, "step": step}).encode())


def _fitted_step(run: RunConfig, directory: pathlib.Path) -> int:
    """Return at which step the run in a folder ended; 0 where it has not, or where the file is damaged, with a warning."""
    path = directory / FITTED
    if not run.train.until or not (path.is_symlink() or path.exists()):
        return 0
    text = safety.read(path, limit=1000)
    try:
        step = json.loads(text)["step"]
        if type(step) is int and 0 < step < run.train.steps:
            return step
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    warnings.warn(f"{path} is damaged, so the run goes on from a checkpoint", stacklevel=2)
    return 0


def _with_ended(params: PyTree, ended: Ended, mesh: jax.sharding.Mesh | None) -> PyTree:
    """Return the parameters [P, ...] of a population, those of runs that have ended as they were then."""
    if not ended:
        return params
    whole = jax.tree.map(np.array, on_host(params, mesh))
    for i, (_, own) in ended.items():
        jax.tree.map(lambda leaf, row, i=i: leaf.__setitem__(i, row), whole, own)
    return place(jax.tree.map(jax.numpy.asarray, whole), mesh)


def _log_manifests(run: RunConfig, directories, trainer: Trainer, state: State, ended: Ended, context) -> None:
    """Write parameter count, chance levels, digests of the data and the order of tokens on a mesh into the manifests."""
    task = trainer.task
    lengths = sorted({*run.evaluate.lengths, *run.evaluate.validation_lengths})
    fields: dict[str, Any] = {
        "parameters": sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(state.params)),
        "chance": {str(n): task.chance(n)._asdict() for n in lengths if n >= task.minimum_length and not task.aligned},
        "data_sha256": data_sha256(run, task),
    }
    if fields["data_sha256"] is not None:
        fields["data_path"] = run.task.options.get("path")
    if axis_of_tokens(trainer.mesh) is not None:
        fields["token_order"] = "zigzag" if trainer.zigzag else "contiguous"
    for i, directory in enumerate(directories):
        stopped = {"stopped_at": ended[i][0] if i in ended else None} if run.train.until else {}
        context.log_manifest(directory, **fields, **stopped)


def _member(tree: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[i], tree)


def data_sha256(run: RunConfig, task: Task) -> dict[str, str] | None:
    """Return the SHA-256 of each split of a text that the run reads; None for a task that draws its examples."""
    if not isinstance(task, tasks.Text):
        return None
    return {split: task.for_split(split).sha256 for split in ("train", *evaluation_lengths(run))}


def fingerprint(params: PyTree) -> str:
    """Return one SHA-256 of all parameters, in the order of the tree; manifests store it as `parameters_sha256`.

    Example:
      >>> fingerprint({"w": np.zeros(2, np.float32)})[:12]
      'af5570f5a181'
    """
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        total.update(np.ascontiguousarray(leaf).tobytes())
    return total.hexdigest()
