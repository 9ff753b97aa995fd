"""The table of published cells as Markdown and as CSV files, and the figure: ours against theirs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnjax.report import drawing
from attnjax.report.formatting import csv_text, decimal, exact, interval, markdown, markdown_table, span
from attnjax.report.intervals import Estimate
from attnjax.report.style import order, style
from experiments.published.agreement import HEADER as ORDERS
from experiments.published.cells import LOSSES, Pair, about, counted_words
from experiments.published.collecting import Collection
from experiments.published.protocols import TOPICS, Differs, in_words, topics

COLUMNS = (
    "task",
    "theirs",
    "ours",
    "their lengths",
    "our lengths",
    "published",
    "ours [interval]",
    "counted as theirs",
)
TEXT = """Every row is a number that a paper printed, of lengths past those it trained on, and ours at the same multiples of
our longest trained length. Losses of language models stand as their rise over the loss at the trained length, in nats per
their token and our byte. Published means are over every length of a range; ours is over every length from the first to the
last tested one in it, linear between tested ones. It is the median of all runs
that were started; in brackets a 95 % interval of 6 runs or more, or, where it is called so, the range of fewer. "Counted as
theirs" is our number as the paper counts: the mean of all runs, or, of Huang et al., of those alone that answered every example
of the trained lengths. It says how much that choice changes."""
LAST = "state, and what else differs"


def in_markdown(collection: Collection) -> str:
    """table.md: what there is in numbers, then for each sweep its cells, what differs and the order of encodings."""
    parts = [f"# Beside published numbers\n\n{TEXT}\n", f"\n{summary(collection)}"]
    for found in collection.found:
        parts.append(f"\n## {markdown(found.source.name)}\n")
        for paper, common in found.common.items():
            rows = [[markdown(cell) for cell in row(pair, common)] for pair in found.pairs if pair.cell.paper == paper]
            parts.append(f"\n{markdown(paper)}: {len(rows)} cells.\n\n{markdown_table((*COLUMNS, LAST), rows)}")
            parts.append(f"\nWhat differs in all of these cells, ours (theirs):\n\n{bullets(common)}")
        if found.agreements:
            rows = [[markdown(cell) for cell in one.words] for one in found.agreements]
            title = "The order of encodings that fitted and have the same positions there"
            parts.append(f"\n{title}:\n\n{markdown_table(ORDERS, rows)}")
    return "".join(parts) + absent(collection)


def summary(collection: Collection) -> str:
    """What there is, in numbers."""
    pairs, orders = collection.pairs, [one for found in collection.found for one in found.agreements]
    unfitted = sum(pair.unfitted for pair in pairs)
    tested = sum(pair.cell.metric not in dict(LOSSES) for pair in pairs)
    compared = sum(len(one.encodings) * (len(one.encodings) - 1) // 2 for one in orders)
    concordant, discordant = (sum(getattr(one, name) for one in orders) for name in ("concordant", "discordant"))
    papers = len({pair.cell.paper for pair in pairs})
    rows = [
        ["published numbers with one of ours beside them", f"{len(pairs)}, of {papers} papers"],
        ["of these, of runs that did not fit the trained lengths", f"{unfitted} of {tested}; text has no such test"],
        ["kept published numbers without one of ours", str(len(collection.missing))],
        ["cells of several sweeps, of which the first stands here", str(collection.repeated)],
        [
            "pairs of encodings under the same task and lengths",
            f"{compared}: {concordant} in the published order, {discordant} the other way round, "
            f"{compared - concordant - discordant} tied in one of the two or in both",
        ],
    ]
    return markdown_table(("", "number"), rows)


def bullets(found: Iterable[Differs]) -> str:
    """What differs, a line for each topic."""
    found = list(found)
    lines = [f"- {name}: {markdown(in_words(found, name))}" for name in TOPICS if in_words(found, name)]
    return "\n".join(lines) + "\n" if lines else "- nothing that the protocol states\n"


def row(pair: Pair, common: Iterable[Differs] = ()) -> list[str]:
    """A row of the Markdown table; what differs in all cells of its table is left out."""
    _, task, _, theirs = about(pair.cell)
    unit = ", rise" if pair.cell.metric in dict(LOSSES) else ""
    rest = topics([one for one in pair.differs if one not in set(common)], TOPICS)
    state = "; ".join(filter(None, ["not fitted" if pair.unfitted else "", rest]))
    middle = [decimal(pair.published), interval(pair.ours), counted_words(pair.counted, decimal)]
    return [task + unit, pair.cell.theirs, pair.label, theirs, span(pair.lengths), *middle, state]


def absent(collection: Collection) -> str:
    """The sweeps that have no records yet, and their commands."""
    lines = [f"- {source.name}: `{source.command}`" for source in collection.absent]
    return "\n## Not run yet\n\n" + "\n".join(lines) + "\n" if lines else ""


def in_csv(collection: Collection) -> str:
    """table.csv: the same cells with all digits, and all that differs in words.

    `fitted` is empty for text, of which there is no such test.
    """
    header = ["sweep", "paper", "task", "options", "metric", "encoding", "theirs", "ours", "trained", "low", "high"]
    header += ["our_trained", "our_lengths", "published", "value", "interval_low", "interval_high", "kind", "runs"]
    header += ["counted_as_theirs", "runs_kept", "fitted", "differs", "source"]
    rows = []
    for found in collection.found:
        for pair in found.pairs:
            cell, ours, counted = (
                pair.cell,
                pair.ours or Estimate(float("nan"), float("nan"), float("nan")),
                pair.counted,
            )
            head = [
                found.source.name,
                cell.paper,
                cell.task,
                cell.options,
                cell.metric,
                cell.encoding,
                cell.theirs,
                pair.label,
            ]
            head += [
                cell.trained,
                cell.low,
                cell.high,
                pair.config["task"]["length_max"],
                " ".join(map(str, pair.lengths)),
            ]
            numbers = [exact(pair.published), *map(exact, (ours.value, ours.low, ours.high)), ours.kind, ours.runs]
            fitted = "" if cell.metric in dict(LOSSES) else int(not pair.unfitted)
            numbers += [exact(counted.value) if counted else "", counted.kept if counted else 0, fitted]
            rows.append([*head, *numbers, in_words(pair.differs), cell.source])
    return csv_text(header, rows)


def orders_in_csv(collection: Collection) -> str:
    """agreement.csv: Kendall's tau_b of each group, with how many pairs it is of."""
    header = ["sweep", "paper", "task", "metric", "lengths", "encodings", "tau_b", "pairs", "concordant", "discordant"]
    rows = []
    for found in collection.found:
        for one in found.agreements:
            count = len(one.encodings) * (len(one.encodings) - 1) // 2
            same = [found.source.name, *one.about, ", ".join(one.encodings), exact(one.tau)]
            rows.append([*same, count, one.concordant, one.discordant])
    return csv_text(header, rows)


