"""What `attnjax evaluate` measured, as tables in Markdown and one figure.

A row is a dict with its length, what was measured ("task" and perhaps "depth", or nothing for the perplexity of a text), and
numbers, or a "problem" that says why there are none.
"""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attnjax import registry
from attnjax.evaluation.suite import CANDIDATES, THRESHOLD, Score, averages, effective_length
from attnjax.report.drawing import length_axis, new_figure, plain, save, settings
from attnjax.report.formatting import markdown_table

Row = Mapping[str, Any]
Panels = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Of each panel of the figure the lines, by name: length -> value."""
BITS, SHARE = "bits per byte", "share"
"""The panels of a text's perplexity, and of a run on a task of its own."""
SERIES = (("o", "#074a8d"), ("s", "#9a3104"), ("^", "#049f69"), ("D", "#733cb3"), ("v", "#91612b"), ("P", "#037a84"))
"""Marker and colour of each task in turn."""
PERPLEXITY = (
    ("length", "{length:,}"),
    ("stride", "{stride:,}"),
    ("perplexity", "{ppl:.4g}"),
    ("nats per token", "{nats_per_token:.4f}"),
    ("bits per byte", "{bits_per_byte:.4f}"),
    ("tokens per byte", "{tokens_per_byte:.4f}"),
    ("tokens counted", "{tokens:,}"),
    ("bytes counted", "{bytes:,}"),
    ("LongPPL", "{long_ppl:.4g}"),
    ("share of key tokens", "{key_tokens:.2%}"),
    ("windows of LongPPL", "{windows_read:,} of {windows:,}"),
)
"""Columns of the table of a text's perplexity."""


def check_measured(rows: Sequence[Row]) -> None:
    """Raises ValueError where nothing could be measured, with the reasons."""
    problems = dict.fromkeys(str(row["problem"]) for row in rows if "problem" in row)
    if rows and all("problem" in row for row in rows):
        raise ValueError(f"nothing could be measured: {'; '.join(problems)}")


def task_table(name: str, scores: Sequence[Score]) -> str:
    """Returns a row per task, "generation / ranking" per length, then means and effective lengths."""
    cells = {(registry.SUITES["long"][one.task].label, one.length): _percents(vars(one)) for one in scores}
    means = [averages(scores, kind) for kind in ("generation", "ranking")]
    cells |= {
        ("mean of all tasks", n): f"{means[0][n]:.1f} / {means[1][n]:.1f}" if n in means[0] else "-"
        for n in dict.fromkeys(one.length for one in scores)
    }
    reach = [f"{found:,}" if (found := effective_length(mean)) else "none" for mean in means]
    effective = (
        f"Effective length of {name} (mean at least {THRESHOLD} %): {reach[0]} by generation, {reach[1]} by ranking."
    )
    return "\n".join([_pivoted("task", cells), "", effective, *_notes(vars(one) for one in scores)])


def depth_table(rows: Sequence[Row]) -> str:
    """Returns a row per depth of the needle, "generation / ranking" per length."""
    cells = {(f"{100 * row['depth']:.0f} %", row["length"]): _percents(row) for row in rows}
    return "\n".join([_pivoted("depth of the needle", cells), *_notes(rows)])


def metric_table(name: str, rows: Sequence[Row]) -> str:
    """Returns a row per metric of a run's own task."""
    cells = {(str(row["metric"]), row["length"]): f"{row['value']:.4g}" for row in rows}
    return f"Task {rows[0]['task']} of {name}:\n\n{_pivoted('metric', cells)}"


def perplexity_table(rows: Sequence[Row]) -> str:
    """Returns a row per length."""
    lines = []
    for row in rows:
        if "problem" in row:
            lines.append([f"{row['length']:,}", *["-"] * (len(PERPLEXITY) - 1)])
        else:
            absent = {name for name, value in row.items() if value is None}
            form = lambda text, row=row, absent=absent: (
                "none" if text[1:].split(":")[0] in absent else text.format(**row)
            )
            lines.append([form(text) for _, text in PERPLEXITY])
    return "\n".join([markdown_table([name for name, _ in PERPLEXITY], lines).rstrip(), *_notes(rows)])


