"""The table of a benchmark for people, as Markdown: a table per suite, then the machine; and each row as one line."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnjax.report import formatting
from experiments.speed.records import Row, Spread, suites

LEGEND = (
    "Times are medians over rounds with the quartiles in parentheses; bytes and numbers of programs are exact. In every "
    "round each contender has its turn (two runs where they are short, of which the second counts), and a ratio is taken "
    "inside a round: the peer's figure over ours, so that ours is better above 1. Goals were set before measuring. "
    "*Agreement* is the largest difference of outputs, and of gradients where they are part of the work, over the largest "
    "entry.\n"
)
SMOKE = (
    "A smoke run, of the smallest sizes: agreement, bytes and numbers of programs count, times and their goals do not."
)
HEADER = ("case", "sizes", "ours", "peer", "peer's figure", "ratio", "goal", "met", "agreement")
TIME = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))
BYTES = ((2.0**30, "GiB", 2.0**-30), (2.0**20, "MiB", 2.0**-20), (2.0**10, "KiB", 2.0**-10), (0.0, "B", 1.0))
"""(least figure, unit, factor), the largest unit first."""
MACHINE = (
    ("processor", "processor", ""),
    ("cores", "cores allowed", ""),
    ("threads", "threads", ""),
    ("instructions", "instruction sets", ""),
    ("l2_bytes", "L2 cache", "B"),
    ("l3_bytes", "L3 cache", "B"),
    ("memory_bytes", "memory", "B"),
    ("backend", "backend", ""),
    ("device", "device", ""),
    ("peak_flops", "float32 matrix products, measured", "FLOP/s"),
    ("bandwidth", "memory, read and write, measured", "B/s"),
    ("os", "system", ""),
    ("python", "Python", ""),
    ("jax", "jax", ""),
    ("jaxlib", "jaxlib", ""),
    ("flax", "flax", ""),
    ("numpy", "numpy", ""),
    ("attnjax", "attnjax", ""),
    ("commit", "commit", ""),
    ("xla_flags", "XLA_FLAGS", ""),
    ("date", "date (UTC)", ""),
    ("command", "command", ""),
)
"""(key, label, unit) of what the table says about the machine."""


def markdown(machine: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The whole file: a table per suite, what the columns mean, and what it was measured on."""
    tables = [suite_table([row for row in rows if row.suite == suite]) for suite in suites(rows)]
    head = ["# Speed\n", *([f"{SMOKE}\n"] if machine.get("smoke") else [])]
    return "\n".join([*head, *tables, LEGEND, "## Machine\n", machine_list(machine)])


def suite_table(rows: Sequence[Row]) -> str:
    """The rows of one suite; what they have in common stands above the table, their notes below it."""
    shared = {key: value for key, value in rows[0].sizes.items() if all(row.sizes.get(key) == value for row in rows)}
    named = len({row.ours for row in rows}) > 1
    alike = [] if named else [f"ours is {rows[0].ours}"]
    alike += [sizes_text(shared)] if shared else []
    above = f"In every row: {formatting.markdown(', '.join(alike))}.\n\n" if alike else ""
    table = formatting.markdown_table(HEADER, [cells(row, shared, named=named) for row in rows])
    notes = dict.fromkeys(f"- {formatting.markdown(f'{where(row)}: {row.note}')}\n" for row in rows if row.note)
    below = "".join(["\n", *notes] if notes else [])
    return f"## {formatting.markdown(rows[0].suite)}\n\n{above}{table}{below}"


def cells(row: Row, shared: Mapping[str, Any], *, named: bool) -> list[str]:
    """One row of the table, without the sizes that all rows share, and our name where it differs between them."""
    own = {key: value for key, value in row.sizes.items() if key not in shared}
    ours = figure_text(row.our_figure, row.unit)
    return [
        formatting.markdown(row.case),
        formatting.markdown(sizes_text(own)) if own else formatting.NONE,
        f"{formatting.markdown(row.ours)}: {ours}" if named else ours,
        formatting.markdown(row.peer),
        figure_text(row.peer_figure, row.unit),
        ratio_text(row.ratio),
        formatting.NONE if row.goal is None else f"{row.goal:g}x",
        formatting.NONE if row.met is None else "yes" if row.met else "**no**",
        formatting.NONE if row.error is None else f"{row.error:.1g}",
    ]


