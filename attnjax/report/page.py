"""The page of a report: one HTML file that makes no network request, and could not: its policy allows one style alone.

It opens with the figure and the answer; protocol, tuning and all numbers follow, hashes and machines come last. The template
(`page.html`, jinja2) escapes every text; figures are matplotlib's SVG, whose texts are outlines.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import escape

from attnjax.records.typed import Sweep
from attnjax.records.values import as_dict, text
from attnjax.report import drawing, figures, intervals
from attnjax.report.formatting import NONE, decimal, interval, lengths_of, probability, span
from attnjax.report.groups import Variant, config_of, fields, natural
from attnjax.report.metrics import metric
from attnjax.report.scores import FIT, RISE, SHARE
from attnjax.report.style import LOOKS
from attnjax.report.tables import Summary, Task, estimate
from attnjax.report.tuning import Tuning

LEVEL = 0.05
"""A corrected p at or below this is coloured."""
MOST = 500
"""Rows of skipped records that are shown; the rest is counted."""
MOST_VALUES, LONGEST = 12, 300
PRIVATE = (
    "host",
    "process",
    "environment",
    "population",
    "chance",
    "baselines",
    "schema",
    "run",
    "attempt_token",
)
"""Fields of a manifest that say more about a place than about a result, or stand elsewhere in a report."""


class Cell(NamedTuple):
    """A cell of a table: its text, what stands below it, a class of the style, and ids of runs to unfold."""

    text: str
    small: str = ""
    kind: str = ""
    runs: Sequence[str] = ()


class Row(NamedTuple):
    """A row of a table: its cells, the records behind it, and whether it is grey."""

    cells: Sequence[Cell]
    title: str = ""
    grey: bool = False


class Table(NamedTuple):
    """A table of the page."""

    label: str
    header: Sequence[str]
    rows: Sequence[Row]
    words: bool = False


def page(summary: Summary, tuning: Tuning | None, links: Mapping[str, str], wide: str, narrow: str) -> str:
    """Return the page; `links` leads from the id of a run to its folder.

    `wide` is the SVG of the overview, and `narrow` that of the same panels below each other, which a phone shows.
    """
    style = read("page.css") + dark()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    sections = [("protocol", "Protocol"), *([("tuning", "Tuning")] if tuning else [])]
    sections += [(f"task-{place}", task.panel.label) for place, task in enumerate(summary.tasks)]
    sections += [("method", "Method"), ("settings", "Settings"), ("runs", "Runs")]
    sections += [("machines", "Machines and versions"), ("skipped", "Skipped records")]
    configs = [fields(run.config) for run in summary.sweep.runs if run.config]
    manifests = [{key: run.manifest[key] for key in run.manifest if key not in PRIVATE} for run in summary.sweep.runs]
    return environment.from_string(read("page.html")).render(
        policy=policy(style),
        style=style,
        title=summary.sweep.name,
        sentence=sentence(summary),
        figure=inline(wide, titles(summary)),
        narrow=inline(narrow, titles(summary)),
        answer=answer(summary),
        legend=legend(summary),
        notes=summary.notes,
        sections=sections,
        protocol=text(summary.sweep.spec.get("protocol")).strip(),
        tuning=tuning and {"text": tuning.text, "table": tuned(tuning)},
        tasks=[task_section(task) for task in summary.tasks],
        rise=RISE,
        share=SHARE,
        fit=f"{FIT:.0%}",
        fewest=intervals.FEWEST,
        settings=shared(configs, "settings"),
        machines=shared([fields(one) for one in manifests if one], "machines"),
        runs=runs(summary),
        skipped=skipped(summary.sweep),
        links=links,
    )


def read(name: str) -> str:
    """Return the text of a file in the folder of this module."""
    return resources.files("attnjax.report").joinpath(name).read_text(encoding="utf-8")


def policy(style: str, script: str = "") -> str:
    """Return the content security policy: this style, this script if there is one, no network, no forms."""
    digest = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    scripts = f" script-src 'sha256-{digest(script)}';" if script else ""
    return f"default-src 'none'; style-src 'sha256-{digest(style)}';{scripts} base-uri 'none'; form-action 'none'"


def dark() -> str:
    """Return the rules that give figures other colours on a dark screen, by the colours that they were drawn in."""
    pairs = dict(drawing.DARK) | {look.color: look.dark for look in LOOKS}
    rules = "".join(
        f'  [fill="{old}"] {{ fill: {new}; }} [stroke="{old}"] {{ stroke: {new}; }}\n' for old, new in pairs.items()
    )
    return f"@media (prefers-color-scheme: dark) {{\n{rules}}}\n"


def inline(svg: str, titles: Mapping[str, str]) -> str:
    """Return matplotlib's SVG of a figure for the page, with what its lines show under the pointer.

    Styles become attributes, which the policy of the page allows and its rules for dark screens replace.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'style="([^"]*)"', lambda found: re.sub(r"\s*([\w-]+): ([^;]+);?", r' \1="\2"', found[1]), svg)
    svg = re.sub(
        r'(<svg[^>]*?) width="[^"]*"',
        r'\1 role="img"',
        re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1),
        count=1,
    )
    named = lambda found: f"<g><title>{escape(titles[found[1]])}</title>" if found[1] in titles else "<g>"
    return re.sub(r'<g id="([^"]*)">', named, svg).strip()


