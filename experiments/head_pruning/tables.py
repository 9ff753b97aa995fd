"""The tables of the page and of table.md, as Markdown."""

from attnjax.report.formatting import decimal, interval, markdown, markdown_table
from attnjax.report.intervals import Estimate, of_mean
from attnjax.report.style import style
from experiments.head_pruning.results import ORDERS, SHARES, Cell, Results

HALF = (
    "encoding",
    "loss, all heads",
    "+ at half, by importance",
    "+ at half, importance anew",
    "+ at half, random",
    "+ without any",
    "half, by importance, of all",
    *(f"heads to spare within {share:.0%}" for share in SHARES),
    "rank correlation",
)
NAMES = {"importance": "by importance", "recomputed": "importance anew", "random": "random, mean"}


def half_table(cells: list[Cell]) -> str:
    """A row per encoding: the loss, what half of the heads cost, how many can go, and how well importance ranks them."""
    return markdown_table(HALF, [half_row(cell) for cell in cells])


def half_row(cell: Cell) -> list[str]:
    """The row of one encoding."""
    rises = [interval(of_mean(cell.rise(kind))) for kind in ORDERS]
    spare = [short(of_mean(cell.removable(share))) for share in SHARES]
    whole = interval(of_mean(cell.loss["importance"][:, 0, 0]))
    costs = [*rises, interval(of_mean(cell.bare())), short(of_mean(cell.share("importance")), 2)]
    return [markdown(style(cell.encoding).label), whole, *costs, *spare, short(of_mean(cell.correlation), 2)]


def short(found: Estimate, digits: int = 1) -> str:
    """A number of heads with its interval."""
    return interval(found, digits)


def curves_md(results: Results) -> str:
    """The file table.md: loss and accuracy at every number of heads, for each length, encoding and kind of order."""
    parts = ["# Loss and accuracy against heads kept\n"]
    for length in results.lengths:
        parts.append(f"## Windows of {length} bytes\n")
        for number, title in (("loss", "Loss, nats per byte"), ("accuracy", "Accuracy of the next byte")):
            parts.append(f"{title}:\n\n{curve_table(results.cells[length], number)}")
    return "\n".join(parts)


def curve_table(cells: list[Cell], number: str) -> str:
    """A row per encoding and kind of order, a column per number of heads kept."""
    header = ["encoding", "order", *(f"{kept:g}" for kept in cells[0].kept)]
    rows = []
    for cell in cells:
        for kind, values in getattr(cell, number).items():
            points = values.mean((0, 1))
            rows.append([markdown(style(cell.encoding).label), NAMES[kind], *map(decimal, points)])
    return markdown_table(header, rows)
