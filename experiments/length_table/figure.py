"""The table as a heat map: length factors in colour, doubling per step, with the numbers; what did not fit is hatched grey."""

import pathlib
from typing import Any

import numpy as np

from attnjax.report.drawing import FAINT, INK, new_figure, plain, save, settings
from attnjax.report.figures import draw_cells, label_cells
from attnjax.report.formatting import decimal
from attnjax.report.style import style
from experiments.length_table.page import called
from experiments.length_table.results import Results

LEAST = 0.5
"""The factor whose colour 0 has: a run that does not hold at the trained length."""
HATCHED, BLANK = "#e3e7eb", "white"


def draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write figure.png and figure.svg. Raises ValueError where matplotlib is not installed."""
    with settings():
        return save(heat_map(results), folder / "figure")


def heat_map(results: Results) -> Any:
    """The figure: a row per encoding, a column per task."""
    shape = len(results.encodings), len(results.columns)
    table, labels = np.full(shape, np.nan), [["" for _ in results.columns] for _ in results.encodings]
    figure, (axis,) = new_figure(2.4 + 1.05 * max(shape[1], 2), 1.7 + 0.33 * shape[0])
    for y, x in np.ndindex(*shape):
        cell = results.columns[x].cells.get(results.encodings[y])
        if cell is not None and cell.fitted:
            table[y, x] = np.log2(max(cell.factor.value, LEAST))
            labels[y][x] = decimal(cell.factor.value, 2).removesuffix("0").removesuffix(".0")
    highest = max([np.log2(max(column.limit, 2)) for column in results.columns])
    image = draw_cells(axis, table, "cividis", (float(np.log2(LEAST)), float(highest)))
    for y, x in np.ndindex(*shape):
        cover(axis, y, x, results)
    label_cells(axis, image, table, labels)
    scale(figure, axis, image, highest)
    axis.set_xticks(range(shape[1]), [f"{called(one.task)}\nto {decimal(one.limit, 0)}x" for one in results.columns])
    axis.set_yticks(range(shape[0]), [plain(style(name).label, 24) for name in results.encodings])
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    axis.set_xticks(np.arange(shape[1] + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(shape[0] + 1) - 0.5, minor=True)
    axis.grid(visible=True, which="minor", axis="both", color="white", linewidth=1.5)
    axis.tick_params(which="minor", length=0)
    axis.set_xlabel(
        "median length factor; framed: best (Holm);\nhatched: fewer than half fit (how many did)",
        fontsize=9,
    )
    return figure


def cover(axis: Any, y: int, x: int, results: Results) -> None:
    """What colour does not say: a blank or hatched cell, with how many runs fit, or the frame of the best."""
    from matplotlib.patches import Rectangle

    column, encoding = results.columns[x], results.encodings[y]
    cell = column.cells.get(encoding)
    box = lambda **look: axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **look))
    if cell is None:
        box(facecolor=BLANK, edgecolor="none")
    elif not cell.fitted:
        box(facecolor=HATCHED, edgecolor="white", hatch="///", linewidth=0)
        text = f"{sum(cell.fits)}/{len(cell.fits)}"
        axis.text(x, y, text, ha="center", va="center", color=FAINT, fontsize=8.5)
    elif encoding == column.best:
        axis.add_patch(
            Rectangle((x - 0.44, y - 0.42), 0.88, 0.84, facecolor="none", edgecolor=INK, linewidth=2.2, zorder=3)
        )


def scale(figure: Any, axis: Any, image: Any, highest: float) -> None:
    """The colour bar, with factors as its marks."""
    marks = [np.log2(LEAST), *np.arange(0, highest + 1e-9)]
    bar = figure.colorbar(image, ax=axis, pad=0.02, label="length factor")
    bar.set_ticks(marks, labels=["0", *(f"{2**mark:g}" for mark in marks[1:])])
