"""How a sweep was tuned: for each family the candidates, their validation scores, and what was chosen, with warnings.

What is shown comes from `tuning.json` (`attnjax.sweep.choices`), which training wrote before the runs of the sweep.
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from attnjax.records.files import problem, real
from attnjax.records.values import printable
from attnjax.report.notes import listed
from attnjax.report.tables import Summary
from attnjax.sweep.choices import FILE, Choice, Choices, read
from attnjax.sweep.plan import words

UNTUNED = "Not tuned: the config lists candidates in tune(), and its runs were trained with the values as written (--no-tune)."


@dataclass(frozen=True)
class Tuning:
    """What was done, in sentences; a row for each family and candidate; what a reader must know."""

    text: str
    table: pd.DataFrame
    notes: tuple[str, ...]


def choices_in(root: Path) -> tuple[Choices | None, list[str]]:
    """Return what the sweep in a folder chose, and notes.

    None where it has no `tuning.json`; with a note also where the file cannot be used, or says that nothing was tuned.
    """
    try:
        choices = read(real(root))
    except (OSError, ValueError) as error:
        why = printable(problem(real(root) / FILE, error).reason)
        return None, [f"How these runs were tuned is not known: {FILE} {why}"]
    return (choices, []) if choices is None or choices.families else (None, [UNTUNED])


def tuning(summary: Summary, choices: Choices) -> Tuning:
    """Return the tuning of a sweep by the names of its cells."""
    several = len(summary.tasks) > 1
    labels: dict[str, str] = {
        row["cell"]: f"{row['task']}: {row['variant']}" if several else row["variant"]
        for row in summary.answer.to_dict("records")
    }
    rows, chosen = [], {cell for one in choices.families for cell in one.cells}
    for one in choices.families:
        name = listed([labels[cell] for cell in one.cells if cell in labels]) or words(one.changes)
        rows += _rows(name, one, choices)
    table = pd.DataFrame(rows)
    count = table.family.nunique()
    found = []
    if left := [label for cell, label in labels.items() if cell not in chosen]:
        found.append(f"Not tuned, beside cells that were: {listed(left)}.")
    for what, column in (
        ("At the edge of the range that was tried", "edge"),
        ("The first of equal candidates", "tied"),
    ):
        if families := table.family[table.chosen & table[column]].nunique():
            found.append(f"{what} is the choice of {families} of {count} tuned families (see Tuning).")
    seeds = ", ".join(map(str, choices.seeds))
    said = f"Each family had the same {len(choices.candidates)} candidates, on the tuning seeds {seeds}. {choices.rule}"
    return Tuning(said, table, tuple(found))


def _rows(family: str, one: Choice, choices: Choices) -> list[dict[str, object]]:
    return [
        {
            "family": family,
            "cells": " ".join(one.cells),
            "metric": one.metric,
            "candidate": words(candidate),
            "mean": mean,
            "chosen": number == one.best,
            "edge": number == one.best and bool(one.edges(choices.candidates)),
            "tied": number == one.best and bool(one.tied),
            "warnings": "; ".join(one.notes(choices.candidates)) if number == one.best else "",
            "runs": " ".join(trial.run for trial in trials),
        }
        for number, (candidate, mean, trials) in enumerate(zip(choices.candidates, one.means, one.trials, strict=True))
    ]
