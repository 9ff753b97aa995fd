"""The figures of a report, each a pure function of its numbers.

A row of panels for each task. Left, the score at every tested length, with the names at the ends of the lines. Tested
lengths are evenly spaced, because the contest is decided just past the longest training length, where most protocols test many.
Right, or below on a phone, the differences from the best variant past training, paired by seed. What did not fit its task is
pale, is not ranked, and does not stretch the axis.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from attnjax.report import intervals
from attnjax.report.comparisons import MOST_COMPARED, Difference
from attnjax.report.drawing import FAINT, SHADE, UNFITTED, finite_only, new_figure, plain, some
from attnjax.report.formatting import probability
from attnjax.report.groups import Variant
from attnjax.report.scores import Scores, learning
from attnjax.report.style import Style
from attnjax.report.tables import Task

HEIGHT = 3.7
"""Inches of a row of panels."""
GAP = 0.062
"""Share of the height of a panel that a name at the end of a line needs."""


BARS = ((intervals.INTERVAL, "bar: 95 % interval"), (intervals.RANGE, "bar: range"))
"""What the bars of differences are; intervals go before ranges."""


@dataclass(frozen=True)
class Layout:
    """Inches of a row of panels, panels in it, most letters of a line of a name, most lengths with a number on the axis."""

    width: float
    columns: int
    letters: int
    ticks: int


WIDE = Layout(10.5, 2, 52, 16)
"""What a README shows without shrinking the letters below reading size."""
NARROW = Layout(4.9, 1, 16, 7)
"""For a phone, 390 pixels wide: panels below each other, long names in several lines."""


@dataclass(frozen=True)
class End:
    """A name at the end of a line, at the height where the line ends."""

    y: float
    name: str
    color: str
    bold: bool = True


def overview(tasks: Sequence[Task], layout: Layout = WIDE) -> Any:
    """Return the first metric of every task against length, and the paired differences past training beside or below it."""
    rows = 2 * len(tasks) // layout.columns
    ratios = (2.1, 1) if layout.columns == 2 else None
    figure, axes = new_figure(layout.width, HEIGHT * rows + 0.2, rows, layout.columns, width_ratios=ratios)
    for row, task in enumerate(tasks):
        draw_lengths(axes[2 * row], task, task.scores[0], task.levels[0], layout)
        draw_differences(axes[2 * row + 1], task)
    return figure


def draw_lengths(
    axis: Any, task: Task, scored: Scores, levels: dict[str, dict[int, float]], layout: Layout = WIDE
) -> None:
    """Draw the medians of all variants with their intervals or ranges, and the scores of guessing and n-gram models."""
    rows = task.lengths[task.lengths.metric == scored.metric.key]
    lengths = scored.lengths
    place = length_places(axis, lengths, task.panel.trained[1], layout.ticks)
    ends = []
    for variant in reversed(task.ranked):  # the best is drawn last, on top
        curve = rows[rows.variant == variant.label]
        if len(curve):
            grey = variant.label in task.unfitted
            draw_curve(axis, [place[n] for n in curve.length], curve, variant, grey)
            last = curve["median"].iloc[-1]
            worst = np.inf if not scored.metric.higher else 0.0
            ends.append(End(last if np.isfinite(last) else worst, variant.label, look(variant, grey).color, not grey))
    for name, level in levels.items():
        values = [level[n] for n in lengths]
        axis.plot([place[n] for n in lengths], values, color=FAINT, linewidth=1.0, dashes=(1, 2), zorder=1.5)
        ends.append(End(values[-1], name, FAINT, False))
    value_axis(axis, task, scored, levels)
    write_ends(axis, ends, layout.letters)
    axis.set_title(plain(task.panel.label, 60), pad=18)
    kinds = intervals.caption(task.answer.done + task.answer.failed)
    pale = "\npale: did not fit the trained lengths" if task.unfitted else ""
    between = " " if layout is WIDE else "\n"
    axis.set_xlabel(f"tested lengths, evenly spaced{between}(median; band: {kinds}){pale}", fontsize=8.5)


def look(variant: Variant, grey: bool) -> Style:
    """Return how a variant is drawn, pale if it did not fit."""
    return replace(variant.look, color=UNFITTED, dark=UNFITTED) if grey else variant.look


def length_places(axis: Any, lengths: Sequence[int], longest: int, ticks: int) -> dict[int, float]:
    """Return where each length lies on the x axis, which is shaded up to the longest in training."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    place = {n: float(i) for i, n in enumerate(lengths)}
    trained = [i for i, n in enumerate(lengths) if n <= longest]
    marked = some(range(len(lengths)), ticks, kept=max(trained, default=0))
    axis.xaxis.set_major_locator(FixedLocator(marked))
    axis.xaxis.set_major_formatter(FixedFormatter([str(lengths[i]) for i in marked]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.tick_params(axis="x", labelsize=8.5)
    left, right = -0.4, len(lengths) - 0.6
    axis.set_xlim(left, right)
    if trained:
        edge = max(trained) + 0.5
        axis.axvspan(left, edge, color=SHADE, zorder=0, linewidth=0)
        words = {"color": FAINT, "fontsize": 8.5, "va": "bottom"}
        at = axis.get_xaxis_transform()
        axis.text(edge, 1.01, "trained lengths ", ha="right", transform=at, **words)
        if edge < right:
            axis.text(edge, 1.01, " longer than trained \N{RIGHTWARDS ARROW}", ha="left", transform=at, **words)
    return place


def draw_curve(axis: Any, x: Sequence[float], curve: Any, variant: Variant, grey: bool) -> None:
    """Draw a line with markers through the medians, and the interval or range as a band."""
    drawn = look(variant, grey)
    low, high = (finite_only(curve[f"median_{end}"].to_numpy()) for end in ("low", "high"))
    known = curve["median_kind"].to_numpy() != intervals.NONE
    axis.fill_between(
        x, np.where(known, low, np.nan), np.where(known, high, np.nan), color=drawn.color, alpha=0.13, linewidth=0
    )
    every = 1 + len(x) // 30
    line = axis.plot(
        x,
        finite_only(curve["median"].to_numpy()),
        color=drawn.color,
        linewidth=1.2 if grey else 2.0,
        marker=drawn.marker,
        markersize=4.5,
    )
    line[0].set(dashes=drawn.dash or (None, None), markevery=every, markeredgecolor="white", markeredgewidth=0.6)
    line[0].set(zorder=2 if grey else 3, gid=gid(variant))


def gid(variant: Variant) -> str:
    """Return the name of a variant's lines in the SVG, where the page adds what they show."""
    return f"line-{variant.cell}"


def value_axis(axis: Any, task: Task, scored: Scores, levels: dict[str, dict[int, float]]) -> None:
    """Set the y axis, with an arrow for "better": a share from 0 to 1, a loss as far as variants that fitted and baselines go.

    A loss beyond that of a unigram model, which knows no order, leaves the frame: it would flatten the contest.
    """
    from matplotlib.ticker import PercentFormatter

    metric = scored.metric
    arrow = "\N{UPWARDS ARROW}" if metric.higher else "\N{DOWNWARDS ARROW}"
    axis.set_ylabel(f"{plain(metric.label)}  ({arrow} better)")
    if metric.share:
        axis.set_ylim(-0.04, 1.04)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        return
    rows = task.lengths[(task.lengths.metric == metric.key) & ~task.lengths.variant.isin(task.unfitted)]
    rows = rows if len(rows) else task.lengths[task.lengths.metric == metric.key]
    values = np.array(
        [x for x in rows["median"] if np.isfinite(x)] + [x for level in levels.values() for x in level.values()]
    )
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    if ceiling := levels.get("unigram model"):
        high = min(high, max(ceiling.values()))
    room = 0.06 * (high - low) or 0.1
    axis.set_ylim(low - room, high + room)


def write_ends(axis: Any, ends: Sequence[End], letters: int) -> None:
    """Write names to the right of their lines, apart from each other, in lines of at most so many letters.

    A line that leaves the frame is named at its edge.
    """
    bottom, top = axis.get_ylim()
    right = axis.get_xlim()[1]
    share = lambda end: float(np.clip((end.y - bottom) / (top - bottom), 0, 1))
    ordered = sorted(ends, key=lambda end: (share(end), end.bold, end.name))
    names = [textwrap.wrap(plain(end.name, 52), letters) for end in ordered]
    places = iter(apart([share(end) for end, lines in zip(ordered, names, strict=True) for _ in lines], GAP))
    for end, lines in zip(ordered, names, strict=True):
        place = np.mean([next(places) for _ in lines])
        beyond = "" if bottom <= end.y <= top else " \N{UPWARDS ARROW}" if end.y > top else " \N{DOWNWARDS ARROW}"
        axis.annotate(
            "\n".join(lines) + beyond,
            (right, np.clip(end.y, bottom, top)),
            (1.03, place),
            textcoords="axes fraction",
            color=end.color,
            fontsize=9,
            fontweight="bold" if end.bold else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.color,
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def apart(places: Sequence[float], gap: float) -> Float[np.ndarray, " N"]:
    """Return sorted places moved as little as needed to lie a gap apart from each other, and if possible from 0 to 1.

    Places that are too close form a block, which lies around the mean of what its members asked for.

    Example:
      >>> apart([0.0, 0.5, 0.5], 0.1).round(2).tolist()
      [0.0, 0.45, 0.55]
    """
    blocks: list[list[float]] = []
    for place in places:
        blocks.append([place])
        while len(blocks) > 1 and _start(blocks[-1], gap) < _start(blocks[-2], gap) + gap * len(blocks[-2]) - 1e-9:
            last = blocks.pop()
            blocks[-1] += last
    return np.array([_start(block, gap) + gap * i for block in blocks for i in range(len(block))])


def _start(block: Sequence[float], gap: float) -> float:
    size = gap * (len(block) - 1)
    return max(0.0, min(float(np.mean(block)) - size / 2, 1 - size))


def draw_differences(axis: Any, task: Task) -> None:
    """Draw the differences of all others that fitted from the best, past training, and of each pair of runs."""
    best, found = from_best(task)
    axis.grid(visible=False)
    if not found:
        axis.set_axis_off()
        fitted = len(task.panel.variants) - len(task.unfitted)
        why = (
            f"more than {MOST_COMPARED} variants"
            if fitted > MOST_COMPARED
            else "no two pairs of runs share their seeds"
        )
        words = f"Nothing to compare: {why if fitted > 1 else 'fewer than two variants fitted'}"
        axis.text(0.5, 0.5, words, ha="center", va="center", color=FAINT, fontsize=9, transform=axis.transAxes)
        return
    better = "\N{LEFTWARDS ARROW} better" if not task.metric.higher else "better \N{RIGHTWARDS ARROW}"
    axis.axvline(0, color=FAINT, linewidth=1.0, zorder=1)
    for row, (other, item, sign) in enumerate(found):
        draw_difference(axis, other, item, sign, -row)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_ylim(-len(found) + 0.5, 0.9)
    axis.locator_params(axis="x", nbins=4)
    axis.set_title(plain(f"difference from {best.label}", 40), fontsize=9.5, pad=18)
    kinds = {item.mean.kind for _, item, _ in found}
    known = [words for kind, words in BARS if kind in kinds]
    bars = (*known, "no interval")[0]
    axis.set_xlabel(
        f"{plain(task.metric.short)} past training, by seed ({better})\n{bars}; p: exact, Holm", fontsize=8.5
    )


def draw_difference(axis: Any, other: Variant, item: Difference, sign: int, y: float) -> None:
    """Draw one difference: its mean, its interval or range as a bar, the pairs of runs as circles; name and p beside it."""
    from matplotlib.patheffects import withStroke

    color = look(other, grey=False).color
    each = sign * np.array([x for _, _, x in item.pairs])
    if item.mean.kind != intervals.NONE:
        ends = [sign * item.mean.low, sign * item.mean.high]
        width = 7.0 if item.mean.kind == intervals.INTERVAL else 1.2
        axis.plot(ends, [y, y], color=color, linewidth=width, alpha=0.4, zorder=2, solid_capstyle="butt")
    axis.scatter(each, np.full(len(each), y), s=10, facecolors="none", edgecolors=color, linewidths=0.8, zorder=3)
    axis.plot([sign * item.mean.value], [y], color=color, marker="D", markersize=5.5, zorder=4, markeredgecolor="white")
    at = {"xycoords": ("axes fraction", "data"), "fontsize": 8.5, "color": color}
    name = axis.annotate(plain(other.label, 40), (0.0, y + 0.22), va="bottom", **at)
    name.set_path_effects([withStroke(linewidth=3, foreground="white")])
    p = probability(item.holm) if np.isfinite(item.mean.value) else "a run failed"
    axis.annotate(f"p {p}", (1.02, y), va="center", **at)


def from_best(task: Task) -> tuple[Variant, list[tuple[Variant, Difference, int]]]:
    """Return the best variant, and each other one that fitted with its difference and the sign of other less best."""
    best = task.ranked[0]
    known = {}
    for item in task.compared:
        if best in (item.first, item.second):
            other, sign = (item.second, -1) if item.first == best else (item.first, 1)
            known[other.label] = (other, item, sign)
    return best, [known[variant.label] for variant in task.ranked if variant.label in known]


def learning_curves(task: Task) -> Any:
    """Return the training loss against steps; None where nothing was logged."""
    figure, (axis,) = new_figure(NARROW.width, HEIGHT)
    ends, values = [], []
    for variant in task.panel.variants:
        table = learning(variant)
        if table.size == 0:
            continue
        middle = np.nanmedian(table.to_numpy(), axis=0)
        drawn = finite_only(middle)
        color, dash = variant.look.color, variant.look.dash
        axis.plot(table.columns, drawn, color=color, linewidth=1.6, dashes=dash or (None, None))
        ends.append(End(float(drawn[-1]), variant.label, color))
        values += [x for x in middle if np.isfinite(x)]
    if not values:
        return None
    room = 0.05 * (max(values) - min(values)) or 0.1
    axis.set_ylim(min(values) - room, max(values) + room)
    write_ends(axis, [end for end in ends if np.isfinite(end.y)], NARROW.letters)
    axis.set_xlabel("step (median over runs)", fontsize=8.5)
    axis.set_ylabel("training loss  (\N{DOWNWARDS ARROW} better)")
    axis.set_title(plain(task.panel.label, 60))
    return figure
