"""The figure: medians, names at the ends of lines, an axis for what fitted; and colours that are visible on their paper."""

import dataclasses

import numpy as np
import pytest

from attnjax.records.stored import read
from attnjax.registry import ENCODINGS
from attnjax.report import drawing, figures
from attnjax.report.style import LOOKS, STYLES
from attnjax.report.tables import summarise
from tests.report.synthetic import write_sweep

pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")


@pytest.mark.parametrize("layout", [figures.WIDE, figures.NARROW])
def test_the_figure_shows_the_medians_and_names_its_lines(tmp_path, layout):
    write_sweep(tmp_path, ("copy", "text"), ("rope", "learned"), 2)
    summary = summarise(read(tmp_path))
    with drawing.settings():
        figure = figures.overview(summary.tasks, layout)
    task, axis = summary.tasks[0], figure.axes[0]
    drawn = {line.get_gid(): line.get_ydata() for line in axis.get_lines() if line.get_gid()}
    rows = task.lengths[task.lengths.metric == task.metric.key]
    for variant in task.panel.variants:
        np.testing.assert_array_equal(drawn[figures.gid(variant)], rows["median"][rows.variant == variant.label])
    assert {text.get_text() for text in axis.texts} >= {"RoPE", "Learned", "guessing"}
    assert axis.get_ylabel().endswith("(\N{UPWARDS ARROW} better)")
    assert len(figure.axes) == 4
    beside = {ax.get_subplotspec().colspan.start for ax in figure.axes}
    assert len(beside) == layout.columns


def test_what_did_not_fit_does_not_stretch_the_axis(make):
    """NoPE is at 9 nats and far from the best possible 1.9, the others at 2: the axis ends near 2."""
    losses = {"rope": (1.9, 2.0), "t5": (1.9, 2.0), "nope": (9.0, 9.0)}
    runs = [(name, seed, dict(zip((20, 40), of, strict=True))) for name, of in losses.items() for seed in range(2)]
    sweep = make(*runs, task="markov", metric="loss_sliding")
    level = {"loss_sliding": {"bigram": 1.9}}
    told = [dataclasses.replace(run, manifest={"baselines": {"20": level, "40": level}}) for run in sweep.runs]
    (task,) = summarise(dataclasses.replace(sweep, runs=tuple(told))).tasks
    with drawing.settings():
        axis = figures.overview([task]).axes[0]
    colors = {line.get_gid(): line.get_color() for line in axis.get_lines() if line.get_gid()}
    pale = [variant.label for variant in task.panel.variants if colors[figures.gid(variant)] == drawing.UNFITTED]
    assert pale == ["NoPE"]
    assert "pale: did not fit" in axis.get_xlabel()
    assert axis.get_ylim()[1] < 2.1


@pytest.mark.parametrize(
    "places", [[0.0, 0.0, 0.0], [0.1, 0.5, 0.52, 1.0], [1.0] * 5, [0.2], list(np.linspace(0, 1, 9))]
)
def test_names_are_moved_apart_and_stay_in_order(places: list[float]):
    found = figures.apart(places, 0.1)
    assert (np.diff(found) >= 0.1 - 1e-9).all()
    assert found.min() >= 0
    assert found.max() <= 1 + 1e-9
    if len(places) < 3:
        np.testing.assert_array_equal(found, places)


LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


def linear(color: str) -> np.ndarray:
    """Linear RGB of #rrggbb."""
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def test_every_encoding_has_its_own_colour_and_marker():
    assert [name for name, _ in STYLES] == [name for name in ENCODINGS if name in dict(STYLES)]
    assert all(look.label == ENCODINGS[name].label for name, look in STYLES)
    for field in ("color", "dark", "marker", "label"):
        assert len({getattr(look, field) for _, look in STYLES}) == len(STYLES)


@pytest.mark.parametrize(("tone", "paper"), [("color", 1.0), ("dark", linear("#0f1318") @ LUMINANCE)])
def test_colours_are_visible_on_their_paper(tone: str, paper: float):
    """Contrast of at least 3, which WCAG 2.1 (1.4.11) asks of graphics."""
    for look in LOOKS:
        here = linear(getattr(look, tone)) @ LUMINANCE
        assert (max(here, paper) + 0.05) / (min(here, paper) + 0.05) >= 3, look