def machine_list(machine: Mapping[str, Any]) -> str:
    """What was recorded of the machine, a line each; what it did not say is left out."""
    lines = []
    for key, label, unit in MACHINE:
        value = machine.get(key)
        if value not in (None, "", []):
            changed = " with changes" if key == "commit" and machine.get("commit_dirty") else ""
            lines.append(f"- {label}: {formatting.markdown(_machine_value(value, unit) + changed)}\n")
    return "".join(lines)


def line(row: Row) -> str:
    """A row as one line for a terminal."""
    ours, theirs = figure_text(row.our_figure, row.unit), figure_text(row.peer_figure, row.unit)
    goal = "" if row.goal is None else f", goal {row.goal:g}x {'met' if row.met else 'MISSED'}"
    return f"{row.suite}: {where(row)}: {row.ours} {ours}, {row.peer} {theirs}, ratio {ratio_text(row.ratio)}{goal}"


def missed(rows: Iterable[Row]) -> list[str]:
    """What to say in the end: how many goals were missed, and a line for each of these rows."""
    aimed = [row for row in rows if row.met is not None]
    short = [row for row in aimed if not row.met]
    return [f"{len(short)} of {len(aimed)} goals missed", *map(line, short)]


def where(row: Row) -> str:
    """Case and sizes of a row; versions of a peer's environment, a record inside the sizes, are left out."""
    sizes = {key: value for key, value in row.sizes.items() if not isinstance(value, dict)}
    return f"{row.case}, {sizes_text(sizes)}" if sizes else row.case


def sizes_text(sizes: Mapping[str, Any]) -> str:
    """T=1024 B=4 torch(version=2.9 threads=2)."""
    return " ".join(
        f"{key}({sizes_text(value)})" if isinstance(value, dict) else f"{key}={value}" for key, value in sizes.items()
    )


def figure_text(figure: Spread, unit: str) -> str:
    """Median and quartiles in the unit of the median: 12.3 ms (12.1 to 12.6); without quartiles where they agree."""
    if unit not in ("s", "B"):
        whole = f"{figure.median:g}"
        return f"{whole} {unit.removesuffix('s')}" if whole == "1" else f"{whole} {unit}"
    _, name = scaled(figure.median, unit)
    median, low, high = (significant(scaled(value, unit, figure.median)[0]) for value in figure)
    return f"{median} {name}" + ("" if figure.low == figure.high else f" ({low} to {high})")


def scaled(value: float, unit: str, like: float | None = None) -> tuple[float, str]:
    """Seconds or bytes in the unit that suits them, or that suits a figure they stand beside: 0.5, "s" -> 500, "ms"."""
    size = value if like is None else like
    scales = TIME if unit == "s" else BYTES
    name, factor = next(((name, factor) for least, name, factor in scales if size >= least), (unit, 1.0))
    return value * factor, name


def ratio_text(ratio: Spread) -> str:
    """3.98x (3.91 to 4.05)."""
    median, low, high = map(significant, ratio)
    return f"{median}x" + ("" if ratio.low == ratio.high else f" ({low} to {high})")


def significant(value: float) -> str:
    """Three significant digits, whole numbers in full: 0.0123, 4.00, 12.3, 1,234."""
    if not math.isfinite(value) or value == 0:
        return formatting.decimal(value, 0)
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _machine_value(value: Any, unit: str) -> str:
    if unit == "B":
        return figure_text(Spread.of([value]), "B")
    if unit:
        return f"{significant(value / 1e9)} G{unit}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
