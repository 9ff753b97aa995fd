"""Computes every number of a report from the records, and the notes that a reader needs to judge them."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from attnjax.records.values import DECIMALS, as_dict, finite, printable, text
from attnjax.report import intervals, statistics
from attnjax.report.comparisons import differences, improvements
from attnjax.report.examples import over_examples, text_of
from attnjax.report.groups import Panel, Variant, homeless, panels
from attnjax.report.metrics import Metric, declared, metric, ordered
from attnjax.report.reach import RISE, metric_of, middle, reach
from attnjax.report.records import Run, Sweep
from attnjax.report.scores import FIT, Scored, curve, learning, members, metric_keys, outcome, scored
from attnjax.report.summary import NGRAMS, Counts, Overall, Row, Summary, Task

EXACT, SLIDING = "exact_match", "loss_sliding"
OPTIMUM = (("markov", "bigram"),)
"""Tasks of which a baseline is the best prediction there is: the pairs that were counted in the window."""
SAME = 1e-4
"""Relative differences of baselines below which they are of the same windows, computed on another machine."""
WAITING = ("pending", "running", "preempted", "absent")
"""States of runs that may still end."""
CHANGES = (
    ("backend", "another backend"),
    ("code_sha256", "another version of attnjax"),
    ("device_kind", "another kind of device"),
    ("mesh", "another mesh"),
    ("population", "another population"),
    ("process_count", "another number of processes"),
    ("processor", "another processor"),
    ("threads", "another number of threads"),
    ("version_jax", "another version of JAX"),
    ("version_jaxlib", "another version of jaxlib"),
)
"""What a manifest says that a run was resumed with."""


def summarise(sweep: Sweep, tuned: Iterable[str] = ()) -> Summary:
    """All numbers of a report; `tuned` are the fields that the sweep was tuned over.

    Raises `ValueError` where no run has ended yet with a result.
    """
    first = declared(text(sweep.spec.get("protocol")))
    found = tuple(task(panel, first) for panel in panels(sweep.runs, tuned))
    if not any(item.metrics for item in found):
        states = ", ".join(f"{run.id} is {run.state}" for run in sweep.runs[:5])
        raise ValueError(f"no run of {sweep.name!r} has measured anything at a test length yet: {states} ...")
    return Summary(sweep, found, overall(found), tuple(notes(sweep, found)))


def task(panel: Panel, first: tuple[str, ...]) -> Task:
    """The numbers of one task; the metrics in `first` come first."""
    metrics = tuple(item.of_task(panel.task) for item in ordered(metric_keys(panel), first))
    fits = [fitted_runs(panel, variant) for variant in panel.variants]
    rows = {
        item.key: tuple(
            row(scored(panel, variant, item), fit) for variant, fit in zip(panel.variants, fits, strict=True)
        )
        for item in metrics
    }
    ended = tuple(counts(variant, fit) for variant, fit in zip(panel.variants, fits, strict=True))
    primary = [item.scored for item in rows[metrics[0].key]] if metrics else []
    compared = [place for place in range(len(primary)) if not ended[place].unfitted]
    measure = metric_of(metrics)
    chances = {item.key: chance(panel, item, rows[item.key][0].scored.lengths) for item in metrics}
    levels = {item.key: common_baselines(panel, item, rows[item.key][0].scored.lengths) for item in metrics}
    return Task(
        panel=panel,
        metrics=metrics,
        rows=rows,
        counts=ended,
        reach=tuple(reach(item.scored, panel.trained[1]) for item in rows[measure.key]) if measure else (),
        chance={key: found for key, found in chances.items() if found is not None},
        baselines={key: found for key, found in levels.items() if found},
        improvement=improvements(primary, compared),
        differences=differences(primary, compared),
        learning=tuple(learning(variant) for variant in panel.variants),
    )


def fitted_runs(panel: Panel, variant: Variant) -> frozenset[str] | None:
    """The ids of the runs that fitted their task, None where it has neither exact answers nor a known best prediction."""
    if EXACT not in metric_keys(panel):
        return near_optimum(panel, variant)
    inside = scored(panel, variant, metric(EXACT))
    if len(inside.runs) and np.isnan(inside.within).all():
        return None
    solved = np.round(inside.within, DECIMALS) >= FIT  # no for a lost score, which is NaN
    return frozenset(run.id for run, fits in zip(inside.runs, solved, strict=True) if fits)


def near_optimum(panel: Panel, variant: Variant) -> frozenset[str] | None:
    """The ids of the runs whose loss at the longest training length is near that of the best prediction there is."""
    item, longest = metric(SLIDING), panel.trained[1]
    runs = variant.runs if any(outcome(run) == "done" for run in variant.runs) else members(panel)
    known = baselines(runs, item, (longest,)).get(dict(OPTIMUM).get(panel.task, ""))
    found = scored(panel, variant, item)
    if known is None or longest not in found.lengths:
        return None
    near = found.curve[:, found.lengths.index(longest)] <= known[0] + RISE
    return frozenset(run.id for run, fits in zip(found.runs, near, strict=True) if fits)


def counts(variant: Variant, fit: frozenset[str] | None) -> Counts:
    """How the runs of a variant ended."""
    ends = [outcome(run) for run in variant.runs]
    return Counts(len(ends), ends.count("done"), ends.count("failed"), None if fit is None else len(fit))


def row(scores: Scored, fit: frozenset[str] | None) -> Row:
    """The numbers of one variant under one metric."""
    kept = ~np.isnan(scores.past)
    past = scores.past[kept]
    solved = np.array([fit is not None and run.id in fit for run in scores.runs], bool)[kept]
    sign = scores.metric.sign
    return Row(
        scored=scores,
        curve=curve(scores.variant, np.array(scores.lengths, float), scores.curve),
        past=middle(scores.past),
        within=middle(scores.within),
        over_examples=over_examples(scores, scores.beyond),
        mean=float(np.mean(past)) if len(past) else np.nan,
        iqm=float(statistics.iqm([past])) if len(past) else np.nan,
        best=sign * float(np.max(sign * past)) if len(past) else np.nan,
        fitted=float(np.mean(past[solved])) if solved.any() else np.nan,
    )


def chance(panel: Panel, item: Metric, lengths: tuple[int, ...]) -> Float[np.ndarray, " X"] | None:
    """The score of guessing at these lengths, from a manifest; None if no manifest has it for all of them."""
    if item.guess is None:
        return None
    for run in members(panel):
        levels = as_dict(run.manifest.get("chance"))
        found = [as_dict(levels.get(str(length))).get(item.guess) for length in lengths]
        if lengths and all(map(finite, found)):
            return np.array(found, float)
    return None


def common_baselines(panel: Panel, item: Metric, lengths: tuple[int, ...]) -> dict[str, Float[np.ndarray, " X"]]:
    """What n-gram models score at these lengths, where all variants that know it were tested on the same windows.

    Variants that are evaluated in other batches, or count other tokens, have other baselines: then there is none of all.
    """
    each = [found for variant in panel.variants if (found := baselines(variant.runs, item, lengths))]
    alike = all(
        one.keys() == each[0].keys() and all(np.allclose(one[name], each[0][name], rtol=SAME) for name in one)
        for one in each
    )
    return each[0] if each and alike else {}


def baselines(runs: Sequence[Run], item: Metric, lengths: tuple[int, ...]) -> dict[str, Float[np.ndarray, " X"]]:
    """What n-gram models score at these lengths, by name, from the first manifest that says it for all of them."""
    for run in runs:
        levels = as_dict(run.manifest.get("baselines"))
        found = [as_dict(as_dict(levels.get(str(length))).get(item.key)) for length in lengths]
        names = [name for name in NGRAMS if found and all(finite(level.get(name)) for level in found)]
        if names:
            return {name: np.array([level[name] for level in found], float) for name in names}
    return {}


def overall(tasks: tuple[Task, ...]) -> tuple[Overall, ...]:
    """Accuracies over several tasks, for the names that every task with that metric has."""
    found = []
    for item in ordered({known.key for one in tasks for known in one.metrics if known.higher}):
        having = [one for one in tasks if item.key in one.rows]
        if len(having) < 2:
            continue
        for first in having[0].rows[item.key]:
            label = first.scored.variant.label
            same = [r.scored for one in having for r in one.rows[item.key] if r.scored.variant.label == label]
            strata = [one.past[~np.isnan(one.past)] for one in same]
            if len(same) == len(having) and all(map(len, strata)):
                variant, past, mean = first.scored.variant, statistics.aggregate(strata), float(statistics.mean(strata))
                places = [[v.label for v in one.panel.variants].index(label) for one in having]
                bad = sum(place in one.unfitted for place, one in zip(places, having, strict=True))
                runs = tuple(
                    run.id for one in same for run, score in zip(one.runs, one.past, strict=True) if score == score
                )
                found.append(Overall(label, variant.encoding, variant.number, item, len(strata), bad, runs, past, mean))
    return tuple(found)


def notes(sweep: Sweep, tasks: Sequence[Task]) -> list[str]:
    """The notes that a reader needs to judge the numbers, for example that there are few runs."""
    found = incompleteness(sweep)
    failed = sum(count.failed for one in tasks for count in one.counts)
    if failed:
        found.append(f"Failed: {failed} of {len(sweep.runs)} runs. They count with the worst score there is.")
    early = sorted(run.fitted_at for run in sweep.runs if run.fitted_at is not None)
    if early:
        found.append(
            f"Ended when they had fitted their task (train.until): {len(early)} of {len(sweep.runs)} runs, at steps "
            f"{early[0]} to {early[-1]} (see Runs). They count with what they measured there."
        )
    measured = {item.key for one in tasks for item in one.metrics}
    if absent := [name for name in declared(text(sweep.spec.get("protocol"))) if name not in measured]:
        found.append(f"The protocol names a metric that no run measured: {printable(', '.join(absent))}.")
    lost = homeless(sweep.runs)
    if lost:
        found.append(f"Without a readable config, and so of no known cell: {ids(lost)}.")
    partial = {run.id for one in tasks for rows in one.rows.values() for r in rows for run in incomplete(r.scored)}
    if partial:
        runs = ", ".join(sorted(partial)[:20])
        found.append(f"Some lengths are missing in the records of {runs}: left out of the scores that need them.")
    found += resumed(sweep) + different_texts(tasks) + different_windows(tasks)
    unlearned = [
        f"{task.panel.variants[place].label} on {task.panel.label}" for task in tasks for place in task.unfitted
    ]
    if unlearned:
        found.append(
            f"Not fitted, and so greyed, not ranked and not compared: {', '.join(sorted(unlearned)[:20])}. Fewer than half of "
            f"the runs answer {FIT:.0%} of the examples within the training range exactly, or, of Markov chains, come within "
            f"{RISE} nats of the best prediction."
        )
    few = min((count.ended for one in tasks for count in one.counts if count.ended), default=0)
    if 0 < few < intervals.FEWEST:
        found.append(
            f"Fewest runs of a cell that ended: {few}. With fewer than {intervals.FEWEST} a cell has the range of its runs "
            "and no interval, and hardly any difference can be shown (see Method)."
        )
    return found


def incompleteness(sweep: Sweep) -> list[str]:
    """Sentences that say why the report may lack runs; none if it has all of them."""
    found, runs = [], sweep.runs
    left = [run for run in runs if outcome(run) == "unfinished"]
    waiting = Counter(run.state for run in left if run.state in WAITING)
    if left:
        done = sum(outcome(run) == "done" for run in runs)
        text = f"Not complete: {done} of {len(runs)} runs are done"
        if waiting:
            states = ", ".join(f"{count} {state}" for state, count in sorted(waiting.items()))
            are, were = ("is", "was") if waiting.total() == 1 else ("are", "were")
            text += f"; {waiting.total()} {are} still in training or {were} not started ({states})"
        if lost := len(left) - waiting.total():
            text += f"; the records of {lost} more are damaged or missing (see Skipped records)"
        found.append(f"{text}. The numbers are without them.")
    if unknown := [run for run in runs if run.state == "unknown" and outcome(run) == "done"]:
        found.append(f"Without a readable status, and counted as done by their results: {ids(unknown)}.")
    if not isinstance(sweep.spec.get("runs"), list):
        found.append("Perhaps not complete: sweep.json, which says how many runs were planned, cannot be read.")
    return found


def resumed(sweep: Sweep) -> list[str]:
    """A note on runs that went on under other conditions than they began; none if there are none."""
    told = [(run, names) for run in sweep.runs if isinstance(names := run.manifest.get("changed_on_resume"), list)]
    mixed = [run for run, names in told if "data_sha256" in names]
    found = (
        [f"Resumed on another text than they began with: {ids(mixed)}. Their numbers are of neither."] if mixed else []
    )
    changed = [[words for name, words in CHANGES if name in names] for _, names in told]
    reasons = Counter(words for several in changed for words in several)
    if reasons:
        counts = ", ".join(f"{words}: {count}" for words, count in sorted(reasons.items()))
        found.append(
            f"Resumed under other conditions: {sum(map(bool, changed))} of {len(sweep.runs)} runs ({counts}). Their numbers "
            "are not those of an uninterrupted run bit by bit, but up to rounding."
        )
    return found


def different_texts(tasks: Sequence[Task]) -> list[str]:
    """A note for each task whose runs did not all read the same bytes; none if there are none."""
    found = []
    for one in tasks:
        of_text: dict[str, list[Run]] = {}
        for run in members(one.panel):
            if text_of(run):
                of_text.setdefault(text_of(run), []).append(run)
        if len(of_text) > 1:
            groups = sorted(of_text.values(), key=len, reverse=True)
            found.append(
                f"Different texts on {one.panel.label}, by their sha256: {len(groups[0])} runs read one, and others another: "
                f"{ids([run for group in groups[1:] for run in group])}. Their losses do not compare, and they are not paired."
            )
    return found


def different_windows(tasks: Sequence[Task]) -> list[str]:
    """A note for each task whose variants have different baselines; none if there are none."""
    several = [
        one.panel.label
        for one in tasks
        for item in one.metrics
        if item.key not in one.baselines
        and any(baselines(variant.runs, item, one.rows[item.key][0].scored.lengths) for variant in one.panel.variants)
    ]
    return [
        f"Variants on {label} were tested on different windows, or count different tokens of them: no n-gram model stands "
        "beside all of them, and losses do not compare."
        for label in dict.fromkeys(several)
    ]


def incomplete(scores: Scored) -> list[Run]:
    """The runs without results at a length that other runs of their task have."""
    return [run for run, curve in zip(scores.runs, scores.curve, strict=True) if np.isnan(curve).any()]


def ids(runs: Sequence[Run]) -> str:
    """A text with the ids of some runs."""
    return ", ".join(run.id for run in runs[:20]) + (" ..." if len(runs) > 20 else "")
