"""From records to numbers: what is known of positions under each encoding, over the seeds of its runs."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnjax.report.intervals import Estimate, of_mean
from attnjax.report.style import order
from attnjax.typing import Bool, Float
from experiments import recorded

PROBES = ("trained", "untrained", "shuffled")


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """One encoding: R2 [runs, layers + 1] of each probe at trained positions and beyond, by what was probed.

    Of RoPE, `share` [runs, L, N, c] is that of each frequency in the use of its head, and `leaves` says which of them meet new
    angles in longer texts. `score` [runs, L, N, X] is what positions add to a logit at each `distance`, under RoPE the mean
    logit of queries and keys that far apart; None where they add nothing by themselves.
    """

    encoding: str
    within: Mapping[str, Float[np.ndarray, "runs layers"]]
    beyond: Mapping[str, Float[np.ndarray, "runs layers"]]
    frequency: Float[np.ndarray, " c"] | None = None
    leaves: Bool[np.ndarray, " c"] | None = None
    share: Float[np.ndarray, "runs L N c"] | None = None
    distance: Float[np.ndarray, " X"] | None = None
    score: Float[np.ndarray, "runs L N X"] | None = None

    @property
    def leaving(self) -> Estimate | None:
        """The share of the use that lies on frequencies which leave training, mean over heads, over runs."""
        if self.share is None or self.leaves is None:
            return None
        return of_mean(self.share[..., self.leaves].sum(-1).mean((1, 2)))


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """All encodings in the order of reports, the runs, and what was measured, where and when."""

    cells: tuple[Cell, ...]
    runs: list[dict[str, Any]]
    about: Mapping[str, Any]


def read(path: pathlib.Path) -> Results:
    """The results of a file of records. Raises ValueError, naming the file, where it is damaged or holds other records."""
    return recorded.read(path, "positions", results)


def results(tables: list[dict[str, Any]]) -> Results:
    """The same of the records themselves. Raises ValueError where no run was measured to its end."""
    runs = [table for table in tables if table.get("kind") == "run"]
    if not runs:
        raise ValueError("no run was measured to its end")
    ended = {run["run"] for run in runs}
    kept = [table for table in tables if table.get("run") in ended]
    names = sorted({run["encoding"] for run in runs}, key=lambda name: (order(name), name))
    return Results(tuple(cell(name, kept) for name in names), runs, recorded.about(tables))


def cell(encoding: str, tables: list[dict[str, Any]]) -> Cell:
    """What the records say of one encoding; of a run that was measured twice, the last."""
    own = {(table["kind"], table.get("of"), table["run"]): table for table in tables if table["encoding"] == encoding}
    rows = lambda kind, of=None: [table for key, table in own.items() if key[:2] == (kind, of)]
    probe = lambda name: {of: np.array([row[name] for row in rows("probe", of)]) for of in PROBES}
    found: dict[str, Any] = {"within": probe("within"), "beyond": probe("beyond")}
    if rotary := rows("rotary"):
        use = np.array([row["use"] for row in rotary])
        found |= {"frequency": np.array(rotary[0]["frequency"]), "leaves": np.array(rotary[0]["leaves"], bool)}
        found["share"] = use / use.sum(-1, keepdims=True)
    if scores := rows("scores"):
        found |= {"distance": np.array(scores[0]["distance"]), "score": np.array([row["score"] for row in scores])}
    return Cell(encoding, **found)