def draw(collection: Collection, folder: Path) -> list[Path]:
    """figure.png and figure.svg: ours against theirs, shares of right answers and rises of losses apart."""
    with drawing.settings():
        figure, axes = drawing.new_figure(11, 5.2, 1, 2)
        for axis, loss in zip(axes, (False, True), strict=True):
            panel(axis, [pair for pair in collection.pairs if (pair.cell.metric in dict(LOSSES)) == loss], loss)
        return drawing.save(figure, folder / "figure")


def panel(axis: Any, pairs: list[Pair], loss: bool) -> None:
    """One panel: a mark for each cell, hollow and grey where our runs did not fit, with the interval or range of ours."""
    name = "rise of the loss, nats" if loss else "exact match"
    axis.set(title=f"{name}: {len(pairs)} cells", xlabel="published", ylabel="ours")
    if loss:
        axis.set_xscale("symlog", linthresh=0.1)
        axis.set_yscale("symlog", linthresh=0.1)
        ticks = [-0.1, 0, 0.1, 0.3, 1, 3]
        axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axis.set_yticks(ticks, [f"{x:g}" for x in ticks])
    for pair in sorted(pairs, key=lambda one: order(one.cell.encoding)):
        look, ours = style(pair.cell.encoding), pair.ours
        if ours is None:
            continue
        color = drawing.UNFITTED if pair.unfitted else look.color
        ends = [[ours.value - ours.low], [ours.high - ours.value]] if ours.kind != "none" else None
        fill = {"markerfacecolor": "none"} if pair.unfitted else {}
        axis.errorbar([pair.published], [ours.value], ends, fmt=look.marker, color=color, elinewidth=0.8, **fill)
    low, high = (axis.get_xlim()[0], axis.get_xlim()[1]) if loss else (0.0, 1.0)
    axis.plot([low, high], [low, high], color=drawing.FAINT, linewidth=0.8, zorder=0)
    for encoding in sorted({pair.cell.encoding for pair in pairs}, key=order):
        look = style(encoding)
        axis.plot([], [], linestyle="none", marker=look.marker, color=look.color, label=look.label)
    if pairs:
        axis.legend(loc="best")


def files(collection: Collection) -> dict[str, str]:
    """The text files by name."""
    return {
        "table.md": in_markdown(collection),
        "table.csv": in_csv(collection),
        "agreement.csv": orders_in_csv(collection),
    }
