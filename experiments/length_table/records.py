"""What the table keeps of each run that ended, a line of records.jsonl: who it is, and its metric at each tested length.

A run is 90 kB on the disk, with the scores of its examples, and the table has 1,320 runs. The id of a run is the hash of its
config, so that a line leads to the run that the config trains again.
"""

import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from attnjax.records import jsonl
from attnjax.records.values import as_dict, finite, number, text, whole
from attnjax.report.comparisons import seeds_of
from attnjax.report.examples import text_of
from attnjax.report.metrics import KNOWN, Metric, metric
from attnjax.report.reach import metric_of
from attnjax.report.records import Run, Sweep, encoding_names, read
from attnjax.report.scores import at, outcome, values
from experiments import recorded

BIGRAM = "bigram"
SUBJECT = "the table of length factors"
"""What errors call the file of records."""


class Kept(NamedTuple):
    """A run that ended. `values` has its metric at each of `lengths`, nothing of a run that failed; `longest` is the longest
    trained length; `bigram` is what pairs score there on the same windows, None for a task without that baseline.
    """

    run: str
    task: str
    encoding: str
    seeds: tuple[int, ...]
    learning_rate: float
    longest: int
    metric: str
    lengths: tuple[int, ...]
    values: tuple[float, ...]
    bigram: float | None = None
    seconds: float = math.nan

    @property
    def measure(self) -> Metric:
        """What `values` are."""
        return metric(self.metric)


def kept(runs: Sequence[Run]) -> tuple[list[Kept], list[str]]:
    """What is kept of the runs of a sweep that ended, and why others that ended are left out.

    The metric and the lengths of a task are those that any of its runs measured, so that a failed run counts at all of them.
    Raises ValueError for a task whose runs read different texts.
    """
    ended = [run for run in runs if run.config and outcome(run) != "unfinished"]
    found, left = [], []
    for name in sorted({task_of(run) for run in ended}):
        members = [run for run in ended if task_of(run) == name]
        if len(texts := {text_of(run) for run in members} - {""}) > 1:
            raise ValueError(
                f"the runs of {name} read {len(texts)} different texts, whose losses do not compare: keep those of one"
            )
        measured = {row.metric for run in members for row in run.final}
        of_task = metric_of([one for one in KNOWN if one.key in measured])
        if of_task is None:
            left += [f"run {run.id} measured nothing at a test length" for run in members]
            continue
        rows = [row for run in members for row in run.final if row.metric == of_task.key]
        lengths = tuple(sorted({row.length for row in rows if row.split != "validation"}))
        for run in members:
            one = kept_run(run, of_task, lengths)
            if any(math.isnan(value) for value in one.values):
                left.append(f"run {run.id} has no {of_task.key} at some length that others of its task have")
            else:
                found.append(one)
    return found, left


def kept_run(run: Run, of_task: Metric, lengths: tuple[int, ...]) -> Kept:
    """What is kept of one run; NaN where it has no value."""
    train, longest = as_dict(run.config.get("train")), as_dict(run.config.get("task")).get("length_max")
    measured = values(run.final, of_task)
    levels = as_dict(as_dict(run.manifest.get("baselines")).get(str(longest)))
    level = as_dict(levels.get(of_task.key)).get(BIGRAM)
    seconds, together = run.manifest.get("wall_seconds"), run.manifest.get("population_size")
    shared = float(seconds) / together if number(seconds) and whole(together) and together else math.nan
    return Kept(
        run=run.id,
        task=task_of(run),
        encoding="+".join(encoding_names(run.config)),
        seeds=seeds_of(run),
        learning_rate=float(train.get("learning_rate", math.nan)),
        longest=int(longest) if whole(longest) else 0,
        metric=of_task.key,
        lengths=lengths,
        values=tuple(at(measured, length) for length in lengths) if outcome(run) == "done" else (),
        bigram=float(level) if finite(level) else None,
        seconds=shared,
    )


def task_of(run: Run) -> str:
    """The name of the task of a run."""
    return text(as_dict(run.config.get("task")).get("name"))


def keep(folders: Iterable[pathlib.Path], out: pathlib.Path) -> list[str]:
    """Write the runs of these sweeps that ended to out/records.jsonl; returns a sentence about each run left out.

    Of other tasks the runs that the file holds already stay. Raises ValueError where a folder holds no runs, where none has
    ended, where two sweeps have the same run, or where the file is damaged.
    """
    sweeps = [read(folder) for folder in folders]
    found, left = kept([run for one in sweeps for run in one.runs])
    if not found:
        raise ValueError(f"no run in {', '.join(map(str, folders))} has ended yet")
    ids = [one.run for one in found]
    if len(set(ids)) < len(ids):
        raise ValueError(
            f"two of the folders hold run {next(one for one in ids if ids.count(one) > 1)}: give one of them"
        )
    tasks, there = {one.task for one in found}, out / recorded.RECORDS
    before = recorded.read(there, SUBJECT, parsed) if there.exists() else []
    found += [one for one in before if one.task not in tasks]
    out.mkdir(parents=True, exist_ok=True)
    new = out / f"{recorded.RECORDS}.new"
    new.unlink(missing_ok=True)
    ordered = sorted(found, key=lambda one: (one.task, one.encoding, one.seeds))
    jsonl.append(new, protocol(sweeps), *(line(one) for one in ordered))
    os.replace(new, there)
    return left


def protocol(sweeps: Sequence[Sweep]) -> recorded.Record:
    """The first line: what the config said before the runs."""
    return {"kind": "protocol", "text": text(sweeps[-1].spec.get("protocol"))}


def line(one: Kept) -> recorded.Record:
    """The line of a run; JSON has null for what is not finite."""
    return {"kind": "run", **one._asdict()}


def parsed(tables: Iterable[Mapping[str, Any]]) -> list[Kept]:
    """The runs of a file of records. Raises KeyError, TypeError or ValueError for lines that are of something else."""
    return [from_line(table) for table in tables if table["kind"] == "run"]


def from_line(table: Mapping[str, Any]) -> Kept:
    """The run of one line."""
    worst = metric(table["metric"]).worst
    fields = {name: table[name] for name in Kept._fields}
    found = Kept(**fields)._replace(
        seeds=tuple(map(int, table["seeds"])),
        lengths=tuple(map(int, table["lengths"])),
        values=tuple(worst if value is None else float(value) for value in table["values"]),
        seconds=math.nan if table["seconds"] is None else float(table["seconds"]),
    )
    if found.values and len(found.values) != len(found.lengths):
        raise ValueError(f"run {found.run} has {len(found.values)} values at {len(found.lengths)} lengths")
    if list(found.lengths) != sorted(set(found.lengths)):
        raise ValueError(f"run {found.run} has lengths that do not ascend")
    return found
