"""One line of a benchmark: what was compared, both figures, their ratio, and the goal that was set beforehand.

Lines are appended to a JSONL file as they come, after a first line that describes the machine: what was measured before
an interruption stays, and a table or figure is made from the file alone.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable
from typing import Any

from experiments.speed.timing import Spread


@dataclasses.dataclass(frozen=True)
class Row:
    """`ours` against `peer` in one case. `unit` is "s", "B", or "programs"; in each of them less is better.

    `ratio` is peer / ours. `goal` is the least ratio aimed at; None where nothing was promised. `error` is the largest
    difference of outputs (and gradients) between the two, relative to the largest entry: no row is made where it is too
    large. `sizes` says everything else that a reader needs to repeat the row.
    """

    suite: str
    case: str
    ours: str
    peer: str
    unit: str
    our_figure: Spread
    peer_figure: Spread
    ratio: Spread
    sizes: dict[str, Any] = dataclasses.field(default_factory=dict)
    goal: float | None = None
    error: float | None = None
    rounds: int | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median ratio reaches the goal; None without one."""
        return None if self.goal is None else self.ratio.median >= self.goal


def single(value: float) -> Spread:
    """A figure without spread, such as bytes counted by the compiler."""
    return Spread(value, value, value)


class Record:
    """The file of a benchmark run. Creates its folder; raises OSError where that fails."""

    def __init__(self, path: pathlib.Path, machine: dict[str, Any]):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.rows: list[Row] = []
        path.write_text(json.dumps({"machine": machine}) + "\n", encoding="utf-8")

    def add(self, row: Row) -> None:
        """Append a row and flush it."""
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(row)) + "\n")


def read(path: pathlib.Path) -> tuple[dict[str, Any], list[Row]]:
    """Machine and rows of a file. Raises ValueError naming the line that is not a row."""
    machine: dict[str, Any] = {}
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            if "machine" in entry:
                machine = dict(entry["machine"])
                continue
            for key in ("our_figure", "peer_figure", "ratio"):
                entry[key] = Spread(*map(float, entry[key]))
            rows.append(Row(**entry))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path.name}, line {number}: not a row of a benchmark ({error})") from error
    return machine, rows


def suites(rows: Iterable[Row]) -> list[str]:
    """The suites of some rows, in order of appearance."""
    return list(dict.fromkeys(row.suite for row in rows))
