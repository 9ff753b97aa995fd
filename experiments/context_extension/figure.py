"""Loss against position, without training and after it, and the needles that each method finds.

figure: a panel of loss for each stage, and below it the share of answers found by method and length. figure_depth: the same
share by depth and length, a small panel for each method and stage.
"""

import pathlib
from typing import Any

import numpy as np
from jaxtyping import Float

from attnjax.report.drawing import INK, SHADE, new_figure, plain, save, settings
from attnjax.report.figures import draw_level
from attnjax.tasks.ngrams import NAMES
from experiments.context_extension.methods import FREQUENCIES, POSITIONS, look
from experiments.context_extension.results import Cell, Results

COLOURS = "cividis"
MOST = 4.0
"""Losses above this many times the lowest leave the panel."""
DARK = 0.55
"""Shares below this have white numbers on them."""


def draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write both figures, as PNG and SVG. Raises ValueError where matplotlib is not installed."""
    with settings():
        return save(main_figure(results), folder / "figure") + save(depth_figure(results), folder / "figure_depth")


def main_figure(results: Results) -> Any:
    """Curves above, heat maps below, a column per stage; methods that remap positions have a column of their own."""
    columns = panels(results)
    figure, axes = new_figure(5.0 * len(columns) + 0.6, 8.8, 2, len(columns))
    for column, (stage, family, title) in enumerate(columns):
        curves(axes[column], results, stage, family)
        found_by_length(axes[len(columns) + column], results, stage, family)
        axes[column].set_title(plain(title.format(**results.about)))
        axes[column].set_ylabel(f"loss, nats per {results.about['unit']}")
        axes[column].legend(loc="lower left", bbox_to_anchor=(-0.02, 1.06), ncols=2, fontsize=9)
    return figure


def panels(results: Results) -> list[tuple[str, tuple[str, ...], str]]:
    """Stage, methods and title of each column."""
    there = results.cells["zero-shot"]
    remapped = tuple(name for name in ("none", *POSITIONS) if name in there)
    scaled = tuple(name for name in FREQUENCIES if name in there)
    found = [("zero-shot", scaled, "Without training")]
    if set(remapped) - {"none"}:
        found = [("zero-shot", scaled, "Other frequencies"), ("zero-shot", remapped, "Other positions")]
    return [
        *found,
        *[("tuned", scaled, "After {steps} steps of fine-tuning") for stage in results.stages if stage == "tuned"],
    ]


def curves(axis: Any, results: Results, stage: str, family: tuple[str, ...]) -> None:
    """Loss against position, a line per method with its interval; shaded up to the trained length."""
    edges = np.array(results.about["edges"], float)
    middle = (edges[:-1] + edges[1:]) / 2
    axis.axvspan(0, results.lengths[0], color=SHADE, zorder=0, linewidth=0)
    for cell in (results.cells[stage][name] for name in family):
        style, (value, low, high) = look(cell.method), cell.curve()
        axis.fill_between(middle, low, high, color=style.color, alpha=0.13, linewidth=0)
        (line,) = axis.plot(middle, value, color=style.color, linewidth=1.7, label=plain(style.label))
        line.set(dashes=style.dash or (None, None), marker=style.marker, markersize=5.5, markevery=(0, 2))
        line.set(markeredgecolor="white", markeredgewidth=0.6)
    lowest = min(float(cell.curve()[0].min()) for cell in results.cells[stage].values())
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, 0.95 * lowest), min(high, MOST * lowest))
    for name, level in results.ngrams.items():
        draw_level(axis, name, middle, level.position, always=name == NAMES[-1])
    axis.set_xlim(0, results.lengths[-1])
    axis.set_xticks([0, *results.lengths], ["0", *map(str, results.lengths)])
    axis.set_xlabel("position in the window (shaded: trained length)")


def found_by_length(axis: Any, results: Results, stage: str, family: tuple[str, ...]) -> None:
    """The share of answers found, a row per method and a column per length, with its number."""
    cells = [results.cells[stage][name] for name in family]
    shares = np.array([[cell.estimate("found", n).value for n in results.lengths] for cell in cells])
    heat(
        axis, shares, [plain(look(cell.method).label) for cell in cells], list(map(str, results.lengths)), numbers=True
    )
    axis.set_xlabel(f"context, {results.about['unit']}s")
    axis.set_title("Needles found")


def heat(axis: Any, shares: Float[np.ndarray, "R C"], rows: list[str], columns: list[str], *, numbers: bool) -> None:
    """A map of shares from 0 to 1."""
    axis.imshow(shares, vmin=0, vmax=1, cmap=COLOURS, aspect="auto")
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.tick_params(length=0)
    axis.grid(False)
    for side in axis.spines.values():
        side.set_visible(False)
    for row, column in np.ndindex(*shares.shape) if numbers else ():
        share = float(shares[row, column])
        color = "white" if share < DARK else INK
        axis.text(column, row, f"{share:.2f}", ha="center", va="center", color=color, fontsize=9.5)


def depth_figure(results: Results) -> Any:
    """Answers found by depth and length: a row per column of the main figure, with a small map for each of its methods."""
    rows = panels(results)
    columns = max(len(family) for _, family, _ in rows)
    figure, axes = new_figure(1.55 * columns + 1.2, 2.0 * len(rows) + 0.5, len(rows), columns)
    depths, lengths = [f"{depth:g}" for depth in results.about["depths"]], list(map(str, results.lengths))
    for row, (stage, family, _) in enumerate(rows):
        for column, axis in enumerate(axes[row * columns : (row + 1) * columns]):
            if column >= len(family):
                axis.set_axis_off()
                continue
            shares = depth_map(results.cells[stage][family[column]], results.lengths)
            heat(axis, shares, depths if not column else [""] * len(depths), lengths, numbers=False)
            axis.set_xticks(range(len(lengths)), lengths, rotation=60, fontsize=8)
            axis.set_title(plain(look(family[column]).label).replace(" + ", "\n+ "), fontsize=10)
        name = "zero-shot" if stage == "zero-shot" else "tuned"
        axes[row * columns].set_ylabel(f"{name}\ndepth")
    return figure


def depth_map(cell: Cell, lengths: tuple[int, ...]) -> Float[np.ndarray, "Y X"]:
    """Shares of answers found, a row per depth and a column per length."""
    return np.stack([cell.by_depth("found", length) for length in lengths], axis=1)