def titles(summary: Summary) -> dict[str, str]:
    """Return what each line of the overview shows, by its name in the SVG."""
    found = {}
    for task in summary.tasks:
        rows = task.lengths[task.lengths.metric == task.metric.key]
        for variant in task.panel.variants:
            mine = rows[rows.variant == variant.label]
            points = ", ".join(f"{n}: {decimal(x)}" for n, x in zip(mine.length, mine["median"], strict=True))
            found[figures.gid(variant)] = f"{variant.label}. Length: median. {points}"
    return found


def sentence(summary: Summary) -> str:
    """Return who is ahead past training on each task, and whether that is certain."""
    parts = []
    for task in summary.tasks:
        first = task.answer.iloc[0]
        if first.unfitted:
            parts.append(f"On {task.panel.label} no variant fitted the trained lengths.")
            continue
        best, found = figures.from_best(task)
        told = f"On {task.panel.label} {best.label} has the best median past the trained lengths"
        ahead = ""
        if found:
            other, item, _ = found[0]
            ahead = (
                f", {'' if item.holm <= LEVEL else 'not certainly '}ahead of {other.label}: p {probability(item.holm)}"
            )
        parts.append(f"{told} ({task.metric.short} {decimal(first.past)}{ahead}).")
    return " ".join(parts)


def answer(summary: Summary) -> Table:
    """Return every variant on every task, in one table, best in bold."""
    known: dict[str, Variant] = {variant.label: variant for task in summary.tasks for variant in task.panel.variants}
    header = ["encoding"]
    for task in summary.tasks:
        header.append(f"{task.panel.label}: {task.metric.short} past {task.panel.trained[1]} {arrow(task)}")
    tables = [task.answer.set_index("variant") for task in summary.tasks]
    rows = []
    for label in known:
        cells = [Cell(label)]
        for table in tables:
            cells.append(past_cell(table.loc[label], label == table.index[0]) if label in table.index else Cell(""))
        runs = (str(table.loc[label, "runs"]) for table in tables if label in table.index)
        rows.append(Row(cells, sources(*runs)))
    return Table("answer", header, rows)


def arrow(task: Task) -> str:
    """Return the arrow that says whether higher or lower is better."""
    return "↑" if task.metric.higher else "↓"


