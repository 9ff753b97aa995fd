"""From records to every number of a report, each computed once."""

import numpy as np
from jaxtyping import Float

from attnjax.records.values import as_dict, finite, text
from attnjax.report import statistics
from attnjax.report.curves import curve, learning
from attnjax.report.groups import Panel, Variant, panels
from attnjax.report.measures import Measure, declared, measure, ordered
from attnjax.report.notes import notes
from attnjax.report.records import Sweep
from attnjax.report.scores import FIT, Scored, members, metrics, outcome, scored
from attnjax.report.statistics import Estimate
from attnjax.report.summary import Counts, Overall, Row, Summary, Task

EXACT = "exact_match"
MOST_COMPARED = 16
"""Variants of a task beyond which nobody could read a table of all pairs, so none is made."""


def summarise(sweep: Sweep) -> Summary:
    """All numbers of a report. Raises `ValueError` where no run has ended yet with a result."""
    first = declared(text(sweep.spec.get("protocol")))
    found = tuple(task(panel, first) for panel in panels(sweep.runs))
    if not any(item.measures for item in found):
        states = ", ".join(f"{run.id} is {run.state}" for run in sweep.runs[:5])
        raise ValueError(f"no run of {sweep.name!r} has measured anything at a test length yet: {states} ...")
    return Summary(sweep, found, overall(found), tuple(notes(sweep, found)))


def task(panel: Panel, first: tuple[str, ...]) -> Task:
    """The numbers of one task; the metrics in `first` come first."""
    measures = tuple(ordered(metrics(panel), first))
    fits = [fitted_runs(panel, variant) for variant in panel.variants]
    rows = {
        item.key: tuple(
            row(scored(panel, variant, item), fit) for variant, fit in zip(panel.variants, fits, strict=True)
        )
        for item in measures
    }
    chances = {item.key: chance(panel, item, rows[item.key][0].scored.lengths) for item in measures}
    return Task(
        panel=panel,
        measures=measures,
        rows=rows,
        counts=tuple(counts(variant, fit) for variant, fit in zip(panel.variants, fits, strict=True)),
        chance={key: levels for key, levels in chances.items() if levels is not None},
        improvement=compare([item.scored for item in rows[measures[0].key]]) if measures else {},
        learning=tuple(learning(variant) for variant in panel.variants),
    )


def fitted_runs(panel: Panel, variant: Variant) -> frozenset[str] | None:
    """The ids of the runs that fitted their task, None where it has no exact answers."""
    if EXACT not in metrics(panel):
        return None
    inside = scored(panel, variant, measure(EXACT))
    if len(inside.runs) and np.isnan(inside.within).all():
        return None
    solved = statistics.fitted(inside.within, FIT)
    return frozenset(run.id for run, fits in zip(inside.runs, solved, strict=True) if fits)


def counts(variant: Variant, fit: frozenset[str] | None) -> Counts:
    """How the runs of a variant ended."""
    ends = [outcome(run) for run in variant.runs]
    return Counts(len(ends), ends.count("done"), ends.count("failed"), None if fit is None else len(fit))


def row(scores: Scored, fit: frozenset[str] | None) -> Row:
    """The numbers of one variant under one metric."""
    kept = ~np.isnan(scores.past)
    past = scores.past[kept]
    solved = np.array([fit is not None and run.id in fit for run in scores.runs], bool)[kept]
    sign = scores.measure.sign
    return Row(
        scored=scores,
        curve=curve(scores.variant, np.array(scores.lengths, float), scores.curve),
        past=estimate(past),
        within=estimate(scores.within[~np.isnan(scores.within)]),
        mean=float(np.mean(past)) if len(past) else np.nan,
        median=float(np.median(past)) if len(past) else np.nan,
        best=sign * float(np.max(sign * past)) if len(past) else np.nan,
        fitted=float(np.mean(past[solved])) if solved.any() else np.nan,
    )


def estimate(scores: Float[np.ndarray, " R"]) -> Estimate | None:
    """IQM and interval of the runs of one variant, None without any."""
    return statistics.bootstrap([scores]) if len(scores) else None


def compare(rows: list[Scored]) -> dict[tuple[int, int], Estimate]:
    """Probabilities of improvement past training, for every ordered pair of variants that have scores, if not too many."""
    if len(rows) > MOST_COMPARED:
        return {}
    signed = [item.measure.sign * item.past[~np.isnan(item.past)] for item in rows]
    found = {}
    for i in range(len(rows)):
        for j in range(i + 1, len(rows)):
            if len(signed[i]) and len(signed[j]):
                chance = statistics.probability_of_improvement([signed[i]], [signed[j]])
                found[i, j] = chance
                found[j, i] = Estimate(1 - chance.value, 1 - chance.high, 1 - chance.low)
    return found


def chance(panel: Panel, item: Measure, lengths: tuple[int, ...]) -> Float[np.ndarray, " X"] | None:
    """What guessing scores at these lengths, as a manifest says for each length; None where none says it for all."""
    if item.guess is None:
        return None
    for run in members(panel):
        levels = as_dict(run.manifest.get("chance"))
        found = [as_dict(levels.get(str(length))).get(item.guess) for length in lengths]
        if lengths and all(map(finite, found)):
            return np.array(found, float)
    return None


def overall(tasks: tuple[Task, ...]) -> tuple[Overall, ...]:
    """Accuracies over several tasks, for the names that every task with that metric has."""
    found = []
    for item in ordered({known.key for one in tasks for known in one.measures if known.higher}):
        having = [one for one in tasks if item.key in one.rows]
        if len(having) < 2:
            continue
        for first in having[0].rows[item.key]:
            label = first.scored.variant.label
            same = [r.scored for one in having for r in one.rows[item.key] if r.scored.variant.label == label]
            strata = [one.past[~np.isnan(one.past)] for one in same]
            if len(same) == len(having) and all(map(len, strata)):
                variant, past, mean = first.scored.variant, statistics.bootstrap(strata), float(statistics.mean(strata))
                runs = tuple(
                    run.id for one in same for run, score in zip(one.runs, one.past, strict=True) if score == score
                )
                found.append(Overall(label, variant.encoding, variant.number, item, len(strata), runs, past, mean))
    return tuple(found)
