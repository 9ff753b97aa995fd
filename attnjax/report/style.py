"""One colour, dash and marker per encoding, the same in every figure and page, readable by the colour-blind.

They stand in the row of the encoding in `attnjax/registry.py`; here is how they are used, and what all others share.
Thirteen hues that everybody can tell apart do not exist, so three things vary together. The colours have a dark tone
for white paper and a light tone of the same hue for dark screens; the six that most papers compare are solid lines
whose colours stay far apart under every colour blindness; the others share a colour family with one of them, never the
dash. `tests/report/test_figures.py` simulates the three kinds of colour blindness and holds every pair to that.
"""

from dataclasses import dataclass, replace

from attnjax.registry import DASHED, DOTTED, ENCODINGS, MIXED, SOLID


@dataclass(frozen=True)
class Style:
    """How the curve of one encoding is drawn: name, colour on white, colour on black, dash pattern, marker."""

    label: str
    color: str
    dark: str
    dash: tuple[float, ...]
    marker: str


DASHES = (SOLID, DASHED, DOTTED, MIXED)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h", "d", "$F$", "$C$", "$R$", "$S$", "$N$", "$L$")

STYLES = tuple((name, Style(row.label, *row.look)) for name, row in ENCODINGS.items() if row.look)
"""Of the encodings whose row has a look of its own."""

OTHER = (
    Style("", "#7a7a00", "#c8c832", MIXED, "P"),
    Style("", "#a0527a", "#e39ac0", MIXED, "v"),
    Style("", "#4a6b7a", "#9dc3d4", MIXED, "^"),
)
"""For all other encodings, by the letters of their name; their curves have labels of their own."""

LOOKS = (*dict(STYLES).values(), *OTHER)


def order(encoding: str) -> int:
    """The place of an encoding in figures and tables; of several, the first counts."""
    names, first = list(ENCODINGS), encoding.split("+")[0]
    return names.index(first) if first in names else len(names)


def style(encoding: str, variant: int = 0, *, alone: bool = False) -> Style:
    """The style of an encoding, or of the first of several joined by "+".

    The variants of an encoding that a sweep compares (0, 1, 2 ...) keep its colour and take the other dashes and
    markers. Where a sweep has that encoding alone, its colour says nothing, and they take the looks of all encodings in turn.
    """
    first = encoding.split("+")[0]
    base = dict(STYLES).get(first) or OTHER[sum(first.encode()) % len(OTHER)]
    row = ENCODINGS.get(encoding)
    label = encoding if row is None else row.label
    if alone:
        return replace(STYLES[variant % len(STYLES)][1], label=label)
    if not variant:
        return replace(base, label=label)
    dash = DASHES[(DASHES.index(base.dash) + variant) % len(DASHES)]
    marker = MARKERS[(MARKERS.index(base.marker) + variant) % len(MARKERS)]
    return replace(base, label=label, dash=dash, marker=marker)