def past_cell(row: Any, first: bool) -> Cell:
    """Return the score past training of one variant: grey where it did not fit, else with how far it holds."""
    found = estimate(row, "past")
    number, _, ends = interval(found).partition(" ")
    if row.unfitted:
        return Cell(number, f"did not fit ({row.fitted:.0f} of {row.done + row.failed} runs)", "unfitted")
    factor = "" if pd.isna(row.factor) else f", holds to {decimal(row.factor, 2).rstrip('0').rstrip('.')} L"
    return Cell(number, ends + factor, "best" if first else "")


def legend(summary: Summary) -> str:
    """Return what the answer table shows, and how many runs there are."""
    runs = summary.sweep.runs
    ends = intervals.caption(summary.answer.done + summary.answer.failed)
    tested = "; ".join(f"{task.panel.label} at {span(task.scores[0].beyond)}" for task in summary.tasks)
    return (
        f"Mean over the tested lengths past the longest training length, L ({tested}). Median of the runs, with the "
        f"{ends}; bold: the best median. Holds to: the length factor (see Method). {len(runs)} runs of "
        f"{len(summary.answer)} cells."
    )


def sources(*runs: str) -> str:
    """Return which records the numbers of a row were made from, shown under the pointer."""
    return f"made from the records of {' '.join(runs)}"


def task_section(task: Task) -> dict[str, Any]:
    """Return what the page shows of one task."""
    config = as_dict(config_of(task.panel.runs).get("task"))
    options = ", ".join(f"{key} {value}" for key, value in sorted(fields(as_dict(config.get("options"))).items()))
    learned = figures.learning_curves(task)
    return {
        "title": task.panel.label,
        "text": f"{task.panel.task}{f' with {options}' if options else ''}, trained on {lengths_of(*task.panel.trained)}.",
        "table": numbers(task),
        "metrics": [(one.metric.label, by_length(task, place)) for place, one in enumerate(task.scores)],
        "differences": differences(task),
        "caption": "The mean of the first less the second, over pairs of runs that share their seeds; coloured where the "
        f"exact p, corrected for all pairs (Holm), is at most {LEVEL}.",
        "learning": inline(drawing.svg(learned), {}) if learned is not None else "",
    }


def numbers(task: Task) -> Table:
    """Return the table of a task, best first: scores past training and within it, how the runs ended, and which they are."""
    others = [one.metric for one in task.scores[1:]]
    header = ["encoding", f"{task.metric.label}, past training", "within", "length factor"]
    header += [f"{one.label}, past" for one in others] + ["fitted", "failed", "records"]
    rows = []
    for _, row in task.answer.iterrows():
        cells = [Cell(f"{row.variant} (did not fit)" if row.unfitted else row.variant)]
        cells += [estimated(estimate(row, name)) for name in ("past", "within")] + [
            estimated(estimate(row, "factor"), 2)
        ]
        cells += [estimated(estimate(row, f"past_{one.key}")) for one in others]
        ended = row.done + row.failed
        fitted = NONE if pd.isna(row.fitted) else f"{row.fitted:.0f} of {ended}"
        cells += [Cell(fitted), Cell(f"{row.failed} of {row.planned}"), Cell("", runs=row.runs.split())]
        rows.append(Row(cells, sources(row.runs), bool(row.unfitted)))
    return Table(f"{task.panel.label}: scores past training", header, rows)


def estimated(found: Any, digits: int = 3, kind: str = "") -> Cell:
    """Return a cell with a number and, below it, its interval."""
    number, _, ends = interval(found, digits).partition(" ")
    return Cell(number, ends, kind)


def by_length(task: Task, place: int) -> Table:
    """Return the median and interval at every length, at most 24; the rest is in lengths.csv."""
    rows = task.lengths[task.lengths.metric == task.scores[place].metric.key]
    lengths = drawing.some(sorted(set(rows.length)), 24, kept=task.panel.trained[1])
    made = []
    for variant in task.panel.variants:
        mine = rows[rows.variant == variant.label].set_index("length")
        cells = [estimated(estimate(mine.loc[n], "median")) if n in mine.index else Cell("") for n in lengths]
        made.append(
            Row(
                [Cell(variant.label), *cells],
                sources(*(run.id for run in variant.runs)),
                variant.label in task.unfitted,
            )
        )
    for name, level in task.levels[place].items():
        made.append(Row([Cell(name), *(Cell(decimal(level[n])) for n in lengths)]))
    return Table("by length", ["encoding", *(f"{n:g}" for n in lengths)], made)


