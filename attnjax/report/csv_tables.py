"""The tables of a report as CSV files.

    table.csv        a row per task, variant and metric: every aggregate, how many runs, which ones
    lengths.csv      a row per length of these: median, interval or range, number of runs, chance, n-gram models
    runs.csv         a row per run: seeds, how it ended, its scores, how far it reaches, its folder
    paired.csv       a row per pair of variants: mean difference of runs that share their seeds, interval, exact p
    improvement.csv  a row per pair of variants: probability of improvement, exact p
    overall.csv      a row per variant and metric that several tasks have: aggregates over these tasks
    best_of.csv      a row per n: the expected best of n runs, which is how a maximum grows with their number

A column `..._interval` says what stands in the two before it: "95 %", "range" of the runs, or "none".
Every row carries the ids of its cell or runs, so each number leads to the records that made it.
"""

from collections.abc import Iterator

import numpy as np

from attnjax.report.examples import over_examples
from attnjax.report.formatting import csv_text, exact, one_line
from attnjax.report.intervals import NONE, Estimate
from attnjax.report.scores import outcome
from attnjax.report.statistics import expected_best
from attnjax.report.summary import NGRAMS, Counts, Row, Summary, Task, above, guess

KEYS = ("task", "variant", "encoding", "cell", "metric")


def csv_files(summary: Summary) -> dict[str, str]:
    """The text of every CSV file, by name."""
    return {
        "table.csv": aggregates(summary),
        "lengths.csv": curves(summary),
        "runs.csv": runs(summary),
        "paired.csv": paired(summary),
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
    """An estimate as four cells: value, low, high, and what these two are."""
    if estimate is None:
        return ["", "", "", ""]
    known = estimate.kind != NONE
    return [
        exact(estimate.value),
        *(exact(end) if known else "" for end in (estimate.low, estimate.high)),
        estimate.kind,
    ]


def named(*names: str) -> list[str]:
    """The columns of these estimates."""
    return [f"{name}{column}" for name in names for column in ("", "_low", "_high", "_interval")]


def aggregates(summary: Summary) -> str:
    """The text of table.csv."""
    header = [*KEYS, "trained_min", "trained_max", "tested_past"]
    header += named("median_past", "median_within", "mean_past_over_examples")
    header += ["mean_past", "iqm_past", "best_run_past", "mean_past_fitted_only", "chance_past", "above_chance"]
    header += [*named("length_factor", "area_over_log_length"), "reach_metric"]
    header += ["planned", "done", "failed", "unfinished", "fitted", "fitted_of", "not_fitted", "runs"]
    rows = []
    for task, row, count in each(summary):
        rest = [row.mean, row.iqm, row.best, row.fitted, guess(task, row), above(task, row)]
        reach = task.reach[task.panel.variants.index(row.scored.variant)] if task.reach else None
        reached = [*ends(reach.factor), *ends(reach.area), reach.metric.key] if reach else [""] * 9
        fitted = "" if count.fit is None else str(count.fit)
        ended = [count.planned, count.done, count.failed, count.unfinished, fitted, count.ended]
        ended.append("yes" if count.unfitted else "")
        used = " ".join(run.id for run in row.scored.runs)
        lengths = " ".join(map(str, row.scored.beyond))
        cells = [
            *keys(task, row),
            *task.panel.trained,
            lengths,
            *ends(row.past),
            *ends(row.within),
            *ends(row.over_examples),
        ]
        rows.append([*cells, *map(exact, rest), *reached, *ended, used])
    return csv_text(header, rows)


def curves(summary: Summary) -> str:
    """The text of lengths.csv."""
    rows = []
    for task, row, _ in each(summary):
        levels = task.chance.get(row.scored.metric.key)
        chance = dict(zip(row.scored.lengths, levels, strict=True)) if levels is not None else {}
        ngrams = task.baselines.get(row.scored.metric.key, {})
        for x, found in row.curve.estimates.items():
            place = row.scored.lengths.index(int(x))
            known = [exact(float(ngrams[name][place])) if name in ngrams else "" for name in NGRAMS]
            over = ends(over_examples(row.scored, [int(x)]))
            rows.append([*keys(task, row), int(x), *ends(found), found.runs, *over, exact(chance.get(int(x))), *known])
    header = ["length", "median", "low", "high", "interval", "runs", *named("mean_over_examples"), "chance", *NGRAMS]
    return csv_text([*KEYS, *header], rows)


def runs(summary: Summary) -> str:
    """The text of runs.csv."""
    metrics = list(dict.fromkeys(metric.key for task in summary.tasks for metric in task.metrics))
    scores = {
        (run.id, row.scored.metric.key): score
        for _, row, _ in each(summary)
        for run, score in zip(row.scored.runs, row.scored.past, strict=True)
    }
    reached = {
        run: (exact(factor), exact(area))
        for task in summary.tasks
        for reach in task.reach
        for run, factor, area in zip(reach.runs, reach.factors, reach.areas, strict=True)
    }
    rows = []
    for task in summary.tasks:
        for variant in task.panel.variants:
            for run in variant.runs:
                seeds = [str(run.config.get(name, "")) for name in ("seed", "data_seed")]
                cells = [run.id, task.panel.label, variant.label, variant.cell, *seeds, run.state, outcome(run)]
                past = [exact(scores.get((run.id, key))) for key in metrics]
                rows.append([*cells, one_line(run.remark), *past, *reached.get(run.id, ("", ""))])
    header = ["run", "task", "variant", "cell", "seed", "data_seed", "state", "counts_as", "reason"]
    return csv_text([*header, *(f"{key}_past" for key in metrics), "length_factor", "area_over_log_length"], rows)


def paired(summary: Summary) -> str:
    """The text of paired.csv."""
    rows = [
        [
            *start,
            labels[item.first],
            labels[item.second],
            item.mean.runs,
            item.examples,
            item.documents,
            *ends(item.mean),
            *p,
        ]
        for task in summary.tasks
        for labels in [[variant.label for variant in task.panel.variants]]
        for item in task.differences
        for start, p in [([task.panel.label, task.metrics[0].key], [exact(item.p), exact(item.holm)])]
    ]
    header = [
        "task",
        "metric",
        "variant",
        "less",
        "pairs",
        "examples",
        "documents",
        *named("mean_difference"),
        "p",
        "p_holm",
    ]
    return csv_text(header, rows)


def improvement(summary: Summary) -> str:
    """The text of improvement.csv."""
    rows = [
        [
            task.panel.label,
            task.metrics[0].key,
            labels[i],
            labels[j],
            *map(exact, (found.probability, found.p, found.holm)),
        ]
        for task in summary.tasks
        for labels in [[variant.label for variant in task.panel.variants]]
        for (i, j), found in sorted(task.improvement.items(), key=lambda item: item[0])
    ]
    return csv_text(["task", "metric", "variant", "beats", "probability", "p", "p_holm"], rows)


def overall(summary: Summary) -> str:
    """The text of overall.csv."""
    rows = [
        [
            row.label,
            row.encoding,
            row.metric.key,
            row.tasks,
            row.unfitted,
            *ends(row.past),
            exact(row.mean),
            " ".join(row.runs),
        ]
        for row in summary.overall
    ]
    header = ["variant", "encoding", "metric", "tasks", "not_fitted_on", *named("iqm_past"), "mean_past", "runs"]
    return csv_text(header, rows)


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
