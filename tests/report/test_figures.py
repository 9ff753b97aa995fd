"""The figure: medians, names at the ends of lines, an axis for what fitted; and colours that everybody can tell apart."""

import dataclasses
import itertools

import numpy as np
import pytest

from attnjax.records.stored import read
from attnjax.registry import ENCODINGS
from attnjax.report import drawing, figures
from attnjax.report.style import LOOKS, STYLES, order, style
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


# Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# severity 1.0, for linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
MAIN = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5")
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


def linear(color: str) -> np.ndarray:
    """Linear RGB of #rrggbb."""
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB, D65."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    x = np.array(to_xyz) @ rgb / np.array([0.95047, 1.0, 1.08883])
    f = np.where(x > (6 / 29) ** 3, np.cbrt(x), x * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: str, other: str, vision: str) -> float:
    """Distance in L*a*b* as seen with this vision."""
    seen = [lab(np.clip(np.array(VISION[vision]) @ linear(color), 0, 1)) for color in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


@pytest.mark.parametrize("tone", ["color", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_encodings_are_told_apart(vision: str, tone: str):
    close = []
    for (a, one), (b, other) in itertools.combinations(STYLES, 2):
        need = 25 if a in MAIN and b in MAIN else 19 if one.dash == other.dash else 10
        if difference(getattr(one, tone), getattr(other, tone), vision) < need:
            close.append((a, b))
    assert close == []


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


def test_an_unknown_encoding_has_a_style_too():
    assert style("mine") == style("mine")
    assert style("mine").label == "mine"
    assert style("mine").color in {look.color for look in LOOKS}
    assert order("mine") == len(ENCODINGS)
