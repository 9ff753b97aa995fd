"""The training function of sweeps: trains a population of runs and resumes it from its checkpoints.

    train(configs, directories, context)

resumes from the newest step of which every run has an undamaged checkpoint, deletes records after it, advances in strides
(the steps of one call of the compiled program), writes records, saves checkpoints while it goes on, and evaluates by length
at the end. With `train.until`, members that have fitted their task end before the others (`fitted.py`). It returns when the
last checkpoint is on the disk; where one cannot be saved, the run ends at the next stride. The result is a function of the
configs and the step alone, so a run that was killed ends with the same bits as one that was not, on the same machine with
the same population.
"""

import hashlib
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from attnjax import tasks
from attnjax.config import RunConfig
from attnjax.config.mesh import MeshShape
from attnjax.config.names import is_class_path
from attnjax.config.outside import construct
from attnjax.tasks.base import Task
from attnjax.train import checkpoint
from attnjax.train.baselines import ngram_levels
from attnjax.train.evaluate import Evaluator, Measured, evaluation_lengths
from attnjax.train.fitted import Fitted
from attnjax.train.mesh import axis_of_tokens, make_mesh, on_host, padded, place
from attnjax.train.processes import agreed, alike, leads, said, shared, together
from attnjax.train.saves import CHECKPOINTS, Saves
from attnjax.train.step import Member, Metrics, State, Trainer, members
from attnjax.train.strides import Strides
from attnjax.typing import PyTree

ByKey = Mapping[tuple[str, int, str], np.ndarray]
"""Scores by split, length and metric."""


@runtime_checkable
class RunContext(Protocol):
    """Receives the records of `train` and tells it when to stop: the interface of `attnjax.sweep.run_context.RunContext`.

    `holds` says whether checkpoints may still be written into a folder. Where another process has taken it over, it is false,
    and `stopping` says why.
    """

    mesh: MeshShape

    def stopping(self) -> str: ...
    def stop(self, reason: str) -> None: ...
    def holds(self, directory: pathlib.Path) -> bool: ...
    def step(self, directory: pathlib.Path, step: int, **numbers: float) -> None: ...
    def metrics(self, directory: pathlib.Path, record: Mapping[str, Any]) -> None: ...
    def results(self, directory: pathlib.Path, *found: Mapping[str, Any]) -> None: ...
    def examples(self, directory: pathlib.Path, step: int, scores: ByKey, by_position: ByKey) -> None: ...
    def truncate_after(self, directory: pathlib.Path, step: int) -> None: ...
    def log_manifest(self, directory: pathlib.Path, **fields: Any) -> None: ...
    def fail(self, directory: pathlib.Path, step: int, reason: str) -> None: ...


