"""From the sweep to records: the losses of every run by length, and those of trained models whose pairs are clamped in tests.

A clamp holds the phases of some pairs at those of the distance L - 1 for all longer distances (`clamped.py`); the parameters
stay. What is clamped: "none", each pair alone ("pair 0" is the fastest), the groups of `phases.py`, and "all" (ReRoPE). Windows
are the first of those that the sweep tested. Nothing is trained.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.config import EncodingConfig, RunConfig
from attnjax.evaluation.loaded_model import LoadedModel, load
from attnjax.positions import stacked_constants
from attnjax.records import jsonl
from attnjax.records.values import as_dict
from attnjax.report import records as stored
from attnjax.tasks.base import Task
from attnjax.train.evaluate import Evaluator
from attnjax.train.model import build
from attnjax.typing import PyTree
from experiments import recorded
from experiments.unseen_phase.clamped import PATH, ClampedRoPE
from experiments.unseen_phase.phases import GROUPS, group

Record = dict[str, Any]
METRIC = "loss_sliding"
WAITING = ("pending", "running", "preempted")
"""States of runs that may still end."""
FURTHEST = 4
"""Clamps are tested at L and at so many times L."""


class Clamps:
    """Losses of trained models under clamps. Runs that differ in their base and seeds share a compiled program."""

    def __init__(self, run: RunConfig, task: Task, windows: int):
        trained = run.task.length_max
        self.lengths = (trained, FURTHEST * trained)
        model = dataclasses.replace(run.model, encoding=EncodingConfig(PATH))
        tests: dict[str, Any] = {"lengths": self.lengths, "bucket_sizes": self.lengths, "validation_lengths": ()}
        tests |= {"count": windows, "batch": min(windows, run.evaluate.batch)}
        changed = dataclasses.replace(run, model=model, evaluate=dataclasses.replace(run.evaluate, **tests))
        self._model = build(changed, task)
        self._evaluator = Evaluator(changed, task, self._model)

    def losses(self, params: PyTree, theta: float, clamped: Sequence[Sequence[int]]) -> list[list[float]]:
        """The losses of one model at each of `lengths`, for each tuple of clamped pairs, two or more of them."""
        encodings = [ClampedRoPE(theta=theta, clamped=tuple(pairs), reach=self.lengths[0] - 1) for pairs in clamped]
        numbers = jax.tree.map(jnp.asarray, stacked_constants(encodings, self._model.config.sizes))
        members = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(encodings), *leaf.shape)), params)
        by_length = [
            [next(row["value"] for row in records if row["metric"] == METRIC) for records in found]
            for found in self._evaluator(members, ("test",), numbers)
        ]
        return np.array(by_length).T.tolist()


def measure_sweep(runs: pathlib.Path, path: pathlib.Path, windows: int, say: Callable[[str], None] = print) -> None:
    """Append the records of every run that is done and that the file does not hold yet.

    Raises ValueError where the folder holds no sweep, or a run that failed or is not one of RoPE on Markov chains, for fewer
    than one window, and where the file holds records of another protocol; at the end, where runs are still to be trained.
    """
    if windows < 1:
        raise ValueError(f"clamps are tested on one window or more, got {windows}")
    sweep = stored.read(runs)
    for run in sweep.runs:
        check(run)
    tables = recorded.begin(path, {"kind": "protocol", "sweep": sweep.name, "windows": windows})
    there = {record["run"] for record in tables if record.get("kind") == "run"}
    chosen = set(clamped_bases([theta_of(run) for run in sweep.runs]))
    programs: dict[int, Clamps] = {}
    for run in sweep.runs:
        if run.id in there or run.state != "done":
            continue
        found = list(clamps(load(runs / run.id), windows, programs)) if theta_of(run) in chosen else []
        # At the end: a run whose records were cut off by a crash is measured again.
        jsonl.append(path, *found, of_run(run))
        say(f"{run.id}: base {theta_of(run):g}, L = {trained_of(run)}")
    if left := [run for run in sweep.runs if run.state != "done"]:
        raise ValueError(
            f"{len(left)} of {len(sweep.runs)} runs are still to be trained, such as {left[0].id}; the others are measured: go "
            "on with the sweep, and then with this command"
        )


def of_run(run: stored.Run) -> Record:
    """What a run lost at each test length, and what the best prediction loses on the same windows."""
    losses = {row.length: row.value for row in run.final if row.metric == METRIC and row.split != "validation"}
    told = as_dict(run.manifest.get("baselines"))
    best = [as_dict(as_dict(told.get(str(n))).get(METRIC)).get("bigram") for n in sorted(losses)]
    if not losses or None in best:
        raise ValueError(f"run {run.id} has no {METRIC}, or no loss of the best prediction: its records are incomplete")
    lengths = sorted(losses)
    return {**about(run), "kind": "run", "lengths": lengths, "losses": [losses[n] for n in lengths], "best": best}


def clamps(subject: LoadedModel, windows: int, programs: dict[int, Clamps]) -> Iterator[Record]:
    """The losses of a trained model under every clamp; its program is made or found in `programs`, by trained length."""
    run, task = subject.run, subject.task
    assert run is not None
    assert task is not None
    theta, trained = float(run.model.encodings[0].options["theta"]), run.task.length_max
    if trained not in programs:
        programs[trained] = Clamps(run, task, windows)
    program = programs[trained]
    sets = interventions(theta, subject.config.sizes.head_dim, trained)
    found = program.losses(nnx.to_pure_dict(subject.params), theta, list(sets.values()))
    common = {"kind": "clamp", "run": subject.name, "theta": theta, "trained": trained, "seed": run.seed}
    for (name, pairs), losses in zip(sets.items(), found, strict=True):
        yield {**common, "what": name, "pairs": pairs, "lengths": program.lengths, "losses": losses}


def interventions(theta: float, head: int, trained: int) -> dict[str, tuple[int, ...]]:
    """The pairs of each clamp, by its name; groups without a pair are left out.

    Example:
        >>> found = interventions(10_000.0, 8, 128)
        >>> found["none"], found["pair 2"], found["fast"], found["slow"], "critical" in found
        ((), (2,), (0, 1), (2, 3), False)
    """
    pairs = head // 2
    named = {name: tuple(np.flatnonzero(group(theta, head, trained, name)).tolist()) for name in GROUPS}
    each = {f"pair {k}": (k,) for k in range(pairs)}
    return {"none": (), **each, **{name: ks for name, ks in named.items() if ks}, "all": tuple(range(pairs))}


def clamped_bases(bases: Sequence[float]) -> list[float]:
    """Every second base, from the smallest.

    Example:
        >>> clamped_bases([100.0, 10.0, 1000.0, 10.0])
        [10.0, 1000.0]
    """
    return sorted(set(bases))[::2]


def check(run: stored.Run) -> None:
    """Raise ValueError for a run that can never be compared, or that is not of RoPE on Markov chains."""
    if run.state not in ("done", *WAITING):
        raise ValueError(f"run {run.id} is {run.state}: the comparison is of all runs of the sweep")
    name, task = as_dict(as_dict(run.config.get("model")).get("encoding")).get("name"), as_dict(run.config.get("task"))
    if name != "rope" or task.get("name") != "markov":
        raise ValueError(f"run {run.id} is of {name} on {task.get('name')}: phases are those of rope, on markov")


def about(run: stored.Run) -> Record:
    """Run, base, trained length and seed."""
    return {"run": run.id, "theta": theta_of(run), "trained": trained_of(run), "seed": run.config["seed"]}


def theta_of(run: stored.Run) -> float:
    """The base of a run."""
    return float(run.config["model"]["encoding"]["options"]["theta"])


def trained_of(run: stored.Run) -> int:
    """The length that a run was trained at."""
    return int(run.config["task"]["length_max"])
