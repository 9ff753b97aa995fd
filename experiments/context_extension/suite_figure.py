"""The suite as a map: methods in rows, tasks with their lengths in columns, and how many answers are found."""

import itertools
import pathlib

import numpy as np

from attnjax.report.drawing import new_figure, plain, save, settings
from experiments.context_extension.figure import heat
from experiments.context_extension.methods import look
from experiments.context_extension.suite_page import LABELS
from experiments.context_extension.suite_records import Suite


def draw(found: Suite, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write figure_suite as PNG and SVG: a panel for each task that can be asked. Raises ValueError without matplotlib."""
    panels = {task: [n for _, n in cells] for task, cells in itertools.groupby(found.asked, key=lambda one: one[0])}
    methods = list(found.scores)
    with settings():
        figure, axes = new_figure(2.2 + 0.62 * len(found.asked) + 0.45 * len(panels), 6.4, 1, len(panels))
        grid = axes[0].get_gridspec()
        grid.set_width_ratios([max(len(lengths), 1.3) for lengths in panels.values()])
        for axis, (task, lengths) in zip(axes, panels.items(), strict=True):
            shares = np.array([[found.estimate(name, task, n).value / 100 for n in lengths] for name in methods])
            rows = [plain(look(name).label) for name in methods] if axis is axes[0] else [""] * len(methods)
            heat(axis, shares, rows, list(map(str, lengths)), numbers=True)
            axis.set_title(folded(LABELS[task]), fontsize=9.5)
        figure.supxlabel(
            f"context, bytes (trained: {found.lengths[0]}); guessing finds {found.chance / 100:g}", fontsize=10
        )
        return save(figure, folder / "figure_suite")


def folded(label: str) -> str:
    """The label in two lines, so that it fits above a narrow map."""
    for mark in (" (", " among ", " "):
        if mark in label:
            place = label.index(mark)
            return f"{label[:place]}\n{label[place + 1 :]}"
    return label
