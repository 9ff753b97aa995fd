"""A trained run on its own task at lengths that it was not tested at: MQAR, flip-flop, word problems, or any other."""

import dataclasses
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from attnjax.config import RunConfig
from attnjax.evaluation.loaded_model import restore
from attnjax.records.runs import read_config
from attnjax.sweep import find_run
from attnjax.tasks import Text
from attnjax.train.check import check_lengths
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task

Row = dict[str, float | int | str]


def is_on_text(path: str | pathlib.Path) -> bool:
    """Returns whether the run that a folder or a description names was trained on text."""
    return isinstance(make_task(read_config(find_run(path))), Text)


def at_lengths(path: str | pathlib.Path, lengths: Sequence[int], number: int) -> list[Row]:
    """Returns {"task", "length", "samples", "metric", "value"} of each metric of a run's task at each length.

    The examples are those of the run's own evaluation, `number` of each length.

    Raises:
      ValueError: for a length that the task does not have, or the encoding cannot read, and for a run without a checkpoint.
    """
    run = _with_lengths(read_config(find_run(path)), lengths, number)
    task = make_task(run)
    check_lengths(run, task)
    trainer, found = restore(path)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], found.state.params)
    about, kept = {"task": run.task.name, "samples": number}, ("length", "metric", "value")
    measured = Evaluator(run, task, trainer.model)(params, ("test",))
    return [{**about, **{name: one[name] for name in kept}} for (records,) in measured for one in records]


def _with_lengths(run: RunConfig, lengths: Sequence[int], number: int) -> RunConfig:
    batch = min(run.evaluate.batch, number)
    changed = {"lengths": tuple(sorted(set(lengths))), "validation_lengths": (), "count": number, "batch": batch}
    train = dataclasses.replace(run.train, until=0.0)
    return dataclasses.replace(run, evaluate=dataclasses.replace(run.evaluate, **changed), train=train)
