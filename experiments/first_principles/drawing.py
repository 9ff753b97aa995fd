"""What the figures of this experiment share. Look and colours are those of `attnjax.report`."""

import io
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnjax.report.drawing import FAINT
from attnjax.report.figures import draw_cells, label_cells
from attnjax.report.formatting import decimal
from attnjax.report.style import style

WIDTH = 8.0
"""Inches: what a README shows without shrinking the letters below reading size."""
BLUE, RED, GREEN, BLACK = (style(name).color for name in ("rope", "sinusoidal", "alibi", "nope"))
"""Four colours that everybody can tell apart."""
COLORS = 192
SEQUENTIAL, DIVERGING = "cividis", "PuOr"


def heat(
    axis: Any,
    table: Any,
    left: Sequence[str | int] = (),
    top: Sequence[str | int] = (),
    *,
    title: str = "",
    digits: int | None = 2,
    limits: tuple[float, float] = (0.0, 1.0),
    colors: str = SEQUENTIAL,
) -> Any:
    """A small table as coloured cells with its numbers, rows and columns named; returns the image."""
    table = np.asarray(table, np.float64)
    image = draw_cells(axis, table, colors, limits)
    if digits is not None:
        label_cells(axis, image, table, [[decimal(value, digits) for value in row] for row in table])
    axis.set_xticks(range(len(top)), top)
    axis.set_yticks(range(len(left)), left)
    axis.tick_params(length=0, labelsize=9)
    axis.set_title(title, fontsize=10)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return image


def powers_of_two(axis: Any, values: Sequence[float]) -> None:
    """The x axis doubling per step, with every value named, or every other one where they are many."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(list(values)[:: 1 if len(values) <= 6 else 2]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def level(axis: Any, value: float, name: str) -> None:
    """A dotted horizontal line that says what it is."""
    axis.axhline(value, color=FAINT, linewidth=1.2, dashes=(1.2, 1.6), zorder=1)
    spot = (1.0, value), (-2, 3)
    axis.annotate(name, *spot, xycoords=("axes fraction", "data"), textcoords="offset points", ha="right", color=FAINT)


def save(figure: Any, path: pathlib.Path) -> pathlib.Path:
    """Write the figure as PNG of `COLORS` colours, a third as large as one of all; the same figure gives the same bytes."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", metadata={"Software": None})
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    return path
