"""What one line of a log means: typed rows, or a sentence that says why a line is none."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnjax.report.jsonl import TOLD, Skipped, Source, read_lines
from attnjax.report.measures import measure
from attnjax.sweep.lines import NewerError

SPLITS = ("train", "validation", "test")

LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class Result:
    """One line of results.jsonl: the value of a metric at a length, over `count` examples, after `step` steps."""

    step: int
    length: int
    metric: str
    value: float
    count: int
    split: str


class Rows(NamedTuple):
    """The rows of a log, what was skipped, and how many of its sound lines have no checksum."""

    rows: tuple[Any, ...]
    skipped: list[Skipped]
    unchecked: int


def typed(source: Source, convert: Callable[[dict[str, Any]], Any]) -> Rows:
    """The lines of a log, converted: a line that `convert` answers with a sentence is skipped, None is passed over.

    Raises ValueError where a newer version wrote a line.
    """
    rows, skipped, more, unchecked = [], [], 0, 0
    try:
        for line in read_lines(source):
            found = line.problem if line.table is None else convert(line.table)
            unchecked += line.table is not None and not line.checked
            if not isinstance(found, str):
                rows += [found] if found is not None else []
            elif len(skipped) < TOLD:
                skipped.append(source.skip(found, line.number))
            else:
                more += 1
    except NewerError as error:
        raise ValueError(f"{source.name}, {error}, or report with the version that wrote the records.") from None
    except (OSError, ValueError) as error:
        return Rows((), [source.unreadable(error)], 0)
    return Rows(tuple(rows), skipped + [source.skip(f"has {more} more such lines")] * (more > 0), unchecked)


def result(row: Mapping[str, Any], run: str) -> Result | str:
    """One line of results.jsonl, or why it is none."""
    if row.get("run", run) != run:
        return "is a record of another run"
    if not all(whole(row.get(key)) for key in ("step", "length")):
        return "has no whole step and length"
    if not (measured(row, "value") and text(row.get("metric")) and row.get("split") in SPLITS):
        return "has no number, metric name and split"
    value = as_float(row["value"])
    if measure(row["metric"]).share and not (0 <= value <= 1 or math.isnan(value)):
        return "has a share outside 0 to 1"
    count = row["count"] if whole(row.get("count")) else 0
    return Result(row["step"], row["length"], row["metric"], value, count, row["split"])


def loss(row: Mapping[str, Any]) -> tuple[int, float] | str | None:
    """(step, training loss) of one line of metrics.jsonl, None for a line about something else, or why it is none."""
    if "loss" not in row:
        return None
    if not (whole(row.get("step")) and measured(row, "loss")):
        return "has no whole step and loss"
    return row["step"], as_float(row["loss"])


def measured(row: Mapping[str, Any], key: str) -> bool:
    """Whether a number was measured: null is one too, because that is how JSON writes NaN and infinity."""
    return key in row and (row[key] is None or number(row[key]))


def as_float(value: float | None) -> float:
    """The number, NaN for null and for what is so large that it stands for a loss without bounds."""
    return math.nan if value is None or not abs(value) < LARGEST else float(value)


def as_dict(value: Any) -> dict[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """The value where it is text, else nothing."""
    return value if isinstance(value, str) else ""


def whole(value: Any) -> bool:
    """Whether this is a whole number, not negative, that a float holds exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def number(value: Any) -> bool:
    """Whether this is a number; NaN and infinity are, because a run may really have ended there."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST)


def finite(value: Any) -> bool:
    """Whether this is a number that is neither NaN nor infinite."""
    return number(value) and math.isfinite(value)
