"""The figure: exact match past training in every cell, a panel per task, the three policies beside each other."""

import pathlib
from typing import Any

import numpy as np

from attnjax.report.drawing import FAINT, new_figure, plain, save, settings
from attnjax.report.style import style
from experiments.policy_placebo.results import POLICIES, Cell, Results

LOOKS = {"arange": ("#6e7781", "o"), "offset": ("#074a8d", "s"), "randomized": ("#9a3104", "D")}
"""Colour and marker of each policy."""
APART = 0.24
"""Distance of the policies of one encoding on the axis of encodings."""


def draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write figure.png and figure.svg. Raises ValueError where matplotlib is not installed."""
    with settings():
        return save(panels(results), folder / "figure")


def panels(results: Results) -> Any:
    """A panel per task; dots are runs, markers their mean with its interval, hollow where the cell did not fit."""
    tasks = list(dict.fromkeys(task for task, _, _ in results.cells))
    figure, axes = new_figure(5.4 * len(tasks), 3.9, 1, len(tasks))
    for axis, task in zip(axes, tasks, strict=True):
        encodings = list(dict.fromkeys(name for one, name, _ in results.cells if one == task))
        for x, encoding in enumerate(encodings):
            for policy in POLICIES:
                if (cell := results.cells.get((task, encoding, policy))) is not None:
                    draw_cell(axis, x + APART * (POLICIES.index(policy) - 1), cell, policy)
        axis.set_xticks(range(len(encodings)), [plain(style(name).label) for name in encodings])
        axis.set_ylim(-0.03, 1.03)
        axis.set_title(task)
        axis.set_ylabel("exact match past training")
    for policy, (color, marker) in LOOKS.items():
        axes[0].plot([], [], marker, color=color, label=policy)
    axes[0].legend(loc="lower left", bbox_to_anchor=(-0.02, 1.08), ncols=3)
    return figure


def draw_cell(axis: Any, x: float, cell: Cell, policy: str) -> None:
    """The runs of a cell, and their mean with the ends of its interval or range."""
    color, marker = LOOKS[policy]
    found = cell.mean
    axis.plot(np.full(len(cell.past), x + 0.08), cell.past, ".", color=FAINT, markersize=3, zorder=1)
    axis.vlines(x, found.low, found.high, color=color, linewidth=1.5)
    axis.plot([x], [found.value], marker, markersize=6, color=color, markerfacecolor=color if cell.fitted else "white")
