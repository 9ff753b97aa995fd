"""Training a population of runs from wherever they stopped: the training function that sweeps are given.

    train(configs, directories, control)

resumes from the newest step of which every run has a sound checkpoint, forgets records after it, advances in strides that
one compiled program does, writes records and checkpoints, and evaluates by length at the end. Everything that the result
depends on is a function of the configs and of the step, so a run that was killed ends with the same bits as one that was
not, on the same machine with the same population.
"""

import hashlib
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from attnjax import tasks
from attnjax.config import RunConfig
from attnjax.tasks.base import Task
from attnjax.train import checkpoint
from attnjax.train.evaluate import Evaluator, tested
from attnjax.train.step import Member, Metrics, State, Trainer, members
from attnjax.typing import PyTree

CHECKPOINTS = "checkpoints"


class Control(Protocol):
    """What the caller offers; `attnjax.sweep.control.Control` documents it."""

    def stopping(self) -> str: ...
    def step(self, directory: pathlib.Path, step: int, **numbers: float) -> None: ...
    def metrics(self, directory: pathlib.Path, record: Mapping[str, Any]) -> None: ...
    def results(self, directory: pathlib.Path, *found: Mapping[str, Any]) -> None: ...
    def rewind(self, directory: pathlib.Path, step: int) -> None: ...
    def note(self, directory: pathlib.Path, **fields: Any) -> None: ...
    def fail(self, directory: pathlib.Path, step: int, reason: str) -> None: ...


def train(configs: list[RunConfig], directories: list[pathlib.Path], control: Control) -> None:
    """Train runs that differ only in seeds, rates and the numbers of their encoding. See the module's text."""
    run, task = configs[0], make_task(configs[0])
    trainer, population = Trainer(run, task), members(configs)
    step, state = _resume(trainer, population, directories)
    for directory in directories:
        checkpoint.drop_after(directory / CHECKPOINTS, step)
        control.rewind(directory, step)
    evaluator = Evaluator(run, task, trainer.model)
    alive = _note(configs, directories, trainer, task, state, control)
    stride, started, saved = _stride(run), time.monotonic(), step
    while step < run.train.steps and alive and not control.stopping():
        # Not at the end of the step before: a run that died between its checkpoint and its evaluation resumes here.
        if step and _due(step, run.evaluate.every):
            _evaluate(evaluator, population, directories, alive, state, step, control, ("validation",))
            if control.stopping():
                break
        state, metrics = trainer.advance(state, population, stride)
        step += stride
        _record(run, directories, alive, metrics, step, time.monotonic() - started, control)
        if _due(step, run.train.checkpoint_every) or step == run.train.steps:
            _save(run, directories, alive, state, step)
            saved = step
    if saved < step:
        _save(run, directories, alive, state, step)
    if step == run.train.steps and alive and not control.stopping():
        _evaluate(evaluator, population, directories, alive, state, step, control, ("test", "validation"))
        params = jax.device_get(state.params)
        for i in alive:
            control.note(directories[i], parameters_sha256=fingerprint(_member(params, i)))


def make_task(run: RunConfig) -> Task:
    """The task of a run, on its examples for training. Raises ValueError for options that it does not take."""
    if "split" in run.task.options:
        raise ValueError("task.options.split must be left out: training and evaluation each read their own split")
    return tasks.task(run.task.name, **run.task.options).for_split("train")


def _resume(trainer: Trainer, population: Member, directories: Sequence[pathlib.Path]) -> tuple[int, State]:
    if not any(checkpoint.steps(directory / CHECKPOINTS) for directory in directories):
        return 0, trainer.start(population)
    like = trainer.shapes()
    newest: int | None = None
    while True:
        found = [checkpoint.restore(directory / CHECKPOINTS, like, newest, set_aside=True) for directory in directories]
        if any(one is None for one in found):
            return 0, trainer.start(population)
        steps = {one.step for one in found if one is not None}
        if len(steps) == 1:
            states = [one.state for one in found if one is not None]
            return steps.pop(), jax.tree.map(lambda *leaves: jax.numpy.asarray(np.stack(leaves)), *states)
        newest = min(steps)


def _note(configs, directories, trainer: Trainer, task: Task, state: State, control: Control) -> list[int]:
    """Facts for the manifests; returns the members, all alive."""
    run = configs[0]
    count = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(state.params))
    lengths = sorted({*run.evaluate.lengths, *run.evaluate.validation_lengths})
    chance = {str(n): task.chance(n)._asdict() for n in lengths if n >= task.minimum_length and not task.aligned}
    digests = data_sha256(run, task)
    path = {} if digests is None else {"data_path": run.task.options.get("path")}
    for directory in directories:
        control.note(directory, parameters=count, chance=chance, data_sha256=digests, **path)
    return list(range(len(configs)))


def data_sha256(run: RunConfig, task: Task) -> dict[str, str] | None:
    """The digest of each split of a text that the run reads; None for a task that draws its examples."""
    if not isinstance(task, tasks.Text):
        return None
    return {split: task.for_split(split).sha256 for split in ("train", *tested(run))}


def _stride(run: RunConfig) -> int:
    """Steps of one call of the compiled program: it divides every interval, so that there is one program."""
    intervals = (run.train.steps, run.train.log_every, run.train.checkpoint_every, run.evaluate.every)
    return math.gcd(*(interval for interval in intervals if interval))


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _record(run, directories, alive: list[int], metrics: Metrics, step: int, seconds: float, control: Control) -> None:
    """Log the last step of the stride; runs with a loss or a gradient that is not finite end here, and leave `alive`."""
    here = jax.tree.map(np.asarray, metrics)
    for i in list(alive):
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], here)
        if bad := _nan(mine, step):
            control.fail(directories[i], *bad)
            alive.remove(i)
            continue
        numbers = {name: float(values[-1]) for name, values in mine._asdict().items()}
        control.step(directories[i], step, loss=numbers["loss"])
        if _due(step, run.train.log_every) or step == run.train.steps:
            control.metrics(directories[i], {"step": step, **numbers, "seconds": round(seconds, 3)})


def _nan(metrics: Metrics, step: int) -> tuple[int, str] | None:
    """The first step of a stride that ends at `step` where loss or gradient was not finite, and why that ends the run.

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


def _save(run: RunConfig, directories, alive: list[int], state: State, step: int) -> None:
    here = jax.device_get(state)
    for i in alive:
        checkpoint.save(directories[i] / CHECKPOINTS, step, _member(here, i), keep=run.train.keep)


def _evaluate(
    evaluator: Evaluator, population: Member, directories, alive, state: State, step: int, control: Control, splits
) -> None:
    for found in evaluator(state.params, splits, population.encoding):
        for i in alive:
            control.results(directories[i], *({"step": step, **record} for record in found[i]))
        if control.stopping():
            return


def _member(tree: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[i], tree)


def fingerprint(params: PyTree) -> str:
    """One sha256 of all parameters, in the order of the tree; manifests of finished runs have it as parameters_sha256."""
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        total.update(np.ascontiguousarray(leaf).tobytes())
    return total.hexdigest()
