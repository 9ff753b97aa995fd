"""Our results beside published ones, for tasks for which the two can be compared.

The numbers of `published.csv` are copied from the sources that its last column names, and say under which of our names
they belong. Protocols differ (size, steps, tuning, selection of runs), so this is a comparison of directions, not a
reproduction:

* lengths are compared as multiples of the longest training length, because ours is another one;
* an accuracy stands beside the median of our runs, each its mean over the lengths of that range, linear between our tests;
* of language models, whose units differ, only the rise of the loss over that at the training length is compared:
  ln(perplexity / perplexity at the training length), in nats per their token and per our byte;
* beside it stands our number counted as the paper counts: the mean of all runs, or of those alone that fitted the trained
  lengths. It is no result of ours where runs were left out;
* what differs between the two protocols is computed from our config (`protocols.py`).
"""

import csv
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from attnjax.records.stored import Run
from attnjax.records.values import DECIMALS, as_dict, text
from attnjax.report.groups import config_of
from attnjax.report.intervals import Estimate, of_runs
from attnjax.report.tables import Summary, Task
from experiments.published.agreement import About, Ranked
from experiments.published.protocols import Differs, counted, differs

LOSSES = (("perplexity_nonoverlapping", "loss_nonoverlapping"), ("perplexity_sliding", "loss_sliding"))
DEFAULTS = (("copy", "variant=cmc"), ("reverse", "variant=mc"), ("addition", "order=plain"))
"""What a task's option is where a config does not give it."""
NEAR = 0.05
"""How far one of our lengths may be, relatively, from a single published one."""

WINDOWS = (("perplexity_nonoverlapping", ", separate windows"), ("perplexity_sliding", ", sliding window"))


@dataclass(frozen=True)
class Cell:
    """One published number: `value` at lengths `low` to `high` after training on lengths up to `trained`."""

    paper: str
    task: str
    options: str
    encoding: str
    policy: str
    theirs: str
    metric: str
    trained: int
    low: int
    high: int
    value: float
    runs: str
    source: str


@dataclass(frozen=True)
class Counted:
    """Our number as the paper counts: the mean of `kept` of `runs` runs; NaN where it keeps none."""

    value: float
    kept: int
    runs: int


@dataclass(frozen=True)
class Pair:
    """A published number and ours; `ours` and `counted` are None where our runs were not tested in that range.

    `panel` names our task where several of the sweep stand beside the number. `unfitted`: our runs have not learned the task.
    """

    cell: Cell
    published: float
    label: str
    lengths: tuple[int, ...]
    ours: Estimate | None
    policy: str
    unfitted: bool
    counted: Counted | None
    differs: tuple[Differs, ...]
    config: Mapping[str, Any]
    panel: str = ""


def cells() -> tuple[Cell, ...]:
    """Every number of published.csv, whose columns are the fields of `Cell`."""
    lines = resources.files("experiments.published").joinpath("published.csv").read_text(encoding="utf-8").splitlines()
    return tuple(map(cell, csv.DictReader(lines)))


def cell(row: dict[str, Any]) -> Cell:
    """One line of published.csv."""
    whole = {key: int(row[key]) for key in ("trained", "low", "high")}
    fields: dict[str, Any] = {**row, **whole, "value": float(row["value"])}
    return Cell(**fields)


def pairs(summary: Summary) -> tuple[Pair, ...]:
    """Every published number for which the sweep has the task and the encoding, past the training length."""
    known = cells()
    past = [cell for cell in known if cell.low > cell.trained]
    several = {cell for cell in past if sum(describes(cell, task) for task in summary.tasks) > 1}
    return tuple(
        replace(pair, panel=task.panel.label) if cell in several else pair
        for task in summary.tasks
        for cell in past
        if describes(cell, task)
        for pair in matching(cell, task, known)
    )


def describes(cell: Cell, task: Task) -> bool:
    """Whether a published number is about this task."""
    if cell.task != task.panel.task:
        return False
    options = as_dict(as_dict(config_of(task.panel.runs).get("task")).get("options"))
    given = {f"{key}={value}" for key, value in options.items()}
    name = cell.options.partition("=")[0]
    return not cell.options or cell.options in given or (name not in options and (cell.task, cell.options) in DEFAULTS)


def matching(cell: Cell, task: Task, published: tuple[Cell, ...]) -> Iterator[Pair]:
    """A published number beside every variant of its encoding that measured its metric."""
    key = dict(LOSSES).get(cell.metric, cell.metric)
    scored = next((one for one in task.scores if one.metric.key == key), None)
    if scored is None:
        return
    for variant in task.panel.variants:
        if variant.encoding != cell.encoding:
            continue
        config = config_of(variant.runs)
        policy = text(as_dict(config.get("positions")).get("policy")) or "arange"
        rising = cell.metric in dict(LOSSES)
        low, high = (cell.low, cell.high) if not rising else (cell.low * (1 - NEAR), cell.high * (1 + NEAR))
        ours = task.panel.trained[1]
        lengths = tuple(x for x in scored.beyond if low * ours <= x * cell.trained <= high * ours)
        ended = [run for run in variant.runs if run.id in scored.curve.index]
        curve = scored.curve.loc[[run.id for run in ended]]
        scores = rise(curve, lengths, ours, scored.metric.worst) if rising else average(curve, lengths)
        value = rise_published(cell, published) if rising else cell.value
        known = ~np.isnan(scores)
        median = of_runs(scores[known]) if known.any() else None
        within = scored.runs.within[curve.index]
        as_theirs = as_counted(cell, ended, within, scores) if known.any() else None
        unfitted, difference = variant.label in task.unfitted, differs(cell, config)
        yield Pair(cell, value, variant.label, lengths, median, policy, unfitted, as_theirs, difference, config)


