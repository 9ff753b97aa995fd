"""Whether our ranking of encodings is that of a paper: Kendall's tau_b over the cells that both have.

    tau_b = (concordant - discordant) / sqrt((pairs - ties of ours) (pairs - ties of theirs))

One number for each paper, task, metric and range of lengths. Encodings that did not fit the task here are left out, and so are
those whose positions were sampled in another way there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

from attnjax.report.formatting import csv_text, decimal, exact, markdown, markdown_table
from attnjax.report.markup import Markup, element, table

HEADER = ("paper", "task", "metric", "their lengths", "encodings", "tau_b", "pairs in the same order")
TEXT = (
    "Kendall's tau_b between our ranking of encodings and the published one, over encodings that fitted here and have the same "
    "positions there: 1 is the same order, -1 the reverse."
)


About = tuple[str, str, str, str]
"""Paper, task, metric, lengths."""


@dataclass(frozen=True)
class Ranked:
    """One encoding in both rankings."""

    about: About
    label: str
    ours: float
    theirs: float


@dataclass(frozen=True)
class Agreement:
    """How far two rankings of the same encodings agree; `tau` is NaN where one of them is all ties."""

    about: About
    encodings: tuple[str, ...]
    tau: float
    concordant: int
    discordant: int

    @property
    def words(self) -> list[str]:
        """The row of a table, but for tau."""
        compared = math.comb(len(self.encodings), 2)
        return [*self.about, ", ".join(self.encodings), decimal(self.tau), f"{self.concordant} of {compared}"]


def agreements(found: Sequence[Ranked]) -> tuple[Agreement, ...]:
    """The agreement of each group that has two encodings or more."""
    groups = groupby(sorted(found, key=lambda one: one.about), key=lambda one: one.about)
    members = [(about, list(group)) for about, group in groups]
    return tuple(agreement(about, group) for about, group in members if len(group) > 1)


def agreement(about: About, group: Sequence[Ranked]) -> Agreement:
    """The agreement of one group."""
    ours, theirs = [one.ours for one in group], [one.theirs for one in group]
    products = [order(a.ours, b.ours) * order(a.theirs, b.theirs) for a, b in combinations(group, 2)]
    labels = tuple(one.label for one in group)
    return Agreement(about, labels, tau_b(ours, theirs), products.count(1), products.count(-1))


def order(first: float, second: float) -> int:
    """1 where the first is larger, -1 where the second is, 0 for a tie."""
    return (first > second) - (first < second)


def tau_b(x: Sequence[float], y: Sequence[float]) -> float:
    """Kendall's tau_b of two lists, NaN where one has no two different numbers.

    Example:
      >>> tau_b([1, 2, 3, 4], [1, 3, 2, 4])      # five of six pairs in the same order
      0.6666666666666666
    """
    signs = [(order(x[i], x[j]), order(y[i], y[j])) for i, j in combinations(range(len(x)), 2)]
    untied = math.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))
    return sum(a * b for a, b in signs) / untied if untied else math.nan


def in_markdown(found: Sequence[Agreement]) -> str:
    """The table as Markdown, nothing without any."""
    rows = [[markdown(cell) for cell in item.words] for item in found]
    return f"\n## The order of encodings\n\n{TEXT}\n\n{markdown_table(HEADER, rows)}" if rows else ""


def in_html(found: Sequence[Agreement]) -> Markup | None:
    """The table as a part of the page, None without any."""
    if not found:
        return None
    rows = table(HEADER, [item.words for item in found], "order of encodings", class_="words")
    return element("div", element("h3", "The order of encodings"), element("p", TEXT), rows)


def in_csv(found: Sequence[Agreement]) -> str:
    """The table as a CSV file."""
    header = ["paper", "task", "metric", "lengths", "encodings", "tau_b", "concordant", "discordant"]
    rows = [
        [*item.about, ", ".join(item.encodings), exact(item.tau), item.concordant, item.discordant] for item in found
    ]
    return csv_text(header, rows)
