"""What the page says of the suite: tables and sentences, all from its records."""

import math

import numpy as np

from attnjax import registry
from attnjax.report.formatting import interval, markdown_table
from experiments import recorded
from experiments.context_extension import suite
from experiments.context_extension.methods import named
from experiments.context_extension.results import Results
from experiments.context_extension.suite_records import Suite
from experiments.context_extension.tables import places

LABELS = {"fact": "Fact in text", "facts": "Fact among facts"}
LABELS |= {name: row.label for name, row in registry.SUITES["long"].items()}
SECTION = """## The suite `long`, by ranking

The same models and methods, without training, asked as `attnjax evaluate RUN --suite long --lengths 512,1024` ranks: an answer
is found if it is likelier, per byte, than {wrong} wrong ones, so that guessing scores {chance:g} %.

{about}

![Answers likelier than {wrong} wrong ones, by task and length](figure_suite.png)

*Percent of answers found, mean of {runs} runs; guessing finds {chance:g}. {trained} is the trained length.*

{bullets}

{tables}"""


def section(found: Suite, results: Results) -> str:
    """The section of README.md."""
    lines = [chosen(found), english(found), counted(found), *same(found, results)]
    told = (f"### {LABELS[task]}: percent found\n\n{table(found, task)}" for task in facts_of(found))
    return SECTION.format(
        wrong=found.about["candidates"] - 1,
        chance=found.chance,
        about="\n".join(f"* {line}" for line in lines),
        runs=len(found.sliding),
        trained=found.lengths[0],
        bullets="\n".join(f"* {line}" for line in bullets(found)),
        tables="\n".join(told),
    )


def facts_of(found: Suite) -> list[str]:
    """The tasks of facts in these records."""
    return [task for task in found.about["samples"] if task in suite.LINES]


def chosen(found: Suite) -> str:
    """What the tasks of facts are, and how they do at the trained length, where they were chosen."""
    first = found.lengths[0]
    text = (
        "**Two tasks of facts**, which these models were trained with: a line of four of them stands anywhere in held-out "
        "text, alone or among two lines of the other kinds; one is asked for at the end, and the wrong answers are other "
        "values of its kind. These tasks were chosen at the trained length alone, before anything longer was looked at"
    )
    if "none" not in found.scores:
        return f"{text}."
    at = ", ".join(
        f"*{LABELS[one].lower()}* {interval(found.estimate('none', one, first), 0)} %" for one in facts_of(found)
    )
    above = all(found.units("none", task, first).min() > found.chance for task in facts_of(found))
    every = "every" if above else "not every"
    return f"{text}: as trained, the models find {at} there, {every} run above {found.chance:g} %."


def english(found: Suite) -> str:
    """Where RULER's tasks can be asked."""
    names = [task for task in found.about["samples"] if task not in suite.LINES]
    fits = {task: [n for one, n in found.asked if one == task] for task in names}
    never = [LABELS[task] for task, lengths in fits.items() if not lengths]
    text = (
        "**RULER's six tasks** are in English, which these models never read, and no prompt is ever cut. They are asked "
        "without a worked example at every length that holds them, and chosen by no result: "
    )
    first = min((lengths[0] for lengths in fits.values() if lengths), default=None)
    if first is None:
        return f"{text}none fits into {found.lengths[-1]} bytes."
    return f"{text}the first at {first}" + (
        f"; {', '.join(never)} needs more than {found.lengths[-1]}." if never else "."
    )


def counted(found: Suite) -> str:
    """How many samples there are, and by how much means of guesses differ."""
    p, runs, most = found.chance / 100, len(found.sliding), {True: 0, False: 0}
    for task, count in found.about["samples"].items():
        most[task in suite.LINES] = max(most[task in suite.LINES], count)
    facts, others = (100 * math.sqrt(p * (1 - p) / (runs * max(count, 1))) for count in (most[True], most[False]))
    return (
        f"**Samples**: {most[True]} of each fact task and {most[False]} of each RULER task at each length, the same for all "
        f"methods and runs; the mean of {runs} runs that guess has a standard deviation of {facts:.0f} and {others:.0f} points."
    )


