"""A trained run on its own task at lengths that it was not tested at: MQAR, flip-flop, word problems, or any other."""

import dataclasses
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from attnjax.config import RunConfig
from attnjax.records.runs import folder_of, read_config
from attnjax.sweep import find_run
from attnjax.tasks import Text
from attnjax.train import checkpoint
from attnjax.train.check import check_lengths
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import CHECKPOINTS, make_task
from attnjax.train.step import Trainer


def is_on_text(path: str | pathlib.Path) -> bool:
    """Return whether the run that a folder or a description names was trained on text."""
    return isinstance(make_task(read_config(find_run(path))), Text)


def at_lengths(path: str | pathlib.Path, lengths: Sequence[int], number: int) -> list[dict[str, float | int | str]]:
    """Return {"task", "length", "samples", "metric", "value"} of each metric of a run's task at each length.

    The examples are those of the run's own evaluation, `number` of each length.

    Raises:
      ValueError: for a length that the task does not have, or the encoding cannot read, and for a run without a checkpoint.
    """
    directory = find_run(path)
    run = _with_lengths(read_config(directory), lengths, number)
    task = make_task(run)
    check_lengths(run, task)
    trainer = Trainer(run, task)
    found = checkpoint.restore(folder_of(directory) / CHECKPOINTS, trainer.shapes())
    if found is None:
        raise ValueError(
            f"{directory} holds no checkpoint that can be read: train the run first, or see its status.json"
        )
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], found.state.params)
    out: list[dict[str, float | int | str]] = []
    for (records,) in Evaluator(run, task, trainer.model)(params, ("test",)):
        for one in records:
            about = {"task": run.task.name, "length": one["length"], "samples": number}
            out.append({**about, "metric": one["metric"], "value": one["value"]})
    return out


def table(name: str, records: Sequence[dict[str, float | int | str]]) -> str:
    """Return records in Markdown: a row per metric, a column per length."""
    lengths = sorted({int(one["length"]) for one in records})
    lines = [f"Task {records[0]['task']} of {name}:", ""]
    lines.append("| metric | " + " | ".join(f"{n:,}" for n in lengths) + " |")
    lines.append("|---" * (1 + len(lengths)) + "|")
    for metric in dict.fromkeys(str(one["metric"]) for one in records):
        found = {one["length"]: one["value"] for one in records if one["metric"] == metric}
        lines.append(f"| {metric} | " + " | ".join(f"{found[n]:.4g}" for n in lengths) + " |")
    return "\n".join(lines)


def _with_lengths(run: RunConfig, lengths: Sequence[int], number: int) -> RunConfig:
    batch = min(run.evaluate.batch, number)
    changed = {"lengths": tuple(sorted(set(lengths))), "validation_lengths": (), "count": number, "batch": batch}
    train = dataclasses.replace(run.train, until=0.0)
    return dataclasses.replace(run, evaluate=dataclasses.replace(run.evaluate, **changed), train=train)
