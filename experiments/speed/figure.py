"""Time and temporary memory of attention with its gradient against length, both axes logarithmic.

The dotted line of the left panel is what the machine allows: 2 B N T^2 H FLOPs forward under a causal mask, 3.5 times as
many with the gradient, at the measured rate of matrix products. The right panel counts what a program holds beside its inputs
and its results.
"""

import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnjax.report.drawing import FAINT, length_axis, new_figure, plain, save, settings
from attnjax.report.style import OTHER, STYLES, Style
from experiments.speed.records import Row, Spread
from experiments.speed.table import scaled, significant, sizes_text

TIMED = (
    ("short", "forward + backward, nope"),
    ("attention", "forward + backward"),
    ("attention_torch", "NoPE, forward + backward"),
)
"""(suite, start of the case) of the rows that make the panel of time."""
OURS = "attnjax"
OUR_LOOK = "rope"
PEERS = ("sinusoidal", "alibi", "t5", "learned", "nope", "transformer_xl", "xpos")
"""Whose looks in `attnjax.report.style` the contenders take here: colours that everybody can tell apart."""
GAP = 0.062
"""Least distance of two labels, as a share of the height of a panel."""


class Line(NamedTuple):
    """A contender's figures by length."""

    name: str
    ours: bool
    points: dict[int, Spread]


class End(NamedTuple):
    """Where a line ends, and the name to write there."""

    name: str
    color: str
    ours: bool
    x: float
    y: float


def write(machine: Mapping[str, Any], rows: Iterable[Row], path: pathlib.Path) -> list[pathlib.Path]:
    """Draw path.png and path.svg and return them; none where no row has what the figure shows.

    Raises ValueError where matplotlib is not installed.
    """
    timed, held = of_time(rows := list(rows)), of_memory(rows)
    if not timed and not held:
        return []
    with settings():
        return save(draw(machine, timed, held), path)


def of_time(rows: Iterable[Row]) -> list[Row]:
    """Rows of forward and backward time without an encoding, if they are of several lengths."""
    seconds = [row for row in rows if row.unit == "s" and drawable(row)]
    found = [row for row in seconds if any(row.suite == name and row.case.startswith(case) for name, case in TIMED)]
    return found if len({row.sizes["T"] for row in found}) > 1 else []


def of_memory(rows: Iterable[Row]) -> list[Row]:
    """Rows of temporary bytes, of cases that were measured at several lengths."""
    lengths: dict[str, set[int]] = {}
    found = [row for row in rows if row.suite == "memory" and row.unit == "B" and drawable(row)]
    for row in found:
        lengths.setdefault(row.case, set()).add(row.sizes["T"])
    return [row for row in found if len(lengths[row.case]) > 1]


def drawable(row: Row) -> bool:
    """Whether the row says a length, and figures that a logarithmic axis can show."""
    length, figures = row.sizes.get("T"), (*row.our_figure, *row.peer_figure)
    return isinstance(length, int) and length > 0 and all(math.isfinite(x) and x > 0 for x in figures)


def draw(machine: Mapping[str, Any], timed: Sequence[Row], held: Sequence[Row]) -> Any:
    """The figure: a panel for each of the two that has rows."""
    panels = [(rows, unit) for rows, unit in ((timed, "s"), (held, "B")) if rows]
    figure, axes = new_figure(6.2 * len(panels), 5.0, 1, len(panels))
    looks = looks_of([*timed, *held])
    for axis, (rows, unit) in zip(axes, panels, strict=True):
        draw_panel(axis, machine, rows, unit, looks)
    figure.supxlabel(plain(place(machine), 100), fontsize=9, color=FAINT, x=0.01, ha="left")
    return figure


def place(machine: Mapping[str, Any]) -> str:
    """2 cores of a processor, or the name of the accelerator."""
    if machine.get("backend", "cpu") != "cpu":
        return str(machine.get("device", ""))
    cores = f"{machine['cores']} cores" if machine.get("cores") else ""
    return " of ".join(filter(None, [cores, str(machine.get("processor") or "")]))


def draw_panel(axis: Any, machine: Mapping[str, Any], rows: Sequence[Row], unit: str, looks: dict[str, Style]) -> None:
    """One panel: a line with the quartiles as a band for every contender, and what the machine allows."""
    lengths = sorted({row.sizes["T"] for row in rows})
    limit = time_limit(machine, rows) if unit == "s" else None
    axis.set_yscale("log", base=10 if unit == "s" else 2)
    ends = [draw_line(axis, line, looks[line.name]) for line in lines(rows)]
    if limit is not None:
        values = [limit[1](length) for length in lengths]
        axis.plot(lengths, values, color=FAINT, linewidth=1.4, dashes=(1.2, 1.6), zorder=2)
        ends.append(End(limit[0], FAINT, False, lengths[-1], values[-1]))
    length_axis(axis, np.array(lengths, float), 0)
    shared = {k: v for k, v in rows[0].sizes.items() if k != "T" and all(row.sizes.get(k) == v for row in rows)}
    axis.set_xlabel(plain(f"T, tokens ({sizes_text(shared)})" if shared else "T, tokens", 60))
    axis.set_title("time, forward + backward" if unit == "s" else "temporary memory of the gradient")
    value_axis(axis, unit)
    name_lines(axis, ends)


