"""How a sweep was tuned: for each family the candidates, their validation scores, and what was chosen, with warnings.

What is shown comes from `tuning.json` (`attnjax.sweep.choices`), which training wrote before it began with the runs of the
sweep. Cells that no choice names were not tuned, and notes of the report say so.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnjax.records.files import problem, real
from attnjax.records.values import printable
from attnjax.report.formatting import csv_text, decimal, exact, markdown, markdown_table
from attnjax.report.markup import Markup, element, table
from attnjax.report.metrics import metric
from attnjax.report.sections import section
from attnjax.report.summary import Summary
from attnjax.sweep.choices import FILE, Choice, Choices, read, words

MOST = 20
"""Cells and families that a note names one by one."""
UNTUNED = (
    "Not tuned: the config lists candidates in tune(), and its runs were trained with the values as they are written "
    "(--no-tune)."
)


@dataclass(frozen=True)
class Tuned:
    """The choices of a sweep, and for each of its families a name and that of the metric, with its unit."""

    choices: Choices
    names: tuple[str, ...]
    metrics: tuple[str, ...]

    def csv(self) -> str:
        """tuning.csv: a row for each tuning run."""
        rows = []
        for name, one in zip(self.names, self.choices.families, strict=True):
            for number, (mean, trials) in enumerate(zip(one.means, one.trials, strict=True)):
                changes = json.dumps(self.choices.candidates[number], sort_keys=True)
                head = [name, one.family, " ".join(one.cells), one.metric, number, changes, int(number == one.best)]
                rows += [
                    [*head, exact(mean), seed, trial.run, trial.state, exact(trial.score)]
                    for seed, trial in zip(self.choices.seeds, trials, strict=True)
                ]
        header = ["family", "tuning_cell", "cells", "metric", "candidate", "changes", "chosen", "mean"]
        return csv_text([*header, "seed", "run", "state", "score"], rows)

    def markdown(self) -> str:
        """The section of table.md."""
        candidates = [f"{number}. {markdown(words(one))}" for number, one in enumerate(self.choices.candidates, 1)]
        header = ["family", "validation score", *(str(n) for n in range(1, len(candidates) + 1)), "chosen", "warnings"]
        rows = []
        for name, measured, one in zip(self.names, self.metrics, self.choices.families, strict=True):
            means = [f"**{decimal(x)}**" if n == one.best else decimal(x) for n, x in enumerate(one.means)]
            told = "; ".join(one.notes(self.choices.candidates))
            rows.append([markdown(name), markdown(measured), *means, str(one.best + 1), markdown(told)])
        lists = "\n".join(candidates)
        return f"## Tuning\n\n{markdown(self.text)} The candidates:\n\n{lists}\n\n{markdown_table(header, rows)}"

    def section(self) -> Markup:
        """The section of the page."""
        header = ["family", "validation score", *map(words, self.choices.candidates), "warnings"]
        rows = []
        for name, measured, one in zip(self.names, self.metrics, self.choices.families, strict=True):
            cells = [
                element("td", decimal(x), class_="yes" if n == one.best else None) for n, x in enumerate(one.means)
            ]
            rows.append([name, measured, *cells, "; ".join(one.notes(self.choices.candidates))])
        sources = [
            f"made from the tuning runs {' '.join(t.run for row in one.trials for t in row)}"
            for one in self.choices.families
        ]
        tried = table(header, rows, "what every family was tuned over", sources, class_="words")
        return section("tuning", "Tuning", element("p", self.text), tried)

    @property
    def text(self) -> str:
        """What was done, in sentences."""
        seeds = ", ".join(map(str, self.choices.seeds))
        return (
            f"Each family had the same {len(self.choices.candidates)} candidates, on the tuning seeds {seeds}. "
            f"{self.choices.rule} "
            "Means over the tuning seeds; the chosen one is marked."
        )


def choices_in(root: Path) -> tuple[Choices | None, tuple[str, ...]]:
    """What the sweep in a folder chose, and notes.

    None where it has no `tuning.json`; with a note also where the file cannot be used, or says that nothing was tuned.
    """
    try:
        choices = read(real(root))
    except (OSError, ValueError) as error:
        why = printable(problem(real(root) / FILE, error).reason)
        return None, (f"How these runs were tuned is not known: {FILE} {why}",)
    return (choices, ()) if choices is None or choices.families else (None, (UNTUNED,))


def tuned(summary: Summary, choices: Choices) -> tuple[Summary, Tuned]:
    """The summary with notes about what was tuned, and that as a section, a table and a file."""
    labels = cell_labels(summary)
    names = tuple(family_name(one, labels) for one in choices.families)
    chosen = {cell for one in choices.families for cell in one.cells}
    left = [label for cell, label in labels.items() if cell not in chosen]
    notes = [f"Not tuned, beside cells that were: {listed(left)}."] if left else []
    families = list(zip(names, choices.families, strict=True))
    edges = [name for name, one in families if one.edges(choices.candidates)]
    tied = [name for name, one in families if one.tied]
    for what, marked in (("At the edge of the range that was tried", edges), ("First of equal candidates", tied)):
        if marked:
            notes.append(
                f"{what}, in {len(marked)} of {len(names)} families: what {listed(marked)} chose (see Tuning)."
            )
    tasks = {variant.cell: one.panel.task for one in summary.tasks for variant in one.panel.variants}
    task_of = lambda one: next((tasks[cell] for cell in one.cells if cell in tasks), "text")
    measured = tuple(metric(one.metric).of_task(task_of(one)).label for one in choices.families)
    return noted(summary, *notes), Tuned(choices, names, measured)


def noted(summary: Summary, *notes: str) -> Summary:
    """The summary with further notes."""
    return replace(summary, notes=(*summary.notes, *notes))


def cell_labels(summary: Summary) -> dict[str, str]:
    """What the report calls each cell."""
    several = len(summary.tasks) > 1
    return {
        variant.cell: f"{one.panel.label}: {variant.label}" if several else variant.label
        for one in summary.tasks
        for variant in one.panel.variants
    }


def family_name(choice: Choice, labels: Mapping[str, str]) -> str:
    """The cells of a family as the report calls them; where it has none of them, what the sweep changes in it."""
    known = [labels[cell] for cell in choice.cells if cell in labels]
    return listed(known) if known else words(choice.changes)


def listed(names: Sequence[Any]) -> str:
    """Names in one text, at most `MOST` of them."""
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
