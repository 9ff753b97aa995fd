"""Whether our ranking of encodings is that of a paper: Kendall's tau_b over the cells that both have.

    tau_b = (concordant - discordant) / sqrt((pairs - ties of ours) (pairs - ties of theirs))

One number for each paper, task, metric and range of lengths. Encodings that did not fit the task here are left out, and so are
those whose positions were sampled in another way there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import numpy as np
from scipy import stats

from attnjax.report.formatting import decimal

HEADER = ("paper", "task", "metric", "their lengths", "encodings", "tau_b", "pairs in the same order")


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
    products = [np.sign(a.ours - b.ours) * np.sign(a.theirs - b.theirs) for a, b in combinations(group, 2)]
    labels = tuple(one.label for one in group)
    return Agreement(
        about, labels, float(stats.kendalltau(ours, theirs).statistic), products.count(1), products.count(-1)
    )
