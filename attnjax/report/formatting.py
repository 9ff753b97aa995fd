"""Numbers and names as text: rounding that is the same on every machine, and cells of CSV that are no formulas.

Names come from files that somebody else may have written, so nothing reaches a table without one of these (nor a page
without `markup`).
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from attnjax.report.intervals import INTERVAL, RANGE, Estimate

NONE = "\N{EN DASH}"
LEADING = "=+-@"
"""What makes a spreadsheet take a cell for a formula."""


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with this many decimals. Rounded at 12 digits first, so that the last bit of a sum cannot show."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    rounded = f"{float(f'{value:.12g}'):.{digits}f}"
    return rounded.removeprefix("-") if float(rounded) == 0 else rounded


def interval(estimate: Estimate | None, digits: int = 3) -> str:
    """The text of a number and its 95 % interval, 0.702 [0.667, 0.727], or of the range of its runs, or of it alone.

    Example:
      >>> from attnjax.report.intervals import Estimate
      >>> interval(Estimate(0.7, 0.6, 0.8, "95 %", 8)), interval(Estimate(0.7, 0.6, 0.8, "range", 3))
      ('0.700 [0.600, 0.800]', '0.700 (range 0.600 to 0.800)')
      >>> interval(Estimate(1.0, 1.0, 1.0, "none", 8))
      '1.000 (no interval)'
    """
    if estimate is None:
        return NONE
    value, low, high = (decimal(number, digits) for number in (estimate.value, estimate.low, estimate.high))
    known = {INTERVAL: f"[{low}, {high}]", RANGE: f"(range {low} to {high})"}
    return f"{value} {known.get(estimate.kind, '(no interval)')}"


def probability(p: float) -> str:
    """The text of a p: three decimals, or that it is below them.

    Example:
      >>> probability(0.25), probability(0.00004)
      ('0.250', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else decimal(p)


def span(lengths: Sequence[int]) -> str:
    """A short text of several lengths: 40, 80, 160, or 41 to 500 (460 lengths)."""
    if len(lengths) <= 6:
        return ", ".join(map(str, lengths)) or NONE
    return f"{lengths[0]} to {lengths[-1]} ({len(lengths)} lengths)"


def lengths_of(low: int, high: int) -> str:
    """A range of training lengths."""
    return f"length {high}" if low == high else f"lengths {low} to {high}"


def csv_cell(value: Any) -> Any:
    """Return a CSV cell that no spreadsheet executes: text that starts like a formula gets an apostrophe before it."""
    if not isinstance(value, str) or not value.lstrip().startswith(tuple(LEADING)):
        return value
    return value if re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", value) else f"'{value}"


def csv_table(table: pd.DataFrame) -> str:
    """Return a table as a CSV file: 9 significant digits, nothing for NaN."""
    return table.map(csv_cell).rename(columns=csv_cell).to_csv(index=False, float_format="%.9g", lineterminator="\n")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are already Markdown; all but the first column to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
