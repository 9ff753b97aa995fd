"""What `attnjax evaluate` measured, as a table in Markdown.

A row is a dict with "length", what was measured ("task", or nothing for the perplexity of a text),
"samples", and a number per metric, or a "problem" that says why there are none.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attnjax import registry
from attnjax.evaluation.suite import THRESHOLD, Score, averages, effective_length
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
    }
)
"""Name and format of each metric; those of a run's own task have their own name, and four digits."""
PERCENT = ("generation", "ranking")


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


def _label(row: Row) -> str:
    tasks = registry.SUITES["long"]
    return tasks[row["task"]].label if row.get("task") in tasks else str(row.get("task", "text"))


def _cell(row: Row, metric: str) -> str:
    return format(row[metric], METRICS.get(metric, ("", ".4g"))[1]) if metric in row else "-"
