"""README.md of the experiment: question, protocol and what others found; the check and the tables from the records alone."""

import pathlib

import numpy as np

from attnjax.registry import ENCODINGS
from attnjax.report.formatting import NONE, decimal, interval, markdown, markdown_table, probability
from attnjax.report.scores import FIT
from attnjax.typing import Bool
from experiments import recorded
from experiments.policy_placebo.results import POLICIES, Difference, Results, read

PAGE = """# Where positions come from, under six encodings, with a placebo

{claim}

A model is trained on short sequences whose tokens stand at 0, 1, ... (*arange*), at 0, 1, ... from a random start (*offset*),
or at a random sorted sample (*randomized*), so that it sees the positions of longer tests. A random start changes no distance,
so it can do nothing to encodings that see distances alone (RoPE, ALiBi, T5), and no policy does anything without positions
(NoPE): these are placebo cells, negative controls with which the table checks itself. Tests are at 0, 1, ... after arange and
offset, and at a random sorted sample after randomized. The protocol was written before the runs:
[configs/policy_placebo.py](../../configs/policy_placebo.py).

{results}
## What others found

Looked up on 2026-11-24 in stored copies of documentation, web pages, GitHub threads and source code. The web itself, papers of
which no copy is stored, and what appeared after the copies were made could not be searched.

* **Randomized positions** under several encodings are of Ruoss et al. 2023 (arXiv:2305.16843): sinusoidal, learned, RoPE, ALiBi
  and relative positions, in encoders on 15 tasks; each against arange, not against a random start. Random fractional
  positions: Shimizu et al. 2026 (arXiv:2602.14050).
* **Random starts** for absolute positions are of Kiyono et al. 2021 (SHAPE, arXiv:2109.05644) and CAPE; Huang et al. 2025
  (arXiv:2410.02140) train learned positions so.
* **What we did not find**: policies and encodings crossed on one protocol, with cells that cannot differ as a check.

## Make it again

```sh
attnjax sweep policy_placebo --workers 2
python -m experiments.policy_placebo --runs runs/policy_placebo --out experiments/policy_placebo
python -m experiments.policy_placebo --render experiments/policy_placebo      # from the records alone
```

{made}
"""
RESULTS = """![Exact match past training under six encodings and three policies](figure.png)

*Exact match past training, mean over the lengths beyond it. Dots: {seeds} runs; markers: their mean, with its 95 % t
interval (in places below 0 or above 1) or, where not all fit, their range; hollow: the cell did not fit.*

The protocol has means and t intervals, which suppose that scores are nearly normal. Where most runs learn a task and some do
not, they cover less than they say: of samples of six and ten runs of which a fifth fail, 73 and 88 %
([intervals.py](../../attnjax/report/intervals.py)). Where not all runs fit, their range therefore stands in the place of the
interval; the first version of this page had intervals there. The p of sign flips supposes no distribution.

## The check

{check}

{placebo}
## What the policies do

Exact match past training, less that of arange under the same encoding: mean over {seeds} pairs of runs{kind}. In italics: a
cell of the pair did not fit ({fit:.0%} of the answers within the trained lengths, by half of the runs), so that the difference
says nothing. *Pairs*: their range, and in how many both runs fitted; those that did not are in the mean. p: one-sided, of all
sign flips, with Holm's correction over the differences that the protocol tests.

{effects}
What was expected before the runs, and what came out (*above 0* and *below 0*: the interval, or the range, excludes 0):

{expected}

A random sorted sample shows in training the distances of the longer tests as well as their places, which a random start
does not. The tests after it are at such samples, too, as Ruoss et al. have them, so that its cells differ from the others in
the test as well.

## Every cell

Exact match past training, and in brackets behind it within, with how many runs fitted where not all did.

{cells}
All numbers are in [records.jsonl](records.jsonl).

"""

