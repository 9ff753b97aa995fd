"""One line of a benchmark: what was compared, both figures, their ratio, and the goal that was set beforehand.

Lines are appended to a JSONL file as they come, after a first line that describes the machine: what was measured before
an interruption stays, and a table or figure is made from the file alone.
"""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Spread(NamedTuple):
    """Median and quartiles over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one number; one alone, such as bytes counted by the compiler, has no spread."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


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


def compared(mine: Sequence[float], theirs: Sequence[float], *, unit: str = "s", **fields: Any) -> Row:
    """The row of two contenders from their figures in each round; `fields` are the others of `Row`.

    A ratio is taken inside a round, between neighbours in time; what is not a time is counted once. Raises ValueError where
    the numbers of rounds differ.
    """
    ratio = Spread.of([b / a for a, b in zip(mine, theirs, strict=True)])
    figures = {"our_figure": Spread.of(mine), "peer_figure": Spread.of(theirs), "ratio": ratio}
    return Row(unit=unit, rounds=len(mine) if unit == "s" else None, **figures, **fields)


class Record:
    """The file of a benchmark run. Creates its folder; raises OSError where that fails."""

    def __init__(self, path: pathlib.Path, machine: dict[str, Any]):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        path.write_text(json.dumps({"machine": machine}) + "\n", encoding="utf-8")

    def add(self, row: Row) -> None:
        """Append a row and flush it."""
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
            figures = {key: Spread(*map(float, entry[key])) for key in ("our_figure", "peer_figure", "ratio")}
            rows.append(Row(**entry | figures))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path.name}, line {number}: not a row of a benchmark ({error})") from error
    return machine, rows


def suites(rows: Iterable[Row]) -> list[str]:
    """The suites of some rows, in order of appearance."""
    return list(dict.fromkeys(row.suite for row in rows))
