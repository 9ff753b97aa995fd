"""The tables of the page and of table.md, as Markdown."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnjax.report.formatting import decimal, interval, markdown, markdown_table
from attnjax.report.intervals import FEWEST, Estimate
from experiments.context_extension.methods import look
from experiments.context_extension.results import Cell, Results
from experiments.recorded import t_ends_of

TITLES = {
    "windows": "Loss, nats per {unit}, windows that do not overlap",
    "sliding": "Loss, nats per {unit}, sliding window: the last {stride} {unit}s of each",
    "found": "Needles found: share of answers (chance {chance:.3g})",
    "needle": "Loss of the answers, nats per {unit}",
}
PLACE = ("date", "python", "jax", "flax", "processor")
STAGED = {"zero-shot": "Without training", "tuned": "After fine-tuning"}


def length_table(
    results: Results, stage: str, measure: str, shown: Callable[[Estimate], Estimate] = lambda x: x
) -> str:
    """A row per method and a column per length; each cell a mean with its interval, as a function of them."""
    header = ["method", *(f"{length} ({length // results.lengths[0]}x)" for length in results.lengths)]
    digits = 2 if measure in ("found", "needle") else 3
    rows = [
        [named(cell), *(interval(shown(cell.estimate(measure, length)), digits) for length in results.lengths)]
        for cell in results.cells[stage].values()
    ]
    for name, level in results.ngrams.items() if measure in ("windows", "sliding") else ():
        means = [shown(Estimate(x, x, x)).value for x in (getattr(level, measure)[n] for n in results.lengths)]
        rows.append([f"*{name}*", *(decimal(mean, digits) for mean in means)])
    return markdown_table(header, rows)


def perplexity(loss: Estimate) -> Estimate:
    """exp of a mean loss and of the ends of its interval."""
    return Estimate(math.exp(loss.value), math.exp(loss.low), math.exp(loss.high), loss.kind, loss.runs)


def position_table(results: Results, stage: str) -> str:
    """A row per method and a column per bin of positions, without intervals."""
    edges = results.about["edges"]
    header = ["method", *(f"{low}-{high - 1}" for low, high in itertools.pairwise(edges))]
    rows = [[named(cell), *map(decimal, cell.curve()[0])] for cell in results.cells[stage].values()]
    rows += [[f"*{name}*", *map(decimal, level.position)] for name, level in results.ngrams.items()]
    return markdown_table(header, rows)


def depth_table(results: Results, stage: str, length: int) -> str:
    """A row per method and a column per depth: the share of answers found."""
    header = ["method", *(f"depth {depth:g}" for depth in results.about["depths"])]
    cells = results.cells[stage].values()
    return markdown_table(
        header, [[named(cell), *(decimal(x, 2) for x in cell.by_depth("found", length))] for cell in cells]
    )


def table_md(results: Results) -> str:
    """The file table.md: every number of the figures, with intervals where a number stands for several units."""
    parts = ["# Context extension: all numbers\n", f"{units(results)}\n"]
    for stage in results.stages:
        parts.append(f"## {STAGED[stage]}\n")
        for measure, title in TITLES.items():
            parts.append(f"### {titled(results, title)}\n\n{length_table(results, stage, measure)}")
            if measure in ("windows", "sliding"):
                parts.append(f"### Perplexity of the same\n\n{length_table(results, stage, measure, perplexity)}")
        parts.append(f"### Loss against position, window of {results.lengths[-1]}\n\n{position_table(results, stage)}")
        for length in results.lengths:
            parts.append(f"### Needles found at {length}, by depth\n\n{depth_table(results, stage, length)}")
    return "\n".join(parts)


def titled(results: Results, title: str) -> str:
    """The title of a table with the numbers of this experiment."""
    return title.format(**{name: results.about[name] for name in ("unit", "stride", "chance")})


def units(results: Results) -> str:
    """What means and intervals are over."""
    runs = len(results.runs)
    if runs == 1:
        return "One model: means over documents and needles with the 95 % t interval over them."
    few = " Such a range is no confidence interval." if runs < FEWEST else ""
    return f"Means with the {t_ends_of(runs)}.{few}"


def by_place(runs: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The runs by where and when they were measured, in words; those that do not say it were where the records began."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        made = {name: markdown(str(run.get("made", about)[name])) for name in PLACE}
        found.setdefault(
            "{date} with Python {python}, jax {jax} and flax {flax} on {processor}".format(**made), []
        ).append(run)
    return found


def places(runs: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """Where and when, and of several places which seeds were where."""
    found = by_place(runs, about)
    if len(found) == 1:
        return next(iter(found))
    seeds = {where: ", ".join(str(run["seed"]) for run in there) for where, there in found.items()}
    return " and on ".join(f"{where} (seeds {seeds[where]})" for where in found)


def named(cell: Cell) -> str:
    """The method as tables call it."""
    return markdown(look(cell.method).label)
