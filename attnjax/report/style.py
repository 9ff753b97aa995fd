"""One colour, dash and marker per encoding, the same in every figure and page, readable by the colour-blind.

Thirteen hues that everybody can tell apart do not exist, so three things vary together. The colours have a dark tone
for white paper and a light tone of the same hue for dark screens; the six that most papers compare are solid lines
whose colours stay far apart under every colour blindness; the others share a colour family with one of them, never the
dash. `tests/report/test_style.py` simulates the three kinds of colour blindness and holds every pair to that.
"""

from dataclasses import dataclass, replace

from attnjax.registry import ENCODINGS


@dataclass(frozen=True)
class Style:
    """How the curve of one encoding is drawn: name, colour on white, colour on black, dash pattern, marker."""

    label: str
    color: str
    dark: str
    dash: tuple[float, ...]
    marker: str


SOLID = ()
DASHED = (5.0, 2.0)
DOTTED = (1.2, 1.6)
MIXED = (6.0, 2.0, 1.2, 2.0)
DASHES = (SOLID, DASHED, DOTTED, MIXED)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h", "d", "$F$", "$C$", "$R$", "$S$", "$N$", "$L$")

STYLES = (
    ("nope", Style("NoPE", "#272727", "#f2f2f2", SOLID, "X")),
    ("sinusoidal", Style("Sinusoidal", "#9a3104", "#f66231", SOLID, "s")),
    ("learned", Style("Learned", "#ab9004", "#f3d335", DASHED, "D")),
    ("rope", Style("RoPE", "#074a8d", "#4092f5", SOLID, "o")),
    ("xpos", Style("XPos", "#4a95d4", "#d4e8fd", DASHED, "v")),
    ("alibi", Style("ALiBi", "#049f69", "#26d87a", SOLID, "^")),
    ("t5", Style("T5 bias", "#d270ad", "#f082c2", SOLID, "P")),
    ("kerple", Style("Kerple", "#407448", "#93e1a0", DASHED, "<")),
    ("fire", Style("FIRE", "#7e2427", "#db626f", DOTTED, "p")),
    ("transformer_xl", Style("Transformer-XL", "#733cb3", "#bb98f3", DASHED, "*")),
    ("cope", Style("CoPE", "#91612b", "#c79053", DOTTED, "h")),
    ("sandwich", Style("Sandwich", "#037a84", "#49b5c4", DOTTED, ">")),
    ("pope", Style("PoPE", "#232b8c", "#596ff3", DOTTED, "d")),
    ("fox", Style("FoX", "#10125e", "#685da5", MIXED, "$F$")),
    ("cable", Style("Cable", "#4739db", "#6e4ef7", DASHED, "$C$")),
    ("repo", Style("RePo", "#58115b", "#89548e", DOTTED, "$R$")),
    ("selective_rope", Style("Selective RoPE", "#b88733", "#f29112", MIXED, "$S$")),
    ("ssmax", Style("SSMax", "#e0108e", "#b5799b", DASHED, "$N$")),
    ("llama4_temperature", Style("Llama 4 temperature", "#8a4ff2", "#daaffe", MIXED, "$L$")),
)
"""The encodings that papers compare most; `attnjax.registry` has the names of all."""

OTHER = (
    Style("", "#7a7a00", "#c8c832", MIXED, "P"),
    Style("", "#a0527a", "#e39ac0", MIXED, "v"),
    Style("", "#4a6b7a", "#9dc3d4", MIXED, "^"),
)
"""For all other encodings, by the letters of their name; their curves have labels of their own."""


def order(encoding: str) -> int:
    """The place of an encoding in figures and tables; of several, the first counts."""
    names, first = list(ENCODINGS), encoding.split("+")[0]
    return names.index(first) if first in names else len(names)


def color_class(encoding: str) -> str:
    """The name under which a page keeps the two colours of an encoding."""
    first = encoding.split("+")[0]
    return f"e-{first}" if first in dict(STYLES) else f"e-other-{sum(first.encode()) % len(OTHER)}"


def color_classes() -> dict[str, Style]:
    """All of these names."""
    others = {f"e-other-{i}": look for i, look in enumerate(OTHER)}
    return {color_class(name): look for name, look in STYLES} | others


def style(encoding: str, variant: int = 0) -> Style:
    """The style of an encoding, or of the first of several joined by "+".

    The variants of an encoding that a sweep compares (0, 1, 2 ...) keep its colour and take the other dashes and
    markers.
    """
    first = encoding.split("+")[0]
    base = dict(STYLES).get(first) or OTHER[sum(first.encode()) % len(OTHER)]
    row = ENCODINGS.get(encoding)
    label = encoding if row is None else row.label
    if not variant:
        return replace(base, label=label)
    dash = DASHES[(DASHES.index(base.dash) + variant) % len(DASHES)]
    marker = MARKERS[(MARKERS.index(base.marker) + variant) % len(MARKERS)]
    return replace(base, label=label, dash=dash, marker=marker)
