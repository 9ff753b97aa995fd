"""README.md and figure of the experiment, from the records alone."""

import pathlib
from typing import Any

import numpy as np

from attnjax.report.drawing import new_figure, save, settings
from attnjax.report.formatting import NONE, decimal, interval, markdown_table, probability
from attnjax.report.reach import RISE
from experiments import recorded
from experiments.first_unseen_wavelength.results import (
    CONTRASTS,
    FEWEST_PAIRS,
    Cell,
    Results,
    fitted,
    mean_of,
    read,
)

PAGE = """# Does RoPE last as long as the first wavelength that training has not seen?

{claim}

Pair k of RoPE goes around once in its wavelength of 2 pi theta^(2k/d) tokens. The *onset* of a base is the shortest wavelength
above the trained length L. As the base grows the onset grows too, until the next pair passes L and it falls back to L. Two
families of bases have the same onsets here: in the first it is the wavelength of pair 3, in the second that of pair 2, and the
bases are 35 to 87 times as large. Task: Markov chains that every sequence draws anew, where the best prediction is known;
*excess* is the loss above it. The protocol, with contrasts and thresholds, was written before the runs, of which the seeds are
fresh: [configs/first_unseen_wavelength.py](../../configs/first_unseen_wavelength.py). The question comes from the records of
[unseen_phase](../unseen_phase/), which gave no verdict.

{results}## What others found

Looked up on 2026-11-27 in stored copies of documentation, web pages and GitHub threads. The web itself, papers of which no copy
is stored, and what appeared after the copies were made could not be searched.

* **Liu et al. 2024** (arXiv:2310.05209) bound the extrapolation of a model by the wavelength of its *critical dimension*, the
  first pair that training has not seen around, and support it with LLaMA 2, fine-tuned with other bases. Here models are
  trained from scratch, and bases are chosen so that onset and base are told apart.
* **Bases against length**: Men et al. 2024 (arXiv:2405.14591) find a least base for a context length; a submission of 2025
  (openreview.net/forum?id=PR1PPxvG9Q) that a base fitted to the trained length extrapolates better than a larger one. Both are
  about the base, along which the onset rises and falls again.
* **Damping the pairs past the trained length** mends trained models: Resonance RoPE (arXiv:2403.00071), clipped RoPE
  (arXiv:2602.05258), RoPE-ID (arXiv:2603.18017).
* **What we did not find**: models from scratch whose bases have the same onset by different pairs, or one base above another
  whose onset is below it.

## Make it again

```sh
attnjax sweep first_unseen_wavelength --workers 2 --population 28
python -m experiments.first_unseen_wavelength --out experiments/first_unseen_wavelength
python -m experiments.first_unseen_wavelength --render experiments/first_unseen_wavelength      # from the records alone
```

{made}
"""
RESULTS = """![Length factor of two families of bases against their onset](figure.png)

*Length factor against onset / L. Lines: means of the runs that fitted. Pale marks beside them: the runs with a length
factor, which is one of the tested lengths over L; the area of a mark is proportional to their number.*

{contrasts}
All four are predicted to be above 0, and the verdict needs the first three. The length factor is the largest tested L'/L up to
which the excess stays within {rise} nats of that at L. Differences are paired by seed, with their 95 % t interval where there
are six or more; p is one-sided, of all sign flips. Of fewer than {pairs} pairs nothing is shown.

At equal onset, mean over 1.4, 2 and 2.8, the larger bases less the smaller: {families}. Nothing was predicted of it.

{cells}
Trained at L = {trained}, {seeds} seeds. A run whose excess at L is above {rise} nats has not fitted, and is in no mean and in
no pair. All numbers are in [records.jsonl](records.jsonl).

"""
CLAIMS = {
    "onset": "By the protocol, from an onset of 1.4 L up the length factor follows the onset, also where that orders two "
    "bases against their size",
    "not shown": "By the protocol, it is not shown that from an onset of 1.4 L up the length factor follows the onset",
}
LOOKS = {3: ("#074a8d", "o", -0.03), 2: ("#9a3104", "s", 0.03)}
"""Colour and marker of each family, by the pair that has the onset, and how far beside their onset its runs are drawn."""
AREA = 12
"""Of the mark of one run, in square points."""


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md and the figure from the records in a folder. Raises ValueError where they are missing or damaged."""
    return recorded.render(folder, read, {"README.md": page}, draw)


def page(results: Results) -> str:
    """The text of README.md."""
    made = f"{recorded.measured_on(results.about)}."
    return PAGE.format(claim=claim(results), results=section(results), made=made)


def claim(results: Results) -> str:
    """The verdict, and the contrast that tells onset and base apart."""
    small, large = (results.bases[cell] for cell in CONTRASTS["crossing"])
    least = results.bases[CONTRASTS["dip"][0]]
    found, dip = (interval(mean_of(results.differences[name]), 2) for name in ("crossing", "dip"))
    shown = "" if results.shown("dip") else "not "
    return (
        f"**Claim.** {CLAIMS[results.verdict]}. The length factor of base {small:,.0f}, whose onset is 2.8 L, less that of "
        f"base {large:,.0f}, whose onset is 1.4 L, is {found}. That a base whose onset is right above L lasts longer "
        f"than one at 1.4 L, against this order, is {shown}shown, by one pair of bases: {least:,.0f}, at 1.05 L, less "
        f"{large:,.0f} is {dip}."
    )


def section(results: Results) -> str:
    """Tables and figure."""
    contrasts = [
        [
            f"{name}: {told(results, one)} less {told(results, other)}",
            interval(mean_of(results.differences[name]), 2),
            str(len(results.differences[name])),
            probability(results.p[name]),
        ]
        for name, (one, other) in CONTRASTS.items()
    ]
    rows = [
        [
            f"{results.bases[cell]:,.0f}",
            str(cell[0]),
            decimal(cell[1], 2),
            f"{len(values)} of {len(results.seeds)}",
            interval(mean_of(values), 2),
        ]
        for cell, values in fitted(results)
    ]
    header = ["base", "pair with the onset", "onset / L", "runs that fitted", "length factor"]
    return RESULTS.format(
        contrasts=markdown_table(["", "difference of length factors", "pairs of seeds", "p (Holm)"], contrasts),
        rise=RISE,
        pairs=FEWEST_PAIRS,
        families=interval(mean_of(results.families), 2) if len(results.families) else NONE,
        cells=markdown_table(header, rows),
        trained=results.trained,
        seeds=len(results.seeds),
    )


def told(results: Results, cell: Cell) -> str:
    """A cell in words."""
    return f"base {results.bases[cell]:,.0f} (pair {cell[0]}, {cell[1]:g} L)"


def draw(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write figure.png and figure.svg. Raises ValueError where matplotlib is not installed."""
    with settings():
        return save(panel(results), folder / "figure")


def panel(results: Results) -> Any:
    """One panel: a line for each family, and beside it a mark for each length factor, as large as it has runs."""
    figure, (axis,) = new_figure(6.0, 4.0, 1, 1)
    for pair, (color, marker, beside) in LOOKS.items():
        cells = [(cell[1], values) for cell, values in fitted(results) if cell[0] == pair and len(values)]
        for onset, values in cells:
            factors, runs = np.unique(values, return_counts=True)
            place = np.full(len(factors), onset + beside)
            axis.scatter(place, factors, AREA * runs, color, marker=marker, alpha=0.4, linewidths=0)
        bases = [results.bases[cell] for cell in results.factors if cell[0] == pair]
        label = f"pair {pair}: bases {min(bases):,.0f} to {max(bases):,.0f}"
        means = [float(values.mean()) for _, values in cells]
        axis.plot([onset for onset, _ in cells], means, f"{marker}-", color=color, markeredgecolor="white", label=label)
    axis.set_xlabel("onset / L: first unseen wavelength over trained length")
    axis.set_ylabel("length factor")
    axis.legend()
    return figure
