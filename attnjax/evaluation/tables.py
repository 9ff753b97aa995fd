"""What `attnjax evaluate` measured, as a table in Markdown and a figure.

A row is a dict with "length", what was measured ("task", or nothing for the perplexity of a text),
"samples", and a number per metric, or a "problem" that says why there are none.
"""

import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from attnjax import registry
from attnjax.evaluation.suite import CANDIDATES, THRESHOLD, Score, averages, effective_length
from attnjax.report.drawing import length_axis, new_figure, plain, save, settings
from attnjax.report.formatting import markdown_table

Row = Mapping[str, Any]
ABOUT = ("task", "length", "samples", "problem")
"""Keys of a row that are no metric."""
METRICS = MappingProxyType(
    {
        "generation": ("generation, %", ".1f"),
        "ranking": ("ranking, %", ".1f"),
        "stride": ("stride", ","),
        "ppl": ("perplexity", ".4g"),
        "nats_per_token": ("nats per token", ".4f"),
        "bits_per_byte": ("bits per byte", ".4f"),
        "tokens": ("tokens counted", ","),
        "bytes": ("bytes counted", ","),
        "long_ppl": ("LongPPL", ".4g"),
        "key_tokens": ("share of key tokens", ".2%"),
    }
)
"""Name and format of each metric; those of a run's own task have their own name, and four digits."""
PERCENT, BITS = ("generation", "ranking"), "bits_per_byte"
"""Metrics that the figure shows, beside those of a run's own task."""
SERIES = (("o", "#074a8d"), ("s", "#9a3104"), ("^", "#049f69"), ("D", "#733cb3"), ("v", "#91612b"), ("P", "#037a84"))
"""Marker and colour of each line of a panel in turn."""


def check_measured(rows: Sequence[Row]) -> None:
    """Raises ValueError where nothing could be measured, with the reasons."""
    if rows and all("problem" in row for row in rows):
        raise ValueError(f"nothing could be measured: {'; '.join(dict.fromkeys(row['problem'] for row in rows))}")


def table(rows: Sequence[Row]) -> str:
    """Returns a line per task and metric with a column per length, and why numbers are missing, each reason once.

    Example:
      >>> print(table([{"task": "vt", "length": 512, "generation": 75.0}, {"task": "vt", "length": 1024, "problem": "no"}]))
      | task | metric | 512 | 1,024 |
      | --- | ---: | ---: | ---: |
      | Variable tracking | generation, % | 75.0 | - |
      Note: no.
    """
    found = {(_label(row), row["length"]): row for row in rows}
    labels, lengths = dict.fromkeys(label for label, _ in found), sorted({length for _, length in found})
    metrics = dict.fromkeys(name for row in rows for name in row if name not in ABOUT)
    lines = [
        [label, METRICS.get(name, (name,))[0], *(_cell(found.get((label, n), {}), name) for n in lengths)]
        for label in labels
        for name in metrics
    ]
    notes = [f"Note: {text}." for text in dict.fromkeys(row["problem"] for row in rows if row.get("problem"))]
    return "\n".join([markdown_table(["task", "metric", *(f"{n:,}" for n in lengths)], lines).rstrip(), *notes])


def suite_table(name: str, scores: Sequence[Score], rows: Sequence[Row]) -> str:
    """Returns the table of a suite with the mean over tasks at each length, and the effective lengths."""
    means = {kind: averages(scores, kind) for kind in PERCENT}
    whole = [
        {"task": "mean of all tasks", "length": n, **{kind: means[kind][n] for kind in PERCENT}}
        for n in means["generation"]
    ]
    reach = [f"{found:,}" if (found := effective_length(means[kind])) else "none" for kind in PERCENT]
    effective = (
        f"Effective length of {name} (mean at least {THRESHOLD} %): {reach[0]} by generation, {reach[1]} by ranking."
    )
    return f"{table([*rows, *whole])}\n\n{effective}"


def draw(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Saves the figure: a panel per metric, with a line per task."""
    metrics = dict.fromkeys(name for row in rows for name in row if name not in ABOUT)
    shown = [name for name in metrics if name in (*PERCENT, BITS) or not (name in METRICS or name.startswith("loss"))]
    with settings():
        figure, axes = new_figure(4.8 * max(len(shown), 1), 3.4, 1, max(len(shown), 1))
        for axis, metric in zip(axes, shown, strict=False):
            _panel(axis, metric, [row for row in rows if row.get(metric) is not None])
        handles = {
            label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if handles:
            figure.legend(handles.values(), handles.keys(), fontsize=8, loc="outside lower center", ncols=4)
        save(figure, path)


def _panel(axis: Any, metric: str, rows: Sequence[Row]) -> None:
    """Draws a metric against the length, on all of its scale, with what percentages are compared with."""
    for i, label in enumerate(dict.fromkeys(map(_label, rows))):
        points = sorted((row["length"], row[metric]) for row in rows if _label(row) == label)
        marker, color = SERIES[i % len(SERIES)]
        # Open marks, so that equal scores are all seen.
        axis.plot(*zip(*points, strict=True), color=color, label=plain(label), marker=marker, markerfacecolor="none")
    length_axis(axis, np.asarray(sorted({row["length"] for row in rows}), float), 0)
    axis.set_title(METRICS.get(metric, (metric,))[0])
    if metric == BITS:
        axis.set_ylim(bottom=0)
        return
    whole = 100 if metric in PERCENT else 1
    axis.set_ylim(-0.03 * whole, 1.03 * whole)
    effective, guessing = (THRESHOLD, "effective", "--"), (100 / CANDIDATES, "guessing", ":")
    for value, name, dash in {"generation": [effective], "ranking": [effective, guessing]}.get(metric, []):
        axis.axhline(value, color="#666666", lw=0.8, ls=dash, label=f"{name} ({value:g} %)")


def _label(row: Row) -> str:
    tasks = registry.SUITES["long"]
    return tasks[row["task"]].label if row.get("task") in tasks else str(row.get("task", "text"))


def _cell(row: Row, metric: str) -> str:
    if metric not in row:
        return "-"
    return "none" if row[metric] is None else format(row[metric], METRICS.get(metric, ("", ".4g"))[1])
