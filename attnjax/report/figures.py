"""The figures of a report, each a pure function of its numbers.

Scores against length with bands and the training range shaded; encoding x length as a heat map; loss by position; training
loss against steps; probability of improvement of every encoding over every other. What did not fit its task is grey.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from attnjax.report import intervals
from attnjax.report.drawing import FAINT, INK, UNFITTED, finite_only, length_axis, new_figure, plain
from attnjax.report.formatting import decimal, probability
from attnjax.report.groups import Variant, natural
from attnjax.report.metrics import Metric, in_units
from attnjax.report.scales import some
from attnjax.report.scores import Curve
from attnjax.report.style import order, style
from attnjax.report.summary import NGRAMS, POSITION_METRICS, Row, Task, is_cut, levels_of, positions_of

WIDTH = 8.0
"""Inches: what a README shows without shrinking the letters below reading size."""


def overview(tasks: Sequence[Task]) -> Any:
    """The first metric of every task against length, side by side, with one legend, in the free place where there is one."""
    columns = min(len(tasks), 2 if len(tasks) <= 4 else 3)
    rows = -(-len(tasks) // columns)
    figure, axes = new_figure(WIDTH if columns == 1 else 4.6 * columns, 3.7 * rows + 0.5, rows, columns)
    for axis, task in zip(axes, tasks, strict=False):
        draw_lengths(axis, task, task.metrics[0])
    free = axes[len(tasks) :]
    for axis in free:
        axis.set_axis_off()
    variants = {variant.label: variant for task in tasks for variant in task.panel.variants}
    known = sorted(variants.values(), key=lambda variant: (order(variant.encoding), natural(variant.label)))
    if len(free) and len(known) <= 12:  # more lines than that are taller than a panel
        free[0].legend(handles=handles(known), loc="center", labelspacing=1.0)
    else:
        legend(figure, known)
    return figure


def by_length(task: Task, metric: Metric) -> Any:
    """One metric of one task against length."""
    figure, (axis,) = new_figure(WIDTH, 4.6)
    draw_lengths(axis, task, metric)
    legend(figure, task.panel.variants, task.unfitted)
    return figure


def by_position(task: Task) -> Any:
    """Loss and accuracy at each position of the longest windows, one below the other."""
    known = positions_of(task)
    figure, axes = new_figure(WIDTH, 3.8 * len(known) + 0.6, len(known))
    for axis, (name, found) in zip(axes, known.items(), strict=True):
        for place, curve in found.curves:
            draw_curve(axis, curve, grey=place in task.unfitted)
        doubling = [2.0**k for k in range(30) if 2**k < found.length]
        length_axis(axis, np.array([*doubling, found.length], float), task.panel.trained[1])
        axis.set_xlabel("position of the target (shaded: up to the longest in training)")
        axis.set_ylabel(in_units(dict(POSITION_METRICS)[name], task.panel.task))
        axis.set_title(plain(f"{task.panel.label}: windows of {found.length}"))
        caption(axis, [curve for _, curve in found.curves])
    legend(figure, task.panel.variants, task.unfitted)
    return figure


def draw_lengths(axis: Any, task: Task, metric: Metric) -> None:
    """Curves of all variants, the training range, and the levels of chance, n-grams and cut windows."""
    rows = task.rows[metric.key]
    lengths = np.array(rows[0].scored.lengths, float)
    for place, row in enumerate(rows):
        draw_curve(axis, row.curve, band=0.16 if len(rows) <= 8 else 0.07, grey=place in task.unfitted)
    value_axis(axis, [row.curve for row in rows], metric)
    length_axis(axis, lengths, task.panel.trained[1])
    for name, levels in levels_of(task, metric).items():
        draw_level(axis, name, lengths, levels, always=name in NGRAMS)
    if is_cut(metric):
        fitted = [row for place, row in enumerate(rows) if place not in task.unfitted]
        draw_cut(axis, fitted, task.panel.trained[1])
    caption(axis, [row.curve for row in rows], cut=is_cut(metric))
    axis.set_title(plain(task.panel.label) + (" (grey: not fitted)" if task.unfitted else ""))


def draw_level(
    axis: Any, name: str, lengths: Float[np.ndarray, " X"], levels: Float[np.ndarray, " X"], *, always: bool
) -> None:
    """A dotted line with its name, such as chance, if it lies inside the frame, which is made to hold it if `always`."""
    from matplotlib.patheffects import withStroke

    if always or axis.get_ylim()[0] <= levels[-1] <= axis.get_ylim()[1]:
        axis.plot(lengths, levels, color=FAINT, linewidth=1.0, dashes=(1, 2), zorder=1)
        place, side = (0, "left") if name == "chance" else (-1, "right")
        text = axis.annotate(
            name, (lengths[place], levels[place]), (0, 3), textcoords="offset points", ha=side, color=FAINT
        )
        text.set_path_effects([withStroke(linewidth=3, foreground="white")])


def draw_cut(axis: Any, rows: Sequence[Row], longest: int) -> None:
    """Thin dashed lines from the trained length on: what each model would score if windows were cut to it."""
    right = axis.get_xlim()[1]
    for row in rows:
        found = row.curve.estimates.get(longest)
        if found is not None and np.isfinite(found.value):
            look = style(row.scored.variant.encoding, row.scored.variant.number)
            line = axis.plot([longest, right], [found.value] * 2, color=look.color, linewidth=0.8, zorder=1)
            line[0].set(dashes=(5, 4))
    axis.set_xlim(right=right)


def caption(axis: Any, curves: Sequence[Curve], cut: bool = False) -> None:
    """What bands and thin lines are, from the numbers of runs, below the x axis."""
    words = f"bands: {intervals.caption([count for curve in curves for count in curve.count])}"
    words += "\nthin dashes: windows cut to the trained length" if cut else ""
    axis.set_xlabel(f"{axis.get_xlabel()}\n{words}", color=INK, fontsize=8.5)


def draw_curve(axis: Any, curve: Curve, band: float = 0.16, grey: bool = False) -> None:
    """A line with markers through the medians, and the interval or range as a band; grey for what did not fit."""
    look = style(curve.variant.encoding, curve.variant.number)
    look = replace(look, color=UNFITTED) if grey else look
    every = 1 if len(curve.x) <= 12 else len(curve.x) // 5
    low, high = finite_only(curve.low), finite_only(curve.high)
    axis.fill_between(curve.x, low, high, color=look.color, alpha=band, linewidth=0)
    line = axis.plot(
        curve.x, finite_only(curve.value), color=look.color, linewidth=1.9, marker=look.marker, markersize=5
    )
    line[0].set(dashes=look.dash or (None, None), markevery=every, markeredgecolor="white", markeredgewidth=0.6)


def value_axis(axis: Any, curves: Sequence[Curve], metric: Metric) -> None:
    """The y axis: 0 to 1 for an accuracy, doubling per step for losses that span a wide range."""
    from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

    axis.set_ylabel(plain(metric.label))
    if metric.share:
        axis.set_ylim(-0.03, 1.03)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        return
    values = np.concatenate([curve.value[np.isfinite(curve.value)] for curve in curves])
    if len(values) and values.min() > 0 and values.max() > 8 * values.min():
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axis.yaxis.set_minor_locator(NullLocator())


def legend(figure: Any, variants: Iterable[Variant], unfitted: Collection[int] = ()) -> None:
    """One legend below all panels, in the order of the encodings."""
    lines = handles(variants, unfitted)
    longest = max((len(line.get_label()) for line in lines), default=0)
    rows = -(-len(lines) // max(1, int(figure.get_figwidth() / (0.6 + 0.09 * longest))))
    figure.legend(handles=lines, loc="outside lower center", ncols=-(-len(lines) // rows))


def handles(variants: Iterable[Variant], unfitted: Collection[int] = ()) -> list[Any]:
    """The lines of a legend, with their labels."""
    from matplotlib.lines import Line2D

    lines = []
    for place, variant in enumerate(variants):
        look, label = style(variant.encoding, variant.number), plain(variant.label, 40)
        if place in unfitted:
            look, label = replace(look, color=UNFITTED), f"{label} (not fitted)"
        line = Line2D([], [], color=look.color, linewidth=1.9, marker=look.marker, markersize=5, label=label)
        line.set(dashes=look.dash or (None, None), markeredgecolor="white", markeredgewidth=0.6)
        lines.append(line)
    return lines


def heat_map(task: Task, metric: Metric) -> Any:
    """Encoding x length in colour, with the numbers where there is room, and a line where training ended."""
    rows = task.rows[metric.key]
    lengths = rows[0].scored.lengths
    table = np.full((len(rows), len(lengths)), np.nan)
    for place, row in enumerate(rows):
        table[place, np.isin(lengths, row.curve.x)] = finite_only(row.curve.value)
    figure, (axis,) = new_figure(WIDTH, 1.5 + 0.36 * len(rows))
    coloured = np.where(np.isin(np.arange(len(rows)), list(task.unfitted))[:, None], np.nan, table)
    image = draw_cells(axis, coloured, "cividis" if metric.higher else "cividis_r", (0, 1) if metric.share else None)
    figure.colorbar(image, ax=axis, label=plain(metric.short), pad=0.02)
    if len(lengths) <= 12:
        label_cells(axis, image, coloured, [[decimal(value, 2) for value in row] for row in table])
    marked = [lengths.index(int(tick)) for tick in some(lengths, 12)]
    axis.set_xticks(marked, [str(lengths[place]) for place in marked])
    axis.set_yticks(range(len(rows)), [plain(task.label(place), 44) for place in range(len(rows))])
    axis.axvline(sum(length <= task.panel.trained[1] for length in lengths) - 0.5, color="white", linewidth=2.5)
    axis.set_xlabel("length (white line: end of the training range)")
    axis.set_title(f"{plain(task.panel.label)}: {plain(metric.label)}")
    return figure


def draw_cells(axis: Any, table: Float[np.ndarray, "Y X"], colors: str, limits: tuple[float, float] | None) -> Any:
    """A table as coloured cells, grey where there is no number."""
    axis.grid(visible=False)
    axis.set_facecolor("#d8dee4")
    low, high = limits or (None, None)
    return axis.imshow(
        np.ma.masked_invalid(table), cmap=colors, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
    )


def label_cells(axis: Any, image: Any, table: Float[np.ndarray, "Y X"], labels: Sequence[Sequence[str]]) -> None:
    """A text in every cell, dark on light and light on dark."""
    for y, x in np.ndindex(*table.shape):
        red, green, blue, _ = image.cmap(image.norm(table[y, x])) if np.isfinite(table[y, x]) else (1.0, 1.0, 1.0, 1.0)
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.55
        axis.text(x, y, labels[y][x], ha="center", va="center", color="white" if dark else INK, fontsize=8.5)


def improvement(task: Task) -> Any:
    """Probability that a run of the row beats a run of the column past training; grey where that is not known."""
    compared = [place for place in range(len(task.counts)) if place not in task.unfitted]
    labels = [plain(task.panel.variants[place].label, 32) for place in compared]
    table = np.full((len(labels), len(labels)), np.nan)
    words = [["" for _ in labels] for _ in labels]
    for (i, j), found in task.improvement.items():
        row, column = compared.index(i), compared.index(j)
        table[row, column] = found.probability
        words[row][column] = f"{decimal(found.probability, 2)}\np {probability(found.p)}"
    figure, (axis,) = new_figure(WIDTH, 1.7 + 0.5 * len(labels) + 0.05 * max(map(len, labels)))
    image = draw_cells(axis, table, "PuOr", (0, 1))
    figure.colorbar(image, ax=axis, label="P(row beats column)", pad=0.02)
    if len(labels) <= 10:
        label_cells(axis, image, table, words)
    axis.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axis.set_yticks(range(len(labels)), labels)
    axis.set_title(f"{plain(task.panel.label)}: {plain(task.metrics[0].label)}, past training (p: rank sum, exact)")
    return figure


def learning(task: Task) -> Any:
    """Training loss against steps."""
    figure, (axis,) = new_figure(WIDTH, 4.6)
    for curve in task.learning:
        draw_curve(axis, curve)
    values = np.concatenate([curve.value[np.isfinite(curve.value)] for curve in task.learning])
    if len(values) and values.min() > 0:
        axis.set_yscale("log")
        log_labels(axis)
    axis.set_xlabel("step")
    axis.set_ylabel("training loss")
    axis.set_title(plain(task.panel.label))
    legend(figure, task.panel.variants)
    return figure


def log_labels(axis: Any) -> None:
    """Plain numbers on a logarithmic y axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_locator(NullLocator())
