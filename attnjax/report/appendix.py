"""The last part of the page: method, protocol, settings, machines, runs, and records that were not used."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attnjax.config.parse import SEEDS
from attnjax.report import intervals
from attnjax.report.formatting import NONE, decimal
from attnjax.report.groups import flat, natural
from attnjax.report.markup import Content, Markup, element, table
from attnjax.report.reach import RISE, SHARE
from attnjax.report.records import Run, Sweep
from attnjax.report.scores import FIT
from attnjax.report.sections import folded, run_link, section
from attnjax.report.summary import Summary

MOST = 500
"""Rows of skipped records that are shown; the rest is counted."""

PRIVATE = (
    "host",
    "process",
    "environment",
    "population",
    "chance",
    "baselines",
    "schema",
    "run",
    "records",
    "attempt_token",
)
"""Manifest fields that say more about a place than about a result, or stand elsewhere in a report."""

MOST_VALUES = 12
LONGEST = 300


def method() -> Markup:
    """The section that explains how the numbers are computed."""
    return section("method", "Method", [element("p", text.replace(" %", "\N{NO-BREAK SPACE}%")) for text in METHOD])


METHOD = (
    "Every number is a function of the stored records alone. The centre of a cell is the median of its runs, at each "
    f"length by itself. With fewer than {intervals.FEWEST} runs what stands beside it is their range, which is no "
    "interval: that of 3 runs holds the median of all runs in 75 % of cases. With more it is the 95 % interval "
    "between two order statistics, interpolated where it would be too wide (Hettmansperger and Sheather 1986): measured "
    "94 to 97 % with 6, 10 and 20 runs of seven distributions, and less, 89 % with 10 runs and 88 % with 7, where half of the "
    "runs score far from the other half. Where most runs have one and the same score there is no interval. Where scores of "
    "single examples were stored, there is also the mean with an interval over runs and examples: the first is about further "
    "runs on these test examples, the second about other examples, too; "
    "of windows of a text about other documents, because windows of one document are alike (Bell and McCaffrey 2002).",
    "Pairs of runs that share their seeds saw the same batches. Of their differences past training there is the mean, "
    "its t interval (over pairs and examples or documents where these were stored), the p of all sign flips, and Holm's "
    "correction for the number of pairs. The probability of improvement (Agarwal et al., arXiv:2108.13264) has the exact p of "
    "the rank-sum test and no interval, because none holds with so few runs. With 3 runs a side that p is never below "
    "0.10. The IQM over several tasks is the mean without the best and the worst quarter of the runs; its interval is "
    "from 50,000 resamples inside every task.",
    "All runs that ended count. A failed run (NaN, out of memory, crash) has the worst score there is: nothing right, "
    f"or an infinite loss. Fitted: how many of them answer at least {FIT:.0%} of the examples within the training "
    f"range exactly, or, of Markov chains, come within {RISE} nats of the best prediction at L; the mean of these runs "
    "alone is what one gets by discarding the others. An encoding of which fewer than half fitted is grey, and neither "
    "ranked nor compared. The best single run grows with the number of runs (best_of.csv), so it is printed beside the "
    "result and is none.",
    "A run counts with its last evaluation. The score past training is its mean over the test lengths beyond the "
    "longest training length, L. The length factor of a run is the largest tested L' / L such that from L to L' its "
    f"loss is at most {RISE} nats above that at L, or its exact match at least {SHARE}; 0 where it does not hold at L. "
    "The area is the mean of that metric over log2(length) from L to the longest tested length. Validation examples "
    "are in no chart and no score: choices were made on them. Chance is what uniform guessing scores. A greedy answer "
    "is exact when, fed the right answer so far, every next token is right; so exact match, free running, equals "
    "teacher-forced exact match, but for encodings that depend on the length of the sequence.",
    "Lines called unigram, bigram and trigram are n-gram models of the training bytes (Witten and Bell 1991), "
    "measured on the same bytes of the same windows. Thin dashes continue the loss at the trained length: what the "
    "model would score if every window were cut to that length. With a sliding window that is exact, because windows "
    "of every length end at the same bytes.",
)


def protocol(sweep: Sweep) -> Markup:
    """The section with the protocol, which was stored before the first run."""
    text = sweep.spec.get("protocol")
    words = text if isinstance(text, str) else "" if text is None else pretty(text)
    return section(
        "protocol", "Protocol", element("pre", words) if words.strip() else element("p", "None was recorded.")
    )


def configs(sweep: Sweep) -> Markup:
    """The settings that all runs share, and those in which they differ."""
    shared, differing = settings([run.config for run in sweep.runs if run.config])
    pairs = [[key, element("td", value, class_="long")] for key, value in shared.items()]
    values = [[key, element("td", ", ".join(several), class_="long")] for key, several in differing.items()]
    return section(
        "configs",
        "Configs",
        table(["differs between runs", "values"], values, "settings that differ", class_="words"),
        folded("The same in all runs", table(["setting", "value"], pairs, "settings in common", class_="words")),
    )


def manifests(sweep: Sweep) -> Markup:
    """The section on code, versions and machines of the runs."""
    shared, differing = settings([public(run.manifest) for run in sweep.runs if run.manifest])
    pairs = [[key, element("td", value, class_="long")] for key, value in shared.items()]
    values = [[key, element("td", few(several), class_="long")] for key, several in differing.items()]
    return section(
        "manifests",
        "Machines and versions",
        folded(
            "The same in all manifests", table(["field", "value"], pairs, "manifest fields in common", class_="words")
        ),
        folded("Different", table(["field", "values"], values, "manifest fields that differ", class_="words")),
    )


def runs(summary: Summary, links: Mapping[str, str]) -> Markup:
    """The table of all planned runs and their final states."""
    rows: list[list[Content]] = []
    placed = set()
    for task in summary.tasks:
        for place, variant in enumerate(task.panel.variants):
            scores = task.rows[task.metrics[0].key][place].scored if task.metrics else None
            known = dict(zip((run.id for run in scores.runs), scores.past, strict=True)) if scores else {}
            placed |= {run.id for run in variant.runs}
            rows += [run_row(run, [task.panel.label, variant.label], known.get(run.id), links) for run in variant.runs]
    rows += [run_row(run, ["", ""], None, links) for run in summary.sweep.runs if run.id not in placed]
    header = ["run", "task", "encoding", "seed", "data seed", "state", "reason", "past training"]
    return section("runs", "Runs", folded(f"All {len(rows)} runs", table(header, rows, "runs", class_="words")))


def run_row(run: Run, where: list[str], score: float | None, links: Mapping[str, str]) -> list[Content]:
    """One run."""
    seeds = [seed(run.config.get(name)) for name in ("seed", "data_seed")]
    return [run_link(run.id, links), *where, *seeds, run.state, run.remark[:300], decimal(score)]


def seed(value: Any) -> str:
    """A seed as text."""
    return str(value) if isinstance(value, int) else NONE


def skipped(sweep: Sweep) -> Markup:
    """The section on records that were not used."""
    if not sweep.skipped:
        return section("skipped", "Skipped records", element("p", "Nothing was skipped."))
    rows = [
        [note.path[:200], "" if note.line is None else str(note.line), note.reason] for note in sweep.skipped[:MOST]
    ]
    more = len(sweep.skipped) - len(rows)
    text = f"{len(sweep.skipped)} things in the folder were not used{f'; the first {MOST} are listed' if more else ''}."
    return section(
        "skipped",
        "Skipped records",
        element("p", text),
        table(["path", "line", "why"], rows, "skipped", class_="words"),
    )


def settings(records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """({dotted key: value} that all share, {dotted key: all values} for the rest), in order of keys; seeds are not
    told.
    """
    flats = [flat(record) for record in records]
    keys = sorted({key for item in flats for key in item} - {*SEEDS, "schema", ""})
    shared, differing = {}, {}
    for key in keys:
        values = sorted({item.get(key, "unset")[:LONGEST] for item in flats}, key=natural)
        if len(values) == 1:
            shared[key] = values[0]
        else:
            differing[key] = values
    return shared, differing


def public(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without fields that name a place or a person."""
    return {key: value for key, value in manifest.items() if key not in PRIVATE}


def few(values: Sequence[str]) -> str:
    """Some of the values, and how many there are."""
    shown = ", ".join(values[:MOST_VALUES])
    return shown if len(values) <= MOST_VALUES else f"{shown} ... ({len(values)} different values)"


def pretty(value: Any) -> str:
    """A nested value as indented JSON."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
