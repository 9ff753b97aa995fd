"""The table as Markdown and CSV: encodings down, tasks across, blank where no run has ended yet."""

from attnjax.report.formatting import NONE, csv_text, decimal, exact, interval, markdown_table, probability
from attnjax.report.intervals import INTERVAL, RANGE, Estimate
from attnjax.report.reach import RISE, SHARE
from attnjax.report.style import style
from experiments.length_table.results import ALPHA, KINDS, Cell, Column, Results

LEVEL = "\N{ALMOST EQUAL TO}"
LEGEND = (
    "Cells: median length factor over runs with its 95 % interval, and how many of the runs fit the trained lengths. The "
    "length factor of a run is the largest tested multiple of the longest trained length up to which it holds: exact match of "
    f"at least {SHARE}, or a loss at most {RISE} nats above that at the trained length. Without an interval: all runs between "
    "its ends are equal. *Not fitted*: fewer than half of the runs fit, so what they do past the trained lengths says nothing; "
    "no rank and no comparison. Blank: no run has ended yet.\n\n"
    "**Bold**: the largest median, where its paired differences to all other encodings that fit have p of at most "
    f"{ALPHA} (all sign flips of the pairs, Holm's correction). {LEVEL}: the largest median, where that is not so, and all "
    "that cannot be told from the largest.\n"
)
AGREE = (
    "Kendall's tau_b of the median length factors of two tasks, over the encodings that fit both: 1 is the same order, -1 the "
    f"reverse, {NONE} where all encodings of one of them have the same factor.\n"
)


def table_md(results: Results) -> str:
    """The whole page."""
    header = ["encoding", *(f"{name_of(one)} (to {decimal(one.limit, 0)}x)" for one in results.columns)]
    rows = [[style(name).label, *(told(one, name) for one in results.columns)] for name in results.encodings]
    kinds = [f"{name_of(one)}: {KINDS[one.task]}" for one in results.columns if one.task in KINDS]
    parts = [
        "# Length factors of every encoding\n",
        *([f"> {note}\n" for note in notes(results)]),
        markdown_table(header, rows),
        LEGEND,
        *([f"Kinds of tasks. {'; '.join(kinds)}.\n"] if kinds else []),
        *(["## Do tasks order encodings alike?\n", AGREE, agreements_md(results)] if results.agreements else []),
        "## Learning rates that were chosen, and seconds of a run\n",
        "Seconds are those of the whole population by the clock, parted among its runs, without tuning.\n",
        markdown_table(header[:1] + [name_of(one) for one in results.columns], costs(results)),
    ]
    return "\n".join(parts)


def notes(results: Results) -> list[str]:
    """What a reader of a part of the table must know."""
    cells = [(one, name, one.cells.get(name)) for one in results.columns for name in results.encodings]
    most = max(len(cell.runs) for _, _, cell in cells if cell)
    blank = sum(cell is None for _, _, cell in cells)
    few = [
        f"{style(name).label} on {name_of(one)} ({len(cell.runs)})"
        for one, name, cell in cells
        if cell and len(cell.runs) < most
    ]
    found = [f"Not complete: {blank} of {len(cells)} cells of these tasks have no runs yet."] if blank else []
    lacking = [task for task in KINDS if task not in {one.task for one in results.columns}]
    if lacking:
        found.append(f"Tasks of the protocol without runs yet: {', '.join(map(called, lacking))}.")
    if few:
        found.append(f"Cells with fewer than {most} runs: {', '.join(few)}.")
    return found


def called(task: str) -> str:
    """A task as the config calls it."""
    return "recall" if task == "associative_recall" else task


def name_of(column: Column) -> str:
    """The name of a task."""
    return called(column.task)


def told(column: Column, encoding: str) -> str:
    """The text of one cell."""
    cell = column.cells.get(encoding)
    if cell is None:
        return ""
    fitting = f"{sum(cell.fits)}/{len(cell.fits)}"
    if not cell.fitted:
        return f"*not fitted, {fitting}*"
    text = f"{short(cell.factor)}, {fitting}"
    if encoding == column.best:
        return f"**{text}**"
    return f"{LEVEL} {text}" if column.level(encoding) else text


def short(estimate: Estimate) -> str:
    """A factor and its interval or range; alone where there is none."""
    known = estimate.kind in (INTERVAL, RANGE) and estimate.low < estimate.high
    return interval(estimate, 2) if known else decimal(estimate.value, 2)


def agreements_md(results: Results) -> str:
    """The table of pairs of tasks."""
    rows = [
        [f"{called(one.tasks[0])}, {called(one.tasks[1])}", str(one.encodings), decimal(one.tau, 2)]
        for one in results.agreements
    ]
    return markdown_table(["tasks", "encodings", "tau_b"], rows)


def costs(results: Results) -> list[list[str]]:
    """A row per encoding: the rate and the seconds of a run on each task."""
    return [[style(name).label, *(cost(one.cells.get(name)) for one in results.columns)] for name in results.encodings]


def cost(cell: Cell | None) -> str:
    """The learning rates of a cell, and the mean seconds of its runs."""
    if cell is None:
        return ""
    seconds = [one.seconds for one in cell.runs if one.seconds == one.seconds]
    rates = ", ".join(f"{rate:g}" for rate in cell.rates)
    return f"{rates}; {sum(seconds) / len(seconds):.0f} s" if seconds else rates


def table_csv(results: Results) -> str:
    """table.csv: a row per task and encoding that has runs."""
    header = ["task", "encoding", "runs", "fitted", "fit_rate", "fit_rate_low", "fit_rate_high"]
    header += ["length_factor", "length_factor_low", "length_factor_high", "length_factor_interval", "largest_tested"]
    header += ["rank", "holm_p_against_largest", "best", "learning_rate", "run_ids"]
    rows = [row(one, name) for one in results.columns for name in results.encodings if name in one.cells]
    return csv_text(header, rows)


def row(column: Column, encoding: str) -> list[str | float | int]:
    """One row of table.csv."""
    cell = column.cells[encoding]
    rate, factor = cell.fit_rate, cell.factor
    found: list[str | float | int] = [called(column.task), encoding, len(cell.runs), sum(cell.fits)]
    found += [exact(value) for value in (rate.value, rate.low, rate.high, factor.value, factor.low, factor.high)]
    found += [factor.kind, exact(column.limit), exact(column.ranks.get(encoding)), exact(column.against.get(encoding))]
    found += [int(encoding == column.best), " ".join(f"{rate:g}" for rate in cell.rates)]
    return [*found, " ".join(one.run for one in cell.runs)]


def agreement_csv(results: Results) -> str:
    """agreement.csv: a row per pair of tasks."""
    rows = [[called(one.tasks[0]), called(one.tasks[1]), one.encodings, exact(one.tau)] for one in results.agreements]
    return csv_text(["task", "other_task", "encodings", "tau_b"], rows)


def summary(column: Column) -> str:
    """A task in one line, for the command."""
    fitted = sum(cell.fitted for cell in column.cells.values())
    worst = max(column.against.values(), default=1.0)
    first = f"largest: {column.largest} (p {probability(worst)} to the nearest)" if column.largest else "none fits"
    return f"{called(column.task)}: {fitted} of {len(column.cells)} encodings fit; {first}"