def _pivoted(title: str, cells: Mapping[tuple[str, int], str]) -> str:
    """Returns a table of cells by (row, length)."""
    lengths = sorted({length for _, length in cells})
    lines = [[name, *(cells[name, n] for n in lengths)] for name in dict.fromkeys(name for name, _ in cells)]
    return markdown_table([title, *(f"{n:,}" for n in lengths)], lines).rstrip()


def _percents(row: Row) -> str:
    return "-" if row.get("generation") is None else f"{row['generation']:.1f} / {row['ranking']:.1f}"


def _notes(rows: Iterable[Row]) -> list[str]:
    """Returns why some numbers are missing, each reason once."""
    return [f"Note: {text}." for text in dict.fromkeys(row["problem"] for row in rows if row.get("problem"))]


def panels(rows: Sequence[Row]) -> Panels:
    """Returns the lines of each panel: metrics of an own task, tasks or depths, or else bits per byte of a text."""
    if any("metric" in row for row in rows):
        shares = [row for row in rows if not str(row["metric"]).startswith("loss")]
        return {SHARE: _lines((row["metric"], row["length"], row["value"]) for row in shares)}
    scored = [row for row in rows if "task" in row or "depth" in row]
    if not scored:
        bits = {row["length"]: row["bits_per_byte"] for row in rows if "bits_per_byte" in row}
        return {BITS: {"text": bits} if bits else {}}
    name = lambda row: (
        f"depth {100 * row['depth']:.0f} %" if "depth" in row else registry.SUITES["long"][row["task"]].label
    )
    kinds = ("generation", "ranking")
    return {kind: _lines((name(row), row["length"], row[kind]) for row in scored if kind in row) for kind in kinds}


def _lines(points: Iterable[tuple[str, int, float]]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for name, length, value in points:
        found.setdefault(name, {})[length] = value
    return found


def draw(path: pathlib.Path, panels: Panels) -> None:
    """Saves the figure of all panels beside each other."""
    with settings():
        figure, axes = new_figure(4.8 * len(panels), 3.4, 1, len(panels))
        for axis, (kind, lines) in zip(axes, panels.items(), strict=True):
            for i, (name, points) in enumerate(lines.items()):
                marker, color = SERIES[i % len(SERIES)]
                values = [points[n] for n in sorted(points)]
                # Open marks, so that equal scores are all seen.
                axis.plot(sorted(points), values, color=color, label=plain(name), marker=marker, markerfacecolor="none")
            every = sorted({n for points in lines.values() for n in points})
            length_axis(axis, np.asarray(every, float), 0)
            if kind != SHARE:  # the tasks of runs count length in units of their own
                axis.set_xlabel("length, tokens")
            axis.set_title(kind)
            _scale(axis, kind)
        found = {
            label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if any(panels.values()):
            figure.legend(found.values(), found.keys(), fontsize=8, loc="outside lower center", ncols=4)
        save(figure, path)


def _scale(axis: Any, kind: str) -> None:
    """Shows all of the scale of a share or of percentages, and what percentages are compared with."""
    percent = kind in ("generation", "ranking")
    axis.set_ylabel("percent right" if percent else kind)
    if kind == BITS:  # no share: it has no largest value
        axis.set_ylim(bottom=0)
        return
    whole = 100 if percent else 1
    axis.set_ylim(-0.03 * whole, 1.03 * whole)
    effective, guessing = (THRESHOLD, "effective", "--"), (100 / CANDIDATES, "guessing", ":")
    for value, name, dash in {"generation": [effective], "ranking": [effective, guessing]}.get(kind, []):
        axis.axhline(value, color="#666666", lw=0.8, ls=dash, label=f"{name} ({value:g} %)")
