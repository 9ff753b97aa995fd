"""Colours: told apart under every colour blindness, visible on white and on black, one per encoding."""

import itertools

import numpy as np
import pytest

from attnjax.registry import ENCODINGS
from attnjax.report.style import STYLES, color_class, color_classes, order, style

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
    for look in color_classes().values():
        here = linear(getattr(look, tone)) @ LUMINANCE
        assert (max(here, paper) + 0.05) / (min(here, paper) + 0.05) >= 3, look


def test_variants_keep_the_colour_and_change_the_dash():
    looks = [style("rope", number) for number in range(4)]
    assert len({look.color for look in looks}) == 1
    assert len({look.dash for look in looks}) == 4
    assert len({look.marker for look in looks}) == 4


def test_several_encodings_take_the_colour_of_the_first():
    assert style("rope+nope").color == style("rope").color
    assert style("rope+nope").label == "rope+nope"
    assert color_class("rope+nope") == "e-rope"
    assert order("rope+nope") == order("rope")


def test_an_unknown_encoding_has_a_style_too():
    assert style("mine") == style("mine")
    assert style("mine").label == "mine"
    assert color_class("mine") in color_classes()
    assert order("mine") == len(ENCODINGS)
    assert "<" not in color_class("<script>")
