"""The figure: probes by depth, the use of rotary frequencies, and scores against distance."""

import pathlib
from typing import Any

import numpy as np

from attnjax.registry import DOTTED
from attnjax.report.drawing import FAINT, SHADE, new_figure, plain, save, settings
from attnjax.report.style import style
from experiments.reading_positions.results import Cell, Results


def draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write figure.png and figure.svg. Raises ValueError where matplotlib is not installed."""
    with settings():
        return save(panels(results), folder / "figure")


def panels(results: Results) -> Any:
    """All panels; that of frequencies is of the first encoding that rotates."""
    figure, (depth, use, distance) = new_figure(12.0, 4.3, 1, 3)
    for cell in results.cells:
        draw_probe(depth, cell)
        draw_scores(distance, cell)
    draw_depth_axis(depth, results)
    rotating = next((cell for cell in results.cells if cell.share is not None), None)
    if rotating is None:
        use.set_visible(False)
    else:
        draw_use(use, rotating, results.runs[0]["trained"])
    distance.set_xlabel("distance, tokens")
    distance.set_ylabel("score less that at distance 0")
    ticks = [2**power - 1 for power in range(results.runs[0]["trained"].bit_length())]
    distance.set_xscale("function", functions=(np.log1p, np.expm1))
    distance.set_xticks(ticks, list(map(str, ticks)))
    distance.set_title("What positions add to a logit")
    handles, labels = depth.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def draw_probe(axis: Any, cell: Cell) -> None:
    """R2 by depth after training, and dotted before it."""
    look = style(cell.encoding)
    places = range(cell.within["trained"].shape[1])
    (line,) = axis.plot(places, cell.within["trained"].mean(0), color=look.color, marker=look.marker, markersize=5.5)
    line.set(dashes=look.dash or (None, None), label=plain(look.label), markeredgecolor="white", linewidth=1.9)
    (before,) = axis.plot(places, cell.within["untrained"].mean(0), color=look.color, linewidth=1.0)
    before.set(dashes=DOTTED)


def draw_depth_axis(axis: Any, results: Results) -> None:
    """Names of the depths, and the limits of R2."""
    layers = results.runs[0]["layers"]
    axis.set_xticks(range(layers + 1), [*(f"input {layer}" for layer in range(layers)), "features"])
    axis.set_ylim(-0.05, 1.05)
    axis.set_ylabel("R2 at trained positions")
    axis.set_title("The position in hidden states")


def draw_use(axis: Any, cell: Cell, trained: int) -> None:
    """The share of each frequency against its tokens per turn, a line per head and seed, and their mean."""
    assert cell.share is not None
    assert cell.frequency is not None
    look, turning = style(cell.encoding), cell.frequency > 0
    wavelength = 2 * np.pi / cell.frequency[turning]
    heads = cell.share[..., turning].reshape(-1, turning.sum())
    axis.plot(wavelength, heads.T, color=look.color, alpha=0.2, linewidth=0.9)
    axis.plot(wavelength, heads.mean(0), color=look.color, marker=look.marker, markersize=5.5, linewidth=2.1)
    axis.set_xscale("log")
    axis.set_xticks(wavelength, [f"{turn:.0f}" for turn in wavelength], rotation=40)
    axis.set_xticks([], minor=True)
    left, right = axis.get_xlim()
    axis.axvspan(trained - 1, right, color=SHADE, zorder=0, linewidth=0)
    axis.set_xlim(left, right)
    axis.set_ylim(bottom=0)
    axis.axhline(1 / len(cell.frequency), color=FAINT, linewidth=0.8)
    axis.set_xlabel("tokens per turn (shaded: leaves training)")
    axis.set_ylabel("share of the use of its head")
    axis.set_title(f"Frequencies of {plain(look.label)}")


def draw_scores(axis: Any, cell: Cell) -> None:
    """What positions add to a logit, mean over heads, layers and seeds; nothing where they add nothing by themselves."""
    if cell.score is None or cell.distance is None:
        return
    look = style(cell.encoding)
    mean = cell.score.reshape(-1, len(cell.distance)).mean(0)
    (line,) = axis.plot(cell.distance, mean, color=look.color, linewidth=1.9, marker=look.marker, markersize=4.5)
    line.set(dashes=look.dash or (None, None), markeredgecolor="white", markeredgewidth=0.6)