def train(configs: list[RunConfig], directories: list[pathlib.Path], context: RunContext) -> None:
    """Train a population of runs, from their newest common checkpoint to the evaluation at the end.

    Args:
      configs: runs that differ only in seeds, learning rate, weight decay and the numeric options of their encoding.
      directories: the folder of each run, where checkpoints are written; of several processes, where this one sees it.
      context: where records go, the devices to train on, and what asks to stop; training then saves and returns after the
        current stride.

    Raises:
      ValueError: where configs do not fit together, or a checkpoint is of another run.
      OSError: where a checkpoint cannot be read or written.
      ProcessError: in several processes, in each of them, where one has raised one of these; see `attnjax.train.processes`.

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
    run, mesh = configs[0], make_mesh(context.mesh)
    task = together(make_task, run)
    digests = together(data_sha256, run, task)
    alike({"text (sha256)": hashlib.sha256(repr(digests).encode()).hexdigest()})
    trainer, places = Trainer(run, task, mesh), padded(len(configs), mesh)
    # The last member stands in for those that the devices have room for, and is recorded once.
    population = place(members([*configs, *configs[-1:] * (places - len(configs))]), mesh)
    fitted = together(Fitted, run, directories)
    step, state = _resume(trainer, population, directories, fitted)
    together(_forget_after, directories, [fitted.steps.get(i, step) for i in range(len(configs))], context)
    evaluator = Evaluator(run, task, trainer.model, mesh)
    alive = together(_log_manifests, configs, directories, digests, trainer, state, fitted, context)
    strides, started, saved = Strides(run), time.monotonic(), step
    with Saves(directories, mesh, run.train.keep, context) as saves:
        while step < run.train.steps and alive and not _stopping(context):
            # Not at the end of the step before: a run that died between its checkpoint and its evaluation resumes here.
            if step and _due(step, run.evaluate.every):
                splits = ("validation",)
                found = _evaluate(evaluator, population, directories, alive, state, step, context, splits, saves)
                if _stopping(context):
                    break
                if new := fitted.reached(found, alive):
                    if saved < step:  # all of them, so that the others can be resumed from here too
                        saves.begin(state, alive, step)
                        saved = step
                    saves.wait()
                    # The first also asks whether the folders are still ours, and raises where they are not.
                    together(_log_fitted, [directories[i] for i in new], step, context)
                    together(fitted.end, new, step, on_host(state.params, mesh))
                    alive = [i for i in alive if i not in new]
                    if not alive:
                        break
            count, before = agreed(strides.count(step)), time.monotonic()
            state, metrics = trainer.advance(state, population, count)
            strides.took(count=count, seconds=time.monotonic() - before)
            step += count
            saves.check()
            together(_record, run, directories, alive, metrics, step, time.monotonic() - started, context)
            if _due(step, run.train.checkpoint_every) or step == run.train.steps:
                saves.begin(state, alive, step)
                saved = step
        if saved < step:
            saves.begin(state, alive, step)
        ended = [*alive, *fitted.steps]
        finished = ended and (step == run.train.steps or not alive) and not _stopping(context)
        if finished:
            state = state._replace(params=fitted.put(state.params, mesh))
            splits = ("test", "validation")
            _evaluate(evaluator, population, directories, alive, state, step, context, splits, saves, fitted.steps)
        saves.wait()
    if finished and not _stopping(context):  # the models of a long text take minutes; the evaluation is done again
        levels = together(ngram_levels, run, task, evaluator)
        together(_log_end, directories, ended, on_host(state.params, mesh), levels, context)


def make_task(run: RunConfig) -> Task:
    """Return the task of a run, on its training split. Raises ValueError for options that the task does not take."""
    if "split" in run.task.options:
        raise ValueError("task.options.split must be left out: training and evaluation each read their own split")
    if is_class_path(run.task.name):
        return construct(run.task.name, Task, run.task.options).for_split("train")
    return tasks.task(run.task.name, **run.task.options).for_split("train")


def _resume(
    trainer: Trainer, population: Member, directories: Sequence[pathlib.Path], fitted: Fitted
) -> tuple[int, State]:
    step, states = together(lambda: _newest(trainer, directories, fitted) if leads() else (0, []))
    step, count = agreed(step), len(population.seed)
    fitted.agree()
    if not step:
        return 0, place(trainer.start(population), trainer.mesh)
    if states:
        states += states[-1:] * (count - len(states))
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    else:
        stacked = jax.tree.map(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype), trainer.shapes())
    stacked = shared(stacked)
    fitted.take(stacked.params)
    return step, place(jax.tree.map(jax.numpy.asarray, stacked), trainer.mesh)


def _newest(trainer: Trainer, directories: Sequence[pathlib.Path], fitted: Fitted) -> tuple[int, list[State]]:
    """Return the newest step of which every run that has not ended has an undamaged checkpoint, and the states of all runs.

    Those of runs that have ended are of the step at which they did. (0, []) where there is no such step: all begin anew.
    """
    for directory in directories:
        checkpoint.refresh(directory / CHECKPOINTS)
    if not any(checkpoint.steps(directory / CHECKPOINTS) for directory in directories):
        fitted.forget(list(fitted.steps))
        return 0, []
    like = trainer.shapes()
    newest: int | None = None
    while True:
        wanted = [fitted.steps.get(i, newest) for i in range(len(directories))]
        found = [
            checkpoint.restore(directory / CHECKPOINTS, like, step, set_aside=True)
            for directory, step in zip(directories, wanted, strict=True)
        ]
        lost = [i for i, step in fitted.steps.items() if (one := found[i]) is None or one.step != step]
        if lost:
            fitted.forget(lost)
            continue
        if any(one is None for one in found):
            fitted.forget(list(fitted.steps))
            return 0, []
        there = [one for one in found if one is not None]
        steps = {one.step for i, one in enumerate(there) if i not in fitted.steps} or set(fitted.steps.values())
        if len(steps) == 1 or len(fitted.steps) == len(there):
            return max(steps), [one.state for one in there]
        newest = min(steps)


def _forget_after(directories: Sequence[pathlib.Path], steps: Sequence[int], context: RunContext) -> None:
    for directory, step in zip(directories, steps, strict=True):
        if leads() and context.holds(directory):
            checkpoint.drop_after(directory / CHECKPOINTS, step)
        context.truncate_after(directory, step)


def _stopping(context: RunContext) -> bool:
    """Return whether a process is asked to stop; the contexts of all others are told why."""
    reason = next(filter(None, said(context.stopping())), "")
    if reason and not context.stopping():
        context.stop(reason)
    return bool(reason)


def _log_manifests(
    configs, directories, digests, trainer: Trainer, state: State, fitted: Fitted, context: RunContext
) -> list[int]:
    """Write parameter count, chance levels, data digests and the order of tokens on a mesh into the manifests.

    Returns the members that have not ended.
    """
    run, task = configs[0], trainer.task
    count = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(state.params))
    lengths = sorted({*run.evaluate.lengths, *run.evaluate.validation_lengths})
    chance = {str(n): task.chance(n)._asdict() for n in lengths if n >= task.minimum_length and not task.aligned}
    path = {} if digests is None else {"data_path": run.task.options.get("path")}
    spread = axis_of_tokens(trainer.mesh) is not None
    order = {"token_order": "zigzag" if trainer.zigzag else "contiguous"} if spread else {}
    for i, directory in enumerate(directories):
        stopped = {"stopped_at": fitted.steps.get(i)} if run.train.until else {}
        fields = {"parameters": count, "chance": chance, "data_sha256": digests}
        context.log_manifest(directory, **fields, **path, **order, **stopped)
    return [i for i in range(len(configs)) if i not in fitted.steps]


def data_sha256(run: RunConfig, task: Task) -> dict[str, str] | None:
    """Return the SHA-256 of each split of a text that the run reads; None for a task that draws its examples."""
    if not isinstance(task, tasks.Text):
        return None
    return {split: task.for_split(split).sha256 for split in ("train", *evaluation_lengths(run))}


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _record(
    run, directories, alive: list[int], metrics: Metrics, step: int, seconds: float, context: RunContext
) -> None:
    """Log the last step of the stride. Runs with a non-finite loss or gradient fail here and are removed from `alive`."""
    here = jax.tree.map(np.asarray, metrics)
    for i in list(alive):
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], here)
        if bad := _nan(mine, step):
            context.fail(directories[i], *bad)
            alive.remove(i)
            continue
        numbers = {name: float(values[-1]) for name, values in mine._asdict().items()}
        context.step(directories[i], step, loss=numbers["loss"])
        if _due(step, run.train.log_every) or step == run.train.steps:
            context.metrics(directories[i], {"step": step, **numbers, "seconds": round(seconds, 3)})


def _nan(metrics: Metrics, step: int) -> tuple[int, str] | None:
    """Return the first step with a non-finite loss or gradient, and the reason, in a stride that ends at `step`.

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
    evaluator: Evaluator,
    population: Member,
    directories,
    alive,
    state: State,
    step: int,
    context: RunContext,
    splits,
    saves: Saves,
    ended: Mapping[int, int] = MappingProxyType({}),
) -> list[list[list[dict[str, Any]]]]:
    """Record each length when it is measured, and the scores of single examples after the last, of tests alone.

    `ended`: further members, and the step that their parameters are of. Returns the records of each length and member.
    """
    all_lengths, steps = [], {**dict.fromkeys(alive, step), **ended}
    for found in evaluator.measure(state.params, splits, population.encoding):
        together(_log_results, directories, steps, found, context)
        saves.check()
        if _stopping(context):
            return []
        all_lengths.append(found)
    if "test" in splits:
        together(_log_examples, directories, steps, all_lengths, context)
    return [[member.records for member in found] for found in all_lengths]


def _log_results(directories, steps: Mapping[int, int], found: Sequence[Measured], context: RunContext) -> None:
    for i, step in steps.items():
        context.results(directories[i], *({"step": step, **record} for record in found[i].records))


def _log_examples(directories, steps: Mapping[int, int], all_lengths, context: RunContext) -> None:
    for i, step in steps.items():
        scores, by_position = {}, {}
        for found in all_lengths:
            scores |= found[i].scores
            by_position |= found[i].by_position
        context.examples(directories[i], step, scores, by_position)


def _log_fitted(directories, step: int, context: RunContext) -> None:
    for directory in directories:
        context.log_manifest(directory, stopped_at=step)
        context.step(directory, step)


def _log_end(directories, ended: Sequence[int], params: PyTree, levels: Any, context: RunContext) -> None:
    known = {} if levels is None else {"baselines": levels}
    for i in ended:
        context.log_manifest(directories[i], parameters_sha256=fingerprint(_member(params, i)), **known)


def _member(tree: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[i], tree)


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
