"""Line charts as inline SVG: complete without a script, with the data that lets one read values under the pointer.

A chart has a band and a line per curve in the colour class of its encoding, the training range shaded and a chance
line. Below it stands a table of the values at one place, which is also its legend; the page's script moves that place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from attnjax.report import intervals
from attnjax.report.formatting import NONE, interval
from attnjax.report.markup import Markup, element, table
from attnjax.report.scales import Scale
from attnjax.report.scores import Curve
from attnjax.report.style import color_class, style

WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 700, 14, 290
"""Pixels of the frame inside the drawing."""
HINT = "Point at the chart, tap it, or use its arrow keys to read other values. Point at a name to see its curve alone."
MARKED = 24
"""Most points of a curve that get a mark each."""


@dataclass(frozen=True)
class Chart:
    """What to draw: curves over two scales. `levels` are dotted lines through these (x, y), each with its name.

    The drawing is shaded up to x = `longest`, if that is not 0. The curves at the places `grey` are of variants that did not
    learn their task. From x = `longest` on, each of the others has a thin dashed line at its value there if `cut`: what it
    would score if every window were cut to the trained length.
    """

    name: str
    title: str
    x: Scale
    y: Scale
    curves: tuple[Curve, ...]
    longest: float = 0
    levels: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = ()
    grey: frozenset[int] = frozenset()
    cut: bool = False

    @property
    def places(self) -> list[float]:
        """Every x at which some curve has a value."""
        return sorted({float(x) for curve in self.curves for x in curve.x})


def figure(chart: Chart) -> Markup:
    """The drawing and its table of values."""
    parts = [shading(chart), grid(chart)]
    parts += [
        element("g", band(chart, curve), line(chart, curve), trained_level(chart, place), class_=classes(chart, place))
        for place, curve in enumerate(chart.curves)
    ]
    parts += [level(chart, *named) for named in chart.levels]
    parts += [element("line", class_="cursor", x1=-9, x2=-9, y1=TOP, y2=BOTTOM)]
    drawing = element(
        "svg",
        element("title", chart.title),
        parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        tabindex="0",
        aria_label=f"{chart.title}. The arrow keys move along the {chart.x.label}.",
    )
    hint = element("figcaption", caption(chart), class_="soft")
    return element("figure", drawing, legend(chart), hint, class_="chart", data_chart=chart.name)


def classes(chart: Chart, place: int) -> str:
    """The class attribute of a curve, which gives it the colour of its encoding, or grey."""
    return "curve unfitted" if place in chart.grey else f"curve {color_class(chart.curves[place].variant.encoding)}"


def caption(chart: Chart) -> str:
    """What lines, bands and grey are, from the numbers of runs that entered them."""
    counts = [count for curve in chart.curves for count in curve.count]
    parts = [f"Lines: median. Bands: {intervals.caption(counts)}."] if counts else []
    parts += ["Grey: not fitted."] if chart.grey else []
    parts += ["Thin dashes: cut to the trained length."] if chart.cut else []
    return " ".join([*parts, HINT])


def shading(chart: Chart) -> Markup | None:
    """The shaded rectangle over the training lengths."""
    if chart.longest <= max(0, chart.x.low):
        return None
    width = min(RIGHT, chart.x(chart.longest)) - LEFT
    return element("rect", class_="trained", x=LEFT, y=TOP, width=round(width, 1), height=BOTTOM - TOP)


def grid(chart: Chart) -> Iterator[Markup]:
    """Grid lines, numbers and titles of both axes."""
    for y in chart.y.ticks:
        yield element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=chart.y(y), y2=chart.y(y))
        yield element("text", chart.y.shown(y), x=LEFT - 8, y=chart.y(y) + 5, text_anchor="end")
    for x in chart.x.ticks:
        yield element("text", chart.x.shown(x), x=chart.x(x), y=BOTTOM + 20, text_anchor="middle")
    yield element("line", class_="frame", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM)
    shaded = " (shaded: up to the longest in training)" if chart.longest else ""
    middle = (LEFT + RIGHT) / 2
    yield element("text", chart.x.label + shaded, class_="axis", x=middle, y=HEIGHT - 5, text_anchor="middle")


def trained_level(chart: Chart, place: int) -> Markup | None:
    """A thin dashed line from the longest training length on, at the value that the curve has there."""
    value = chart.curves[place].estimates.get(chart.longest)
    if not chart.cut or place in chart.grey or value is None or not np.isfinite(value.value):
        return None
    y = chart.y(value.value)
    return element("line", class_="trimmed", x1=chart.x(chart.longest), x2=RIGHT, y1=y, y2=y)


def level(chart: Chart, name: str, points: Sequence[tuple[float, float]]) -> Markup | None:
    """A dotted line with its name, such as chance, if it lies inside the frame."""
    inside = [(x, y) for x, y in points if chart.y.low <= y <= chart.y.high]
    if not inside:
        return None
    drawn = path([(chart.x(x), chart.y(y)) for x, y in inside])
    (x, y), anchor = (inside[0], None) if name == "chance" else (inside[-1], "end")
    text = element("text", name, x=chart.x(x), y=chart.y(y) - 5, text_anchor=anchor)
    return element("g", element("path", d=drawn), text, class_="chance")


def line(chart: Chart, curve: Curve) -> Iterator[Markup]:
    """A line through the medians, with gaps where they are not finite, and with markers if there are few points."""
    dash = style(curve.variant.encoding, curve.variant.number).dash
    points = [[(chart.x(x), chart.y(y)) for x, y in part] for part in runs(curve.x, curve.value)]
    pattern = " ".join(f"{2 * length:g}" for length in dash) or None
    yield element("path", class_="line", d=" ".join(path(part) for part in points), stroke_dasharray=pattern)
    if len(curve.x) <= MARKED:
        yield from (element("circle", cx=x, cy=y, r=2.8) for part in points for x, y in part)


def band(chart: Chart, curve: Curve) -> Markup:
    """The interval, or the range, as a filled shape, one for each stretch of finite values."""
    shapes = []
    for part in runs(curve.x, curve.low, curve.high):
        there = [(chart.x(x), chart.y(low)) for x, low, _ in part]
        back = [(chart.x(x), chart.y(high)) for x, _, high in reversed(part)]
        shapes.append(path(there + back) + "Z")
    return element("path", class_="band", d=" ".join(shapes))


def runs(*columns: Float[np.ndarray, " X"]) -> list[list[tuple[float, ...]]]:
    """The rows of these columns, split where a value is infinite."""
    found: list[list[tuple[float, ...]]] = [[]]
    for row in zip(*columns, strict=True):
        if all(map(np.isfinite, row)):
            found[-1].append(tuple(map(float, row)))
        elif found[-1]:
            found.append([])
    return [part for part in found if part]


def path(points: Sequence[tuple[float, float]]) -> str:
    """The SVG path of straight lines through the points."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def legend(chart: Chart) -> Markup:
    """The table of curves with their values at one place, which is the last until the script moves it."""
    places = chart.places
    last = chart.x.shown(places[-1]) if places else ""
    rows = []
    for place, curve in enumerate(chart.curves):
        dash = style(curve.variant.encoding, curve.variant.number).dash
        pattern = " ".join(f"{2 * length:g}" for length in dash) or None
        stroke = element("line", class_="line", x1=1, x2=39, y1=6, y2=6, stroke_dasharray=pattern)
        swatch = element(
            "svg", stroke, class_=f"swatch {classes(chart, place)}", viewBox="0 0 40 12", aria_hidden="true"
        )
        note = " (not fitted)" if place in chart.grey else None
        shown = values(curve, places)[-1] if places else ""
        rows.append([[swatch, " ", curve.variant.label, note], element("td", shown)])
    output = element("output", last, aria_live="polite")
    header = ["encoding", [f"{chart.y.label} at {chart.x.label} ", output]]
    return table(header, rows, f"{chart.title}: values", [curve.variant.source for curve in chart.curves])


def values(curve: Curve, places: Sequence[float]) -> list[str]:
    """The text of the table for a curve at every place: median, interval or range, and number of runs."""
    known = {x: f"{interval(found)}, {found.runs} runs" for x, found in curve.estimates.items()}
    return [known.get(place, NONE) for place in places]


def data(chart: Chart) -> dict[str, Any]:
    """The data with which the script moves the place: names and pixels of all places, and a text for each curve and place."""
    places = chart.places
    return {
        "names": [chart.x.shown(x) for x in places],
        "pixels": [chart.x(x) for x in places],
        "values": [values(curve, places) for curve in chart.curves],
    }
