"""The figure: a panel per pattern, the best head of every seed under every encoding, beside offset and chance."""

import pathlib
from typing import Any

from attnjax.report.drawing import FAINT, INK, new_figure, plain, save, settings
from attnjax.report.style import style
from experiments.head_specialization.measure import Results
from experiments.head_specialization.summary import beside, cell, encodings, patterns

COLUMNS = 4
START, END, UNTRAINED = -0.32, 0.14, 0.34
"""Where the seeds of an encoding begin and end beside its tick, and where the same models before training stand."""


def write(results: Results, path: pathlib.Path) -> list[pathlib.Path]:
    """Write path.png and path.svg."""
    with settings():
        return save(draw(results), path)


def draw(results: Results) -> Any:
    """Points are seeds, the bar their mean; open points: the same models before training."""
    found, names = patterns(results), encodings(results)
    rows = -(-len(found) // COLUMNS)
    figure, axes = new_figure(11.6, 3.1 * rows + 0.6, rows, COLUMNS)
    for axis in axes[len(found) :]:
        axis.set_visible(False)
    for axis, (name, title) in zip(axes, found, strict=False):
        for place, encoding in enumerate(names):
            draw_cell(axis, place, results, name, encoding)
        draw_level(axis, len(names), beside(results, name, "baseline"), "best offset", (4, 2))
        draw_level(axis, len(names), beside(results, name, "chance"), "chance", (1, 2))
        axis.set_xticks(
            range(len(names)), [plain(style(one).label) for one in names], rotation=40, ha="right", fontsize=9
        )
        axis.set_xlim(-0.6, len(names) - 0.4)
        top = highest(results, name)
        axis.set_ylim(-0.03 * top, 1.05 * top)
        axis.set_title(plain(title))
    for axis in axes[::COLUMNS]:
        axis.set_ylabel("attention on the targets")
    key(axes[len(found)] if len(found) < len(axes) else None)
    return figure


def highest(results: Results, pattern: str) -> float:
    """The largest number of a panel: 1 where an offset finds the targets."""
    rows = [row for row in results.patterns if row["pattern"] == pattern]
    return max(row[key] or 0.0 for row in rows for key in ("best_head", "baseline", "chance")) or 1.0


def draw_cell(axis: Any, place: int, results: Results, pattern: str, encoding: str) -> None:
    """The seeds of one encoding, after training and before."""
    look = style(encoding)
    after, before = (cell(results, pattern, encoding, stage) for stage in ("trained", "untrained"))
    step = min(0.12, (END - START) / max(len(after.best) - 1, 1))
    shift = [(START + END) / 2 + step * (i - (len(after.best) - 1) / 2) for i in range(len(after.best))]
    if before.best:
        x = [place + UNTRAINED] * len(before.best)
        axis.plot(
            x, before.best, linestyle="", marker="o", markersize=4, markerfacecolor="white", color=FAINT, zorder=2
        )
    if after.estimate is None:
        return
    axis.plot([place + START, place + END], [after.estimate.value] * 2, color=look.color, linewidth=2.2, zorder=3)
    x = [place + s for s in shift]
    points = {"marker": look.marker, "markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
    axis.plot(x, after.best, linestyle="", color=look.color, zorder=4, **points)


def draw_level(axis: Any, count: int, level: float | None, label: str, dash: tuple[int, int]) -> None:
    """A line across a panel for what a head is compared with."""
    if level is not None:
        (line,) = axis.plot([-0.6, count - 0.4], [level, level], color=FAINT, linewidth=1.1, zorder=1)
        line.set_dashes(dash)


def key(axis: Any) -> None:
    """What the marks mean, in the place of a panel that is left over."""
    if axis is None:
        return
    axis.set_visible(True)
    axis.axis("off")
    dashed = {"color": FAINT, "linewidth": 1.1}
    axis.plot([], [], linestyle="", marker="s", color=INK, label="best head of a seed")
    axis.plot([], [], color=INK, linewidth=2.2, label="mean of the seeds")
    axis.plot([], [], linestyle="", marker="o", markerfacecolor="white", color=FAINT, label="before training")
    axis.plot([], [], dashes=(4, 2), label="best fixed offset", **dashed)
    axis.plot([], [], dashes=(1, 2), label="chance", **dashed)
    axis.legend(loc="center left")
