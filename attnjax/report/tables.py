"""All numbers of a report, as tables (pandas): `summarise` makes them from the records; figures, files and the page only print.

    answer        a row per task and variant: median past training, within it and of the length factor, how many runs fitted
    lengths       a row per task, metric, variant and length: median, interval or range, and what guessing and n-grams score
    differences   a row per pair of variants that fitted: mean difference of runs that share their seeds, exact p
    runs          a row per run: seeds, how it ended, its scores

An estimate NAME has the columns NAME, NAME_low, NAME_high and NAME_kind, which says what the two ends are: "95 %", "range" of
the runs, or "none". Every row carries the ids of its cell or runs, so each number leads to the records that made it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attnjax.records.typed import Sweep
from attnjax.records.values import DECIMALS, text
from attnjax.report import intervals
from attnjax.report.comparisons import Difference, differences, seeds_of
from attnjax.report.groups import Panel, Variant, panels
from attnjax.report.intervals import Estimate
from attnjax.report.metrics import Metric, declared, ordered
from attnjax.report.scores import Scores, fitted_runs, levels, metric_keys, metric_of, outcome, scores


@dataclass(frozen=True)
class Task:
    """One task: its scores under each of its metrics, of which the first is compared, and the tables made of them.

    answer, lengths: rows of the tables of the report, see the text of the module.
    levels: of each metric what guessing and n-gram models score, {name: {length: value}}.
    compared: the differences of variants that fitted, under the first metric.
    """

    panel: Panel
    scores: tuple[Scores, ...]
    answer: pd.DataFrame
    lengths: pd.DataFrame
    levels: tuple[dict[str, dict[int, float]], ...]
    compared: tuple[Difference, ...]

    @property
    def metric(self) -> Metric:
        """The metric that is compared."""
        return self.scores[0].metric

    @property
    def unfitted(self) -> frozenset[str]:
        """The variants that did not learn the task: what they do past the training lengths says nothing."""
        return frozenset(self.answer.variant[self.answer.unfitted])

    @property
    def ranked(self) -> list[Variant]:
        """The variants, best first, then those that did not fit, which have no rank."""
        known = {variant.label: variant for variant in self.panel.variants}
        return [known[label] for label in self.answer.variant]


@dataclass(frozen=True)
class Summary:
    """A whole sweep in numbers, with sentences about what a reader must know before believing them."""

    sweep: Sweep
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()

    @property
    def answer(self) -> pd.DataFrame:
        """The answer of all tasks."""
        return pd.concat([task.answer for task in self.tasks], ignore_index=True)

    @property
    def lengths(self) -> pd.DataFrame:
        """The scores at every length, of all tasks."""
        return pd.concat([task.lengths for task in self.tasks], ignore_index=True)

    @property
    def differences(self) -> pd.DataFrame:
        """The paired differences of all tasks."""
        rows = [
            {"task": task.panel.label, "metric": task.metric.key, **_difference(one)}
            for task in self.tasks
            for one in task.compared
        ]
        return pd.DataFrame(rows, columns=None if rows else ["task", "metric", "first", "second"])

    @property
    def runs(self) -> pd.DataFrame:
        """All runs, those of no known cell last."""
        rows, placed = [], set()
        for task in self.tasks:
            scored = task.scores[0].runs
            for variant in task.panel.variants:
                for run in variant.runs:
                    known = scored.loc[run.id].to_dict() if run.id in scored.index else {}
                    named = {"task": task.panel.label, "variant": variant.label, **_run(run)}
                    rows.append(named | {"metric": task.metric.key, **known})
                    placed.add(run.id)
        rows += [_run(run) for run in self.sweep.runs if run.id not in placed]
        return pd.DataFrame(rows)


def summarise(sweep: Sweep, tuned: Iterable[str] = ()) -> Summary:
    """Return all numbers of a report; `tuned` are the fields that the sweep was tuned over.

    Raises ValueError where no run has ended yet with a result.
    """
    first = declared(text(sweep.spec.get("protocol")))
    found = tuple(task(panel, first) for panel in panels(sweep.runs, tuned) if metric_keys(panel))
    if not found:
        states = ", ".join(f"{run.id} is {run.state}" for run in sweep.runs[:5])
        raise ValueError(f"no run of {sweep.name!r} has measured anything at a test length yet: {states} ...")
    return Summary(sweep, found)


def task(panel: Panel, first: tuple[str, ...]) -> Task:
    """Return the numbers of one task; the metrics in `first` come first."""
    metrics = [item.of_task(panel.task) for item in ordered(metric_keys(panel), first)]
    found = tuple(scores(panel, item) for item in metrics)
    reach = next((one for one in found if one.metric == metric_of(metrics)), found[0])
    fits = fitted_runs(panel)
    rows = pd.DataFrame([_answer(panel, variant, found, reach, fits) for variant in panel.variants])
    sign = -1 if metrics[0].higher else 1
    rank = np.where(rows.unfitted, np.inf, sign * rows.past.round(DECIMALS))
    rows = (
        rows.assign(rank=rank).sort_values(["unfitted", "rank"], kind="stable", ignore_index=True).drop(columns="rank")
    )
    unfitted = set(rows.variant[rows.unfitted])
    fitted = [variant for variant in panel.variants if variant.label not in unfitted]
    known = tuple(levels(panel, one.metric, one.lengths) for one in found)
    by_length = [
        row
        for one, level in zip(found, known, strict=True)
        for variant in panel.variants
        for row in _lengths(panel, variant, one, level)
    ]
    return Task(panel, found, rows, pd.DataFrame(by_length), known, tuple(differences(found[0], fitted)))


def columns(name: str, found: Estimate | None) -> dict[str, Any]:
    """Return the four columns of an estimate."""
    found = found or Estimate(np.nan, np.nan, np.nan, intervals.NONE)
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high, f"{name}_kind": found.kind}


def estimate(row: Any, name: str) -> Estimate | None:
    """Return the estimate in a row of a table; None where nothing was measured."""
    if pd.isna(row[name]):
        return None
    return Estimate(row[name], row[f"{name}_low"], row[f"{name}_high"], row[f"{name}_kind"])


def middle(values: pd.Series) -> Estimate | None:
    """Return the median and interval of the runs that have a score."""
    known = values.dropna().to_numpy()
    return intervals.of_runs(known) if len(known) else None


def _answer(
    panel: Panel, variant: Variant, found: tuple[Scores, ...], reach: Scores, fits: set[str] | None
) -> dict[str, Any]:
    ends = [outcome(run) for run in variant.runs]
    ended = [run.id for run, end in zip(variant.runs, ends, strict=True) if end != "unfinished"]
    fit = None if fits is None else sum(run in fits for run in ended)
    first = found[0]
    return {
        "task": panel.label,
        "variant": variant.label,
        "encoding": variant.encoding,
        "cell": variant.cell,
        "metric": first.metric.key,
        "trained": panel.trained[1],
        **columns("past", middle(first.runs.past[ended])),
        **columns("within", middle(first.runs.within[ended])),
        **columns("factor", middle(reach.runs.factor[ended])),
        **{
            key: value
            for one in found[1:]
            for key, value in columns(f"past_{one.metric.key}", middle(one.runs.past[ended])).items()
        },
        "planned": len(ends),
        "done": ends.count("done"),
        "failed": ends.count("failed"),
        "fitted": fit,
        "unfitted": fit is not None and 2 * fit < len(ended),
        "runs": " ".join(run.id for run in variant.runs),
    }


def _lengths(
    panel: Panel, variant: Variant, scored: Scores, levels: dict[str, dict[int, float]]
) -> list[dict[str, Any]]:
    curve = scored.curve.loc[[run.id for run in variant.runs if run.id in scored.curve.index]]
    return [
        {
            "task": panel.label,
            "metric": scored.metric.key,
            "variant": variant.label,
            "cell": variant.cell,
            "length": length,
            "past": length in scored.beyond,
            **columns("median", middle(curve[length])),
            "runs": int(curve[length].count()),
            **{name: level[length] for name, level in levels.items()},
        }
        for length in scored.lengths
        if curve[length].count()
    ]


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "first": one.first.label,
        "second": one.second.label,
        "pairs": len(one.pairs),
        **columns("mean", one.mean),
        "examples": one.examples,
        "documents": one.documents,
        "p": one.p,
        "p_holm": one.holm,
        "runs": " ".join(f"{run}-{other}" for run, other, _ in one.pairs),
    }


def _run(run: Any) -> dict[str, Any]:
    seed, data_seed = seeds_of(run)
    state = {"state": run.state, "remark": run.remark}
    return {"run": run.id, "cell": run.cell, "seed": seed, "data_seed": data_seed, **state}