def draw_line(axis: Any, line: Line, look: Style) -> End:
    """The medians with markers, ours thicker and above the others."""
    x = sorted(line.points)
    median, low, high = (np.array([line.points[length][i] for length in x]) for i in range(3))
    axis.fill_between(x, low, high, color=look.color, alpha=0.16, linewidth=0)
    width = 2.6 if line.ours else 1.7
    (drawn,) = axis.plot(x, median, color=look.color, linewidth=width, marker=look.marker, markersize=5.5)
    drawn.set(dashes=look.dash or (None, None), markeredgecolor="white", markeredgewidth=0.6, zorder=3 + line.ours)
    return End(plain(line.name), look.color, line.ours, x[-1], float(median[-1]))


def lines(rows: Sequence[Row]) -> list[Line]:
    """Contenders in order of appearance, ours first.

    Where a contender was measured more than once at a length, against several peers or in several cases, the point is the
    median and the band holds all of them.
    """
    found: dict[tuple[bool, str], dict[int, list[Spread]]] = {}
    for row in rows:
        for ours, name, figure in ((True, OURS, row.our_figure), (False, row.peer, row.peer_figure)):
            found.setdefault((ours, name), {}).setdefault(row.sizes["T"], []).append(figure)
    made = [
        Line(name, ours, {length: together(figures) for length, figures in points.items()})
        for (ours, name), points in found.items()
    ]
    return sorted(made, key=lambda line: not line.ours)


def together(figures: Sequence[Spread]) -> Spread:
    """Median of the medians, and all that lies between the outermost quartiles."""
    middle = statistics.median(figure.median for figure in figures)
    return Spread(middle, min(figure.low for figure in figures), max(figure.high for figure in figures))


def looks_of(rows: Sequence[Row]) -> dict[str, Style]:
    """A look for every name, the same in both panels: ours thick and blue, the peers by order of appearance."""
    table, names = dict(STYLES), list(dict.fromkeys(row.peer for row in rows))
    peers = [*(table[name] for name in PEERS), *OTHER]
    looks = {name: peers[i % len(peers)] for i, name in enumerate(names)}
    return looks | {OURS: table[OUR_LOOK]}


def time_limit(machine: Mapping[str, Any], rows: Sequence[Row]) -> tuple[str, Any] | None:
    """(label, seconds as a function of T); None where the machine's peak or a size is not known."""
    peak, width = machine.get("peak_flops"), batch_heads_width(rows)
    if not peak or width is None:
        return None
    work = 3.5 * 2 * math.prod(width)
    return f"peak, {significant(peak / 1e9)} GFLOP/s", lambda length: work * length**2 / peak


def batch_heads_width(rows: Sequence[Row]) -> tuple[int, int, int] | None:
    """B, N and H where all rows say the same of them."""
    found = {tuple(row.sizes.get(key) for key in "BNH") for row in rows}
    batch, heads, size = found.pop()
    if found or batch is None or heads is None or size is None:
        return None
    return batch, heads, size


def value_axis(axis: Any, unit: str) -> None:
    """Marks of the y axis with their units: 10 ms, 16 MiB."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.yaxis.set_major_locator(LogLocator(base=10 if unit == "s" else 16))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: "{:g} {}".format(*scaled(y, unit))))


def name_lines(axis: Any, ends: Sequence[End]) -> None:
    """A name beside the end of every line; those of lines that end at one T keep apart."""
    low, high = map(math.log, axis.get_ylim())
    for last in {end.x for end in ends}:
        here = sorted((end for end in ends if end.x == last), key=lambda end: end.y)
        true = [(math.log(end.y) - low) / (high - low) for end in here]
        for end, height, wanted in zip(here, spaced(true, GAP), true, strict=True):
            moved = abs(height - wanted) > 0.01
            arrow = dict(arrowstyle="-", color=end.color, linewidth=0.8, shrinkA=1, shrinkB=4, relpos=(0, 0.5))
            spot = (11, math.exp(low + height * (high - low)))
            look = dict(color=end.color, weight="bold" if end.ours else "normal", fontsize=9.5, va="center")
            coordinates = ("offset points", "data")
            axis.annotate(
                end.name, (end.x, end.y), spot, textcoords=coordinates, arrowprops=arrow if moved else None, **look
            )


def spaced(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights, moved as little as needed to be at least `gap` apart and, if they fit, between 0 and 1."""
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and stacked(groups[-2], gap)[-1] + gap > stacked(groups[-1], gap)[0]:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [height for group in groups for height in stacked(group, gap)]


def stacked(group: Sequence[float], gap: float) -> list[float]:
    """As many heights as the group has, `gap` apart, around its mean."""
    length = gap * (len(group) - 1)
    start = max(0.0, min(1.0 - length, sum(group) / len(group) - length / 2))
    return [start + gap * i for i in range(len(group))]