def differences(task: Task) -> Table:
    """Return the differences of pairs of runs; those whose corrected p is at most 0.05 are marked."""
    rows = []
    for one in task.compared:
        better = task.metric.sign * one.mean.value > 0
        kind = "" if one.holm > LEVEL else "yes" if better else "no"
        cells = [
            Cell(f"{one.first.label} less {one.second.label}"),
            Cell(str(len(one.pairs))),
            estimated(one.mean, 4, kind),
        ]
        runs = " ".join(f"{run}-{other}" for run, other, _ in one.pairs)
        rows.append(Row([*cells, Cell(probability(one.p)), Cell(probability(one.holm))], sources(runs)))
    return Table("paired differences", ["pair", "pairs of runs", "mean difference", "p", "p, Holm"], rows)


def tuned(tuning: Tuning) -> Table:
    """Return the candidates of every family, with the chosen one marked."""
    candidates = list(dict.fromkeys(tuning.table.candidate))
    rows = []
    for (family, name), group in tuning.table.groupby(["family", "metric"], sort=False):
        means = {
            row["candidate"]: Cell(decimal(row["mean"]), kind="yes" if row["chosen"] else "")
            for row in group.to_dict("records")
        }
        cells = [Cell(family), Cell(metric(name).label), *(means.get(one, Cell("")) for one in candidates)]
        rows.append(Row([*cells, Cell("; ".join(filter(None, group.warnings)))], sources(*group.runs)))
    return Table(
        "what every family was tuned over", ["family", "validation score", *candidates, "warnings"], rows, words=True
    )


def runs(summary: Summary) -> Table:
    """Return all runs, how they ended and what they scored."""
    header = ["run", "task", "encoding", "seed", "data seed", "state", "reason", "past training"]
    rows = []
    for row in summary.runs.to_dict("records"):
        words = [row[name] for name in ("task", "variant", "seed", "data_seed", "state")] + [row["remark"][:300]]
        cells = [Cell("" if pd.isna(one) or one == -1 else str(one)) for one in words]
        rows.append(Row([Cell(row["run"]), *cells, Cell(decimal(row["past"]))]))
    return Table("runs", header, rows, words=True)


def shared(flats: Sequence[Mapping[str, str]], label: str) -> tuple[Table, Table]:
    """Return what all of these tables have in common, and what differs, in order of keys."""
    common, different = [], []
    for key in sorted({key for one in flats for key in one}):
        values = sorted({one.get(key, "unset")[:LONGEST] for one in flats}, key=natural)
        more = f" ... ({len(values)} different values)" if len(values) > MOST_VALUES else ""
        row = Row([Cell(key), Cell(", ".join(values[:MOST_VALUES]) + more, kind="long")])
        (common if len(values) == 1 else different).append(row)
    return (
        Table(f"{label} in common", ["setting", "value"], common, words=True),
        Table(f"{label} that differ", ["differs between runs", "values"], different, words=True),
    )


def skipped(sweep: Sweep) -> Table:
    """Return the records that were not used."""
    rows = [
        Row([Cell(str(one.path)[:200]), Cell("" if one.line is None else str(one.line)), Cell(one.reason)])
        for one in sweep.skipped[:MOST]
    ]
    more = f"; the first {MOST} are listed" if len(sweep.skipped) > MOST else ""
    return Table(
        f"{len(sweep.skipped)} things in the folder were not used{more}.", ["path", "line", "why"], rows, words=True
    )
