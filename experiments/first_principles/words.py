"""Numbers as text for Markdown: rows, tables of characters, sums. Rounding is that of `attnjax.report.formatting`."""

from collections.abc import Sequence
from typing import Any

from attnjax.report.formatting import decimal

Row = Sequence[float]


def row(values: Row, digits: int = 3) -> str:
    """[0.198, 0.401, 0.401]."""
    return f"[{', '.join(decimal(value, digits) for value in values)}]"


def signed_sum(terms: Row, digits: int = 2) -> str:
    """0.20 + 0.20 - 0.03 - 0.16."""
    parts = [decimal(terms[0], digits)]
    parts += [f"{'-' if term < 0 else '+'} {decimal(abs(term), digits)}" for term in terms[1:]]
    return " ".join(parts)


def grid(table: Sequence[Row], left: Sequence[str] = (), top: Sequence[str] = (), digits: int = 3) -> str:
    """A table of numbers in columns of equal width, with names of rows and columns where they are given."""
    cells = [[decimal(value, digits) for value in values] for values in table]
    width = max(len(text) for text in [*top, *(cell for line in cells for cell in line)])
    margin = max((len(name) for name in left), default=0)
    lines = [[name.rjust(width) for name in top]] if top else []
    lines += [[cell.rjust(width) for cell in line] for line in cells]
    names = [*([""] if top else []), *(left or [""] * len(cells))]
    return "\n".join(f"{name:<{margin}}  {'  '.join(line)}".rstrip() for name, line in zip(names, lines, strict=True))


def code(*lines: str) -> str:
    """A block of characters that Markdown leaves alone."""
    return "```text\n" + "\n".join(lines) + "\n```"


def thousands(value: float) -> str:
    """12,288."""
    return f"{round(value):,}"


def seconds(value: float) -> str:
    """A time in ms, with three significant digits: 0.412 ms, 12.3 ms, 1,230 ms."""
    ms = float(f"{1000 * value:.3g}")
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def small(value: float | None) -> str:
    """A number that may be tiny: 1.2e-17, 0.034, and 0 as 0."""
    if value is None:
        return decimal(None)
    return f"{value:.2g}"


def mean(values: Sequence[Any]) -> float:
    """The mean of some numbers."""
    return sum(values) / len(values)