EXPECTED = (
    ("offset", ("learned",), "above 0, on copy less than on unique_copy"),
    ("randomized", ("sinusoidal", "learned"), "above 0"),
    ("randomized", ("rope", "alibi"), "below 0"),
)
"""Policy, encodings and effect of the predictions in the docstring of configs/policy_placebo.py."""


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md from the records in a folder. Raises ValueError where they are missing or damaged."""
    return recorded.render(folder, read, {"README.md": page}, _draw)


def _draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    from experiments.policy_placebo.figure import draw

    return draw(results, folder)


def page(results: Results) -> str:
    """The text of README.md."""
    made = f"{recorded.measured_on(results.about)}."
    return PAGE.format(claim=claim(results), results=results_section(results), made=made)


def claim(results: Results) -> str:
    """The first paragraph."""
    if not results.sound:
        return (
            "**Claim.** None: placebo cells differ, so something in this table is broken, and its effects are not read."
        )
    shown = [one for one in results.differences if one.p is not None and one.p < 0.05]
    told = "; ".join(
        f"{label(one.encoding)} on {markdown(one.task)} by {interval(one.mean)}{without(one.fits)}" for one in shown
    )
    helps = f"A random start in training lifts exact match past training under {told}." if shown else ""
    none = "That a random start in training helps learned or sinusoidal positions past training is not shown."
    return f"**Claim.** {helps or none} The placebo cells pass their check."


def results_section(results: Results) -> str:
    """The check and the tables."""
    placebo, rest = [], []
    for one in results.differences:
        (placebo if one.role == "placebo" else rest).append(row(one))
    kind = ", with the range of them, which is no interval"
    if len(results.seeds) > 5:
        kind = ", with its 95 % t interval or, where not all fit, their range"
    return RESULTS.format(
        check=check(results),
        placebo=markdown_table(["task", "encoding", "policy", "less arange"], [line[:4] for line in placebo]),
        seeds=len(results.seeds),
        kind=kind,
        fit=FIT,
        expected="\n".join(map("* {}".format, expected(results))),
        effects=markdown_table(["task", "encoding", "policy", "less arange", "pairs", "p, Holm"], rest),
        cells=cells(results),
    )


def check(results: Results) -> str:
    """Whether placebo cells are as they must be, in words."""
    nope = "makes no difference at all" if results.zero else "**makes a difference, which it must not**"
    verdict = "pass" if results.sound else "**do not pass**"
    return (
        f"Without positions (NoPE) a policy {nope}. Of the {results.checked} other placebo differences whose cells fitted, "
        f"{results.outside} have an interval that excludes 0 (binomial p = {probability(results.chance)} for as many or more). "
        f"{equal(results)}The placebo cells {verdict}."
    )


def equal(results: Results) -> str:
    """Which placebo differences are 0 in each pair of runs, as where distances are whole numbers that enter exactly."""
    checked = [one for one in results.differences if one.role == "placebo" and one.encoding != "nope" and one.fitted]
    same = [one for one in checked if not one.values.any()]
    if not same:
        return ""
    names = ", ".join(dict.fromkeys(label(one.encoding) for one in same))
    return f"{len(same)} of them ({names}) are exactly 0 in each pair of runs. "


def named(one: Difference) -> str:
    """A difference in a sentence: RoPE on copy (0.592)."""
    return f"{label(one.encoding)} on {markdown(one.task)} ({decimal(one.mean.value)})"


def expected(results: Results) -> list[str]:
    """A line for each prediction of the protocol that a policy lifts or lowers a score: where it did what."""
    lines = []
    for policy, encodings, words in EXPECTED:
        asked = [
            one for one in results.differences if one.policy == policy and one.encoding in encodings and one.fitted
        ]
        parts = []
        for told, chosen in (
            ("above 0", [one for one in asked if one.mean.low > 0]),
            ("below 0", [one for one in asked if one.mean.high < 0]),
            ("interval or range includes 0", [one for one in asked if one.mean.low <= 0 <= one.mean.high]),
        ):
            if chosen:
                parts.append(f"{told} {', '.join(map(named, chosen))}")
        of_task = {one.task: one.mean.value for one in asked}
        if "on copy less" in words and {"copy", "unique_copy"} <= of_task.keys():
            less = "less" if of_task["copy"] < of_task["unique_copy"] else "more, not less,"
            parts.append(f"on copy {less} than on unique_copy")
        lines.append(
            f"**{policy}** under {' and '.join(map(label, encodings))}, expected {words}: {'; '.join(parts) or NONE}."
        )
    return lines


def row(one: Difference) -> list[str]:
    """A line of a table; in italics where a cell did not fit."""
    p = NONE if one.p is None else probability(one.p)
    pairs = f"{decimal(one.values.min(), 2)} to {decimal(one.values.max(), 2)}{without(one.fits)}"
    line = [markdown(one.task), label(one.encoding), one.policy, interval(one.mean), pairs, p]
    return line if one.fitted else [f"*{text}*" for text in line]


def without(fits: Bool[np.ndarray, " S"]) -> str:
    """How many runs fitted, where not all did."""
    return "" if fits.all() else f" ({fits.sum()} of {len(fits)} fitted)"


def cells(results: Results) -> str:
    """Every cell: policies beside each other; in italics those that did not fit."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for (task, encoding, policy), one in results.cells.items():
        fewer = "" if one.fits.all() else f"; {one.fits.sum()} of {len(one.fits)} fitted"
        told = f"{interval(one.mean, 2)} ({one.within.mean():.2f}{fewer})"
        rows.setdefault((task, encoding), {})[policy] = told if one.fitted else f"*{told}*"
    lines = [
        [markdown(task), label(encoding), *(known.get(policy, NONE) for policy in POLICIES)]
        for (task, encoding), known in rows.items()
    ]
    return markdown_table(["task", "encoding", *POLICIES], lines)


def label(encoding: str) -> str:
    """The name of an encoding in tables."""
    return ENCODINGS[encoding].label if encoding in ENCODINGS else markdown(encoding)