def same(found: Suite, results: Results) -> list[str]:
    """Whether the models are those of the losses above: how far the mean losses of their runs as trained differ."""
    plain = results.cells["zero-shot"].get("none")
    if plain is None:
        return []
    names = [run["run"] for run in results.runs]
    differences = [
        abs(loss - plain.sliding[length][names.index(name)].mean())
        for name, by_length in found.sliding.items()
        if name in names
        for length, loss in by_length.items()
    ]
    most = max(differences, default=0.0)
    if most < 5e-5:
        return []
    return [
        f"**The models** were trained again for this, from the same config and seeds, and are not the same bit by bit: a run's "
        f"loss as trained at the end of windows differs by {most:.4f} nats at most from that of the tables above."
    ]


def bullets(found: Suite) -> list[str]:
    """Who finds facts at the longest length, and whether anyone finds what RULER asks for."""
    long, lines = found.lengths[-1], []
    for task in facts_of(found):
        ordered = sorted(found.scores, key=lambda name: -found.estimate(name, task, long).value)
        told = ", ".join(f"{named(name)} {found.estimate(name, task, long).value:.0f}" for name in ordered)
        lines.append(f"**{LABELS[task]} at {long}**, from most to fewest: {told}.")
    asked = [(task, n) for task, n in found.asked if task not in suite.LINES]
    return lines + ([of_ruler(found, asked)] if asked else [])


def of_ruler(found: Suite, asked: list[tuple[str, int]]) -> str:
    """Whether RULER's tasks are answered more often than by guessing: over all methods, whose samples are the same."""
    cells = [(name, *one) for one in asked for name in found.scores]
    values = np.array([found.units(*cell).mean() for cell in cells])
    samples = sum(found.about["samples"][task] for task, _ in asked)
    spread = 100 * math.sqrt(found.chance / 100 * (1 - found.chance / 100) / samples)
    more = values.mean() > found.chance + 2 * spread
    best = max(cells, key=lambda cell: found.estimate(*cell).value)
    ties = int(np.sum(values >= values.max() - 1e-9))
    tasks = {
        task: np.mean([value for value, cell in zip(values, cells, strict=True) if cell[1] == task])
        for task, _ in asked
    }
    told = ", ".join(f"{LABELS[task]} {value:.0f}" for task, value in tasks.items())
    return (
        f"**RULER's tasks**: {values.mean():.0f} % over all methods, tasks and lengths ({told}), where guessing is "
        f"{found.chance:g}. All methods and runs are asked the same {samples} questions, and a model that only prefers some "
        f"answers to others would be off by {spread:.0f} points (one standard deviation): that is "
        f"{'above guessing' if more else 'no sign that anything is found'}. The highest of "
        f"{len(cells)} cells is {interval(found.estimate(*best), 0)}: {named(best[0])}, {LABELS[best[1]]} at {best[2]}"
        f"{f', and as high as {ties - 1} more' if ties > 1 else ''}."
    )


def table(found: Suite, task: str) -> str:
    """A row per method and a column per length at which the task can be asked; each cell a mean and its range."""
    lengths = [n for one, n in found.asked if one == task]
    header = ["method", *(f"{n} ({n // found.lengths[0]}x)" for n in lengths)]
    rows = [[named(name), *(interval(found.estimate(name, task, n), 0) for n in lengths)] for name in found.scores]
    return markdown_table(header, rows)


def tables(found: Suite) -> str:
    """The part of table.md: every task."""
    parts = [
        f"## The suite `long` by ranking, without training\n\nMeans with the {recorded.t_ends_of(len(found.sliding))}.\n"
    ]
    for task in found.about["samples"]:
        if any(one == task for one, _ in found.asked):
            parts.append(f"### {LABELS[task]}: percent found (guessing {found.chance:g})\n\n{table(found, task)}")
    return "\n".join(parts)


def spent(found: Suite) -> str:
    """Where and how long the suite was measured."""
    where = places(found.runs, found.about)
    return f"The suite was measured on {where}, beside other work: {found.seconds / 60:.1f} minutes."