def as_counted(cell: Cell, runs: Sequence[Run], within: Iterable[float], scores: Float[np.ndarray, " R"]) -> Counted:
    """Our scores as the paper counts them, see `protocols.counted`. Those of which a record is lost are left out."""
    kept = ~np.isnan(scores)
    if counted(cell) == "fitted":
        kept &= np.array([survives(run, score) for run, score in zip(runs, within, strict=True)], bool)
    return Counted(float(np.mean(scores[kept])) if kept.any() else np.nan, int(kept.sum()), len(scores))


def survives(run: Run, within: float) -> bool:
    """Whether a run answered all examples of the trained lengths, of its last validation if that could have ended it."""
    validated = [row for row in run.results if (row.split, row.metric) == ("validation", "exact_match")]
    if as_dict(run.config.get("train")).get("until", 0.0) != 1.0 or not validated:
        return within >= 1.0
    last = max(row.step for row in validated)
    return all(row.value >= 1.0 for row in validated if row.step == last)


def average(curve: pd.DataFrame, lengths: tuple[int, ...]) -> Float[np.ndarray, " R"]:
    """The mean of every run over all whole lengths from the first to the last of these, linear between them.

    Published means are over every length of a range, and tests of ours crowd where curves bend. Nothing where there is none.
    """
    place = [length for length in curve if length in lengths]
    if not place:
        return np.zeros(0)
    every = np.arange(place[0], place[-1] + 1)
    over = lambda row: np.mean(row) if np.isinf(row).any() else np.mean(np.interp(every, place, row))
    return np.array([over(row) for row in curve[place].to_numpy()])


def rise(curve: pd.DataFrame, lengths: tuple[int, ...], trained: int, worst: float) -> Float[np.ndarray, " R"]:
    """How much the loss of every run at these lengths lies above that at the training length; the worst where one of the two
    is infinite, as for failed runs.
    """
    start, ends = average(curve, (trained,)), average(curve, lengths)
    if not (len(start) and len(ends)):
        return np.zeros(0)
    failed = np.isinf(ends) | np.isinf(start)
    return np.where(failed, worst, ends - np.where(failed, 0.0, start))


def rise_published(cell: Cell, known: tuple[Cell, ...]) -> float:
    """The same rise, computed from published perplexities."""
    same = ("paper", "task", "encoding", "metric", "trained")
    key = [getattr(cell, name) for name in same]
    start = next(c for c in known if [getattr(c, name) for name in same] == key and c.low == c.trained)
    return float(np.log(cell.value / start.value))


def about(cell: Cell, panel: str = "") -> About:
    """Paper, task, metric and lengths of a published number; the task with ours where there are several."""
    task = f"{cell.task} {cell.options}".strip() + dict(WINDOWS).get(cell.metric, "")
    task += f" (ours: {panel})" if panel else ""
    theirs = f"{cell.low}-{cell.high} of {cell.trained}" if cell.low < cell.high else f"{cell.low} of {cell.trained}"
    return cell.paper, task, cell.metric, theirs


def ranked(found: Sequence[Pair]) -> list[Ranked]:
    """The pairs that two rankings have in common: of encodings that fitted here and have the same positions there.

    Of several variants of an encoding the one is ranked that differs least from the published protocol.
    """
    comparable = [pair for pair in found if not pair.unfitted and pair.policy == pair.cell.policy]
    return [
        Ranked(
            about(pair.cell, pair.panel), pair.label, round(pair.ours.value, DECIMALS), round(pair.published, DECIMALS)
        )
        for pair in chosen(comparable, lambda pair: (pair.cell, pair.panel))
        if pair.ours
    ]


def chosen(found: Iterable[Pair], key: Callable[[Pair], Hashable]) -> list[Pair]:
    """Of the pairs with a result and the same key, the one that differs least from the published protocol, of those that fitted
    if some did; of equals the first.
    """
    best: dict[Hashable, Pair] = {}
    worth = lambda pair: (pair.unfitted, len(pair.differs))
    for pair in found:
        of = key(pair)
        if pair.ours and (of not in best or worth(pair) < worth(best[of])):
            best[of] = pair
    return list(best.values())


def counted_words(one: Counted | None, number: Callable[[float], str]) -> str:
    """Our number as the paper counts, with how many runs it keeps."""
    if one is None:
        return ""
    if not one.kept:
        return f"none of {one.runs} runs is without an error there"
    return f"{number(one.value)} (mean of {one.kept} of {one.runs})"
