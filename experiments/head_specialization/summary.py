"""From rows to statements: the best head of each pattern under each encoding, over seeds, and how many heads stand out."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from attnjax.report.formatting import NONE, decimal, interval, markdown_table, probability
from attnjax.report.intervals import Estimate, of_mean
from attnjax.report.significance import holm, sign_flip
from attnjax.report.style import order, style
from experiments.head_specialization.measure import Results
from experiments.recorded import t_ends_of

TITLES = (
    ("previous_token", "previous byte"),
    ("first_token", "first byte"),
    ("same_token", "equal byte"),
    ("induction", "induction"),
    ("bracket", "bracket match"),
    ("name", "name to definition"),
)
"""The patterns that are reported. White space is not (`measure.LEFT_OUT`)."""


TESTED = ("previous_token", "rope")
"""The pattern and the encoding that the protocol compares with all others (configs/heads_lm.py); nothing else is tested."""


class Cell(NamedTuple):
    """One pattern under one encoding: the best head of each seed, their mean with its interval, and heads that stand out."""

    best: tuple[float, ...]
    estimate: Estimate | None
    stand_out: int
    heads: int


def encodings(results: Results) -> list[str]:
    """The encodings, in the order of all reports."""
    return sorted({row["encoding"] for row in results.patterns}, key=lambda name: (order(name), name))


def patterns(results: Results) -> list[tuple[str, str]]:
    """(name, title) of the patterns that were measured."""
    present = {row["pattern"] for row in results.patterns}
    return [(name, title) for name, title in TITLES if name in present]


def cell(results: Results, pattern: str, encoding: str, stage: str = "trained") -> Cell:
    """The rows of one cell, over its seeds."""
    wanted = {"pattern": pattern, "encoding": encoding, "stage": stage}
    rows = [row for row in results.patterns if wanted.items() <= row.items()]
    best = tuple(row["best_head"] for row in rows if row["best_head"] is not None)
    estimate = of_mean(np.array(best)) if best else None
    return Cell(best, estimate, sum(row["stand_out"] for row in rows), sum(row["heads"] for row in rows))


def beside(results: Results, pattern: str, key: str) -> float | None:
    """The baseline or chance of a pattern: the same for all runs, which saw the same windows."""
    return next((row[key] for row in results.patterns if row["pattern"] == pattern), None)


def table(results: Results) -> str:
    """The Markdown page: best heads, heads that stand out, and what they were compared with."""
    names, found = encodings(results), patterns(results)
    best = [[title, *_comparison(results, name), *_best(results, name, names)] for name, title in found]
    stand = [[title, *_standing(results, name, names)] for name, title in found]
    labels = [style(name).label for name in names]
    about = results.protocol
    runs = max((len(cell(results, name, one).best) for name, _ in found for one in names), default=1)
    first = (
        f"Attention that the best head gives to its targets, chosen and counted on different files: mean of the seeds with "
        f"the {t_ends_of(runs)}. {about['windows']} windows of {about['length']} bytes from {about['files']} held-out "
        f"files of {about['source']} (Python {about['python']}). *Best offset* is the best that a fixed distance could do."
    )
    second = (
        "Heads that stand out, of all heads of all seeds (before training in brackets): above the best offset and chance with "
        "the 95 % interval over files; for the previous and the first byte, above 1/2."
    )
    parts = [first, markdown_table(["pattern", "best offset", "chance", *labels], best)]
    parts += [second, markdown_table(["pattern", *labels], stand)]
    return "\n".join(f"{part}\n" if not part.endswith("\n") else part for part in parts)


def claim(results: Results) -> str:
    """A sentence for each pattern: where heads stand out, and the highest and the lowest best head with their intervals."""
    lines = []
    for pattern, title in patterns(results):
        cells = {name: cell(results, pattern, name) for name in encodings(results)}
        ranked = sorted((one.estimate.value, name) for name, one in cells.items() if one.estimate is not None)
        marked = [
            f"{style(name).label} ({one.stand_out} of {one.heads})" for name, one in cells.items() if one.stand_out
        ]
        stand = f"heads stand out under {', '.join(marked)}" if marked else "no head stands out"
        ends = [f"{style(name).label} {interval(cells[name].estimate, 2)}" for _, name in (ranked[-1:] + ranked[:1])]
        levels = f"best offset {decimal(beside(results, pattern, 'baseline'), 2)}"
        levels += f", chance {decimal(beside(results, pattern, 'chance'), 2)}"
        tested = told(results) if pattern == TESTED[0] else ""
        lines.append(f"* **{title}**: {stand}. Best head: from {' down to '.join(ends) or NONE} ({levels}).{tested}\n")
    return "".join(lines)


def told(results: Results) -> str:
    """The comparison of the protocol in a sentence; "" where no two encodings share seeds."""
    found = differences(results)
    parts = ", ".join(f"{style(name).label} {interval(one, 2)} (p = {probability(p)})" for name, one, p in found)
    corrected = f"p of all sign flips, with Holm's correction over {len(found)}"
    return f" {style(TESTED[1]).label} less, by seed: {parts}; {corrected}." if found else ""


def differences(results: Results) -> list[tuple[str, Estimate, float]]:
    """The best head under the encoding that the protocol names less that under each other, by seed: name, mean, Holm's p."""
    pattern, first = TESTED
    rows = [row for row in results.patterns if (row["pattern"], row["stage"]) == (pattern, "trained")]
    best = {(row["encoding"], row["seed"]): row["best_head"] for row in rows if row["best_head"] is not None}
    found = []
    for name in encodings(results):
        seeds = [seed for encoding, seed in best if encoding == name and name != first and (first, seed) in best]
        if len(seeds) > 1:
            found.append((name, np.array([best[first, seed] - best[name, seed] for seed in seeds])))
    adjusted = holm([sign_flip(values) for _, values in found])
    return [(name, of_mean(values), p) for (name, values), p in zip(found, adjusted, strict=True)]


def _comparison(results: Results, pattern: str) -> Iterable[str]:
    return (decimal(beside(results, pattern, key), 2) for key in ("baseline", "chance"))


def _best(results: Results, pattern: str, names: list[str]) -> list[str]:
    return [interval(cell(results, pattern, name).estimate, 2) for name in names]


def _standing(results: Results, pattern: str, names: list[str]) -> Iterable[str]:
    for name in names:
        after, before = (cell(results, pattern, name, stage) for stage in ("trained", "untrained"))
        yield f"{after.stand_out} of {after.heads} ({before.stand_out})"
