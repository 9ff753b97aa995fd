"""Loss against heads kept: a panel per encoding, in its colour, before the grey band of random orders.

The band holds 95 % of all random orders of all runs, and the grey line is their mean. The coloured band is the interval over
runs of the order by importance; the dotted line is that of importance computed anew after each removal. Dotted lines with a
name are n-gram models of the training bytes.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnjax.registry import DOTTED
from attnjax.report import statistics
from attnjax.report.drawing import FAINT, new_figure, plain, save, settings
from attnjax.report.figures import draw_level
from attnjax.report.intervals import of_mean
from attnjax.report.style import style
from experiments.head_pruning.results import Cell, Results

COLUMNS = 3
GREY = "#8c959f"


def draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write a figure per length that was measured, as PNG and SVG. Raises ValueError where matplotlib is not installed."""
    made = []
    with settings():
        for name, length in zip(("figure", "figure_double"), results.lengths, strict=True):
            if cells := results.cells[length]:
                made += save(panels(cells, length, results.ngrams.get(length, {})), folder / name)
    return made


def panels(cells: list[Cell], length: int, ngrams: Mapping[str, float]) -> Any:
    """The figure of one length, with the losses of n-gram models by name."""
    columns = min(COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    figure, axes = new_figure(2.9 * columns + 0.4, 2.5 * rows + 0.7, rows, columns)
    for axis, cell in zip(axes, cells, strict=False):
        draw_cell(axis, cell)
    top = max(axis.get_ylim()[1] for axis in axes[: len(cells)])
    bottom = min(axis.get_ylim()[0] for axis in axes[: len(cells)])
    for axis in axes[: len(cells)]:
        axis.set_ylim(bottom, top)
        for name, loss in ngrams.items():
            draw_level(axis, name, cells[0].kept[[0, -1]], np.array([loss, loss]), always=False)
    for axis in axes[len(cells) :]:
        axis.set_visible(False)
    for axis in axes[max(0, len(cells) - columns) : len(cells)]:
        axis.set_xlabel(f"heads kept, at {length} bytes")
    for axis in axes[: len(cells) : columns]:
        axis.set_ylabel("loss, nats per byte")
    legend(figure, 3 if columns == COLUMNS else 1)
    return figure


def draw_cell(axis: Any, cell: Cell) -> None:
    """One encoding: random orders, importance, and importance computed anew."""
    look = style(cell.encoding)
    random = cell.loss["random"].reshape(-1, len(cell.kept))
    axis.fill_between(cell.kept, *statistics.percentiles(random), color=GREY, alpha=0.25, linewidth=0)
    axis.plot(cell.kept, random.mean(0), color=GREY, linewidth=1.3)
    middle, low, high = interval(cell, "importance")
    axis.fill_between(cell.kept, low, high, color=look.color, alpha=0.2, linewidth=0)
    (again,) = axis.plot(cell.kept, interval(cell, "recomputed")[0], color=look.color, linewidth=1.3)
    again.set(dashes=DOTTED)
    (line,) = axis.plot(cell.kept, middle, color=look.color, linewidth=1.9, marker=look.marker, markersize=4.5)
    line.set(dashes=look.dash or (None, None), markeredgecolor="white", markeredgewidth=0.6)
    ticks = sorted({cell.kept[0], cell.kept[cell.half], 0.0, *cell.kept[:: max(1, len(cell.kept) // 4)]})
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.invert_xaxis()
    axis.set_title(plain(look.label))


def interval(cell: Cell, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean over runs of the loss at every point, and its interval."""
    found = [of_mean(of_runs) for of_runs in cell.loss[kind].mean(1).T]
    value, low, high = (np.array([getattr(one, name) for one in found]) for name in ("value", "low", "high"))
    return value, low, high


def legend(figure: Any, columns: int) -> None:
    """What the lines are, in grey where they have the colour of their encoding."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    importance = Line2D([], [], color=FAINT, linewidth=1.9, marker="o", markersize=4.5, label="least important first")
    importance.set(markeredgecolor="white", markeredgewidth=0.6)
    again = Line2D([], [], color=FAINT, linewidth=1.3, label="importance computed anew")
    again.set(dashes=DOTTED)
    band = Patch(color=GREY, alpha=0.35, linewidth=0, label="random orders: mean and 95 %")
    figure.legend(handles=[importance, again, band], loc="outside lower center", ncols=columns)
