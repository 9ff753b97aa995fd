"""The tables of a report as CSV files.

    table.csv        a row per task, variant and metric: every aggregate, how many runs, which ones
    lengths.csv      a row per length of these: IQM, interval, number of runs, chance
    runs.csv         a row per run: seeds, how it ended, its scores, its folder
    improvement.csv  a row per pair of variants: probability of improvement
    overall.csv      a row per variant and metric that several tasks have: aggregates over these tasks
    best_of.csv      a row per n: the expected best of n runs, which is how a maximum grows with their number

Every row carries the ids of its cell or runs, so each number leads to the records that made it.
"""

from collections.abc import Iterator

import numpy as np

from attnjax.report.formatting import csv_text, exact, one_line
from attnjax.report.scores import outcome
from attnjax.report.statistics import Estimate, expected_best
from attnjax.report.summary import Counts, Row, Summary, Task, above, guess

KEYS = ("task", "variant", "encoding", "cell", "metric")


def csv_files(summary: Summary) -> dict[str, str]:
    """The text of every CSV file, by name."""
    return {
        "table.csv": aggregates(summary),
        "lengths.csv": curves(summary),
        "runs.csv": runs(summary),
        "improvement.csv": improvement(summary),
        "best_of.csv": best_of(summary),
        "overall.csv": overall(summary),
    }


def each(summary: Summary) -> Iterator[tuple[Task, Row, Counts]]:
    """Every row of a report with its task and its counts of runs."""
    for task in summary.tasks:
        for metric in task.metrics:
            for row, count in zip(task.rows[metric.key], task.counts, strict=True):
                yield task, row, count


def keys(task: Task, row: Row) -> list[str]:
    """The columns that say what a row is about."""
    variant = row.scored.variant
    return [task.panel.label, variant.label, variant.encoding, variant.cell, row.scored.metric.key]


def ends(estimate: Estimate | None) -> list[str]:
    """An estimate as three cells."""
    return (
        ["", "", ""]
        if estimate is None
        else [exact(number) for number in (estimate.value, estimate.low, estimate.high)]
    )


def aggregates(summary: Summary) -> str:
    """The text of table.csv."""
    header = [*KEYS, "trained_min", "trained_max", "tested_past"]
    header += ["iqm_past", "iqm_past_low", "iqm_past_high", "iqm_within", "iqm_within_low", "iqm_within_high"]
    header += ["mean_past", "median_past", "best_run_past", "mean_past_fitted_only", "chance_past", "above_chance"]
    header += ["planned", "done", "failed", "unfinished", "fitted", "fitted_of", "runs"]
    rows = []
    for task, row, count in each(summary):
        rest = [row.mean, row.median, row.best, row.fitted, guess(task, row), above(task, row)]
        fitted = "" if count.fit is None else str(count.fit)
        ended = [count.planned, count.done, count.failed, count.unfinished, fitted, count.ended]
        used = " ".join(run.id for run in row.scored.runs)
        lengths = " ".join(map(str, row.scored.beyond))
        cells = [*keys(task, row), *task.panel.trained, lengths, *ends(row.past), *ends(row.within)]
        rows.append([*cells, *map(exact, rest), *ended, used])
    return csv_text(header, rows)


def curves(summary: Summary) -> str:
    """The text of lengths.csv."""
    rows = []
    for task, row, _ in each(summary):
        levels = task.chance.get(row.scored.metric.key)
        chance = dict(zip(row.scored.lengths, levels, strict=True)) if levels is not None else {}
        curve = row.curve
        for x, *numbers, count in zip(curve.x, curve.value, curve.low, curve.high, curve.count, strict=True):
            known = exact(chance.get(int(x)))
            rows.append([*keys(task, row), int(x), *map(exact, numbers), int(count), known])
    return csv_text([*KEYS, "length", "iqm", "low", "high", "runs", "chance"], rows)


def runs(summary: Summary) -> str:
    """The text of runs.csv."""
    metrics = list(dict.fromkeys(metric.key for task in summary.tasks for metric in task.metrics))
    scores = {
        (run.id, row.scored.metric.key): score
        for _, row, _ in each(summary)
        for run, score in zip(row.scored.runs, row.scored.past, strict=True)
    }
    rows = []
    for task in summary.tasks:
        for variant in task.panel.variants:
            for run in variant.runs:
                seeds = [str(run.config.get(name, "")) for name in ("seed", "data_seed")]
                cells = [run.id, task.panel.label, variant.label, variant.cell, *seeds, run.state, outcome(run)]
                rows.append([*cells, one_line(run.remark), *(exact(scores.get((run.id, key))) for key in metrics)])
    header = ["run", "task", "variant", "cell", "seed", "data_seed", "state", "counts_as", "reason"]
    return csv_text([*header, *(f"{key}_past" for key in metrics)], rows)


def improvement(summary: Summary) -> str:
    """The text of improvement.csv."""
    rows = [
        [task.panel.label, task.metrics[0].key, labels[i], labels[j], *ends(estimate)]
        for task in summary.tasks
        for labels in [[variant.label for variant in task.panel.variants]]
        for (i, j), estimate in sorted(task.improvement.items())
    ]
    return csv_text(["task", "metric", "variant", "beats", "probability", "low", "high"], rows)


def overall(summary: Summary) -> str:
    """The text of overall.csv."""
    rows = [
        [row.label, row.encoding, row.metric.key, row.tasks, *ends(row.past), exact(row.mean), " ".join(row.runs)]
        for row in summary.overall
    ]
    return csv_text(["variant", "encoding", "metric", "tasks", "iqm_past", "low", "high", "mean_past", "runs"], rows)


def best_of(summary: Summary) -> str:
    """best_of.csv: over all runs of an encoding on a task, whatever else they vary, under the first metric."""
    rows = []
    for task in summary.tasks:
        pooled: dict[str, list[float]] = {}
        for row in task.rows[task.metrics[0].key] if task.metrics else ():
            sign, kept = row.scored.metric.sign, row.scored.past[~np.isnan(row.scored.past)]
            pooled.setdefault(row.scored.variant.encoding, []).extend(sign * kept)
        for encoding, scores in pooled.items():
            if scores:
                sign = task.metrics[0].sign
                found = sign * expected_best(np.array(scores))
                rows += [[task.panel.label, encoding, task.metrics[0].key, n, exact(x)] for n, x in enumerate(found, 1)]
    return csv_text(["task", "encoding", "metric", "n", "expected_best_of_n"], rows)
