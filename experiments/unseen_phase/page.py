"""README.md of the experiment: question, protocol and what others found; verdicts and tables from the records alone."""

import pathlib

import numpy as np

from attnjax.report.formatting import NONE, decimal, interval, markdown, markdown_table, probability
from attnjax.report.reach import RISE
from attnjax.typing import Float
from experiments import recorded
from experiments.unseen_phase.figure import draw
from experiments.unseen_phase.measuring import FURTHEST
from experiments.unseen_phase.outcomes import correlations
from experiments.unseen_phase.phases import GROUPS, SIGNS, wavelengths
from experiments.unseen_phase.results import FEWEST_BASES, HEAD, Length, Results, mean_of, read

PAGE = """# Does RoPE break where a pair first shows an unseen phase, whatever the base?

{claim}

Pair k of RoPE turns once around in its wavelength of 2 pi theta^(2k/d) tokens. Trained at length L, a pair with a wavelength up
to L has shown all its phases; a slower one shows new phases from the distance L on. 24 bases, from 5.6 to 3.2 million, are
trained at L = 64 and 128 with six seeds each; then single pairs of the trained models are held at the phase that they have at
the distance L - 1. Task: Markov chains that every sequence draws anew, where context pays at every length and the best
prediction is known; *excess* is the loss above it. The protocol, with predictors, statistics and thresholds, was written before
the runs: [configs/unseen_phase.py](../../configs/unseen_phase.py).

| predictor, from the wavelengths alone | rank correlation with the length factor that it predicts |
|---|---|
| base: the longest wavelength | + |
| critical: how many pairs have a wavelength in (L, 4L) | - |
| novelty: the mean of 2 sin(a/2), where the nearest phase that training showed is a radians away, at distances L .. 2L-1 | - |
| onset: the shortest wavelength above L | + |

The bases were chosen so that these can be told apart: over the 24, the rank correlation of novelty with the base is -0.09
(L = 64) and 0.10 (L = 128).

{results}
## What others found

Looked up on 2026-11-24 in stored copies of documentation, web pages, GitHub threads and source code. The web itself, papers of
which no copy is stored, and what appeared after the copies were made could not be searched.

* **The idea is not new.** Liu et al. 2024 (arXiv:2310.05209) call the first pair with a wavelength above the trained length the
  *critical dimension*, and explain with it how fine-tuned LLaMA 2 extrapolates. YaRN (arXiv:2309.00071) and Llama 3 treat pairs
  by their wavelength over L. Men et al. 2024 (arXiv:2405.14591) hold against it: a small base, which has no unseen phase, keeps
  a low perplexity but not the use of context. CoPE (clipped RoPE, arXiv:2602.05258) fades out pairs whose period exceeds the
  trained window, and RoPE-ID (arXiv:2603.18017) rotates a part of the channels only, all of them fast.
* **Changing distances by groups of pairs in a trained model is not new** as a method: DPE (arXiv:2504.18857) detects an
  effective length for each group and rescales its positions; ReRoPE (Su 2023, github.com/bojone/rerope) clamps all pairs.
* **What we did not find**: small models trained from scratch over so many bases with seeds, with predictors that were written
  down before and are nearly uncorrelated, so that base and phases are told apart; and the clamp of one pair at a time, beyond
  the trained distance only, as a test of which pairs break a model.

## Make it again

```sh
attnjax sweep unseen_phase --workers 2 --population 24
python -m experiments.unseen_phase --runs runs/unseen_phase --out experiments/unseen_phase
python -m experiments.unseen_phase --render experiments/unseen_phase      # from the records alone
```

{made}
"""
PARTIAL = {"novelty | base": "novelty given base", "base | novelty": "base given novelty"}
"""Partial rank correlations, by their names in the results, and what the page calls them."""
RESULTS = """![Length factor against base, novelty and onset, effect of clamps](figure.png)

*Length factor, mean of the seeds, against base, novelty and onset; grey: did not fit at L. Bottom right: the effect of clamping
one pair, nats at 4L, against its wavelength, mean over the runs that fitted and broke; below 0 the clamp mends. Shaded:
wavelengths from L to 4L.*

## Which predictor follows the length factor

Spearman's rho over the bases that fitted ({fitted}), times the sign that the predictor has above, mean over seeds. Above 0 it
is as predicted. *Given*: the partial rank correlation, with the other predictor held. The length factor is the largest tested
L'/L up to which the excess stays within {rise} nats of that at L. A base fitted where more than half of its runs did, and all
of its runs count: {runs}.

{correlations}
{afterwards}The same with the rise of the excess from L to 4L, and with the length factor of the loss itself:

{others}
## Which pairs break a model

Effect of holding the phases of pairs beyond the distance L - 1, on the loss at 4L in nats: below 0 the clamp mends. Mean over
the runs that fitted, whose excess rose by more than {rise} and whose base has a critical pair, by seed.

{effects}
Critical pairs less the others, averaged over both L: {p}.

## Every base

{bases}
Cells are the mean over {seeds} seeds{kind}. All numbers are in [records.jsonl](records.jsonl).

"""
AFTERWARDS = """**Looked at afterwards**, which is a question and no result. The base with the lowest length factor has its
first unseen wavelength at {lowest}. Of the {count} bases of both lengths that fitted and
have an onset of {from_} L or more, the length factor has a rank correlation of {onset} with onset / L, and of {base} with the
base.
[first_unseen_wavelength](../first_unseen_wavelength/) asked this of fresh runs, in which the length factor follows
the onset from 1.4 L up.

"""
FROM = 1.3
"""The onset, in trained lengths, from which the length factor seemed to rise with it."""
VERDICTS = {
    "unseen phase": "the length at which models break follows unseen phases, and not the base",
    "base": "the length at which models break follows the base, and not unseen phases",
    "neither": "neither unseen phases nor the base alone follow the length at which models break",
    "none": "too few bases fitted the task for a verdict",
}
CAUSES = {
    "critical pairs": "holding the phases of pairs with a wavelength in (L, 4L) mends, and more than holding those of others",
    "not shown": "it is not shown that the pairs with a wavelength in (L, 4L) break them",
    "none": "which pairs break models is not compared",
}


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md and the figure from the records in a folder. Raises ValueError where they are missing or damaged."""
    return recorded.render(folder, read, {"README.md": page}, draw)


def page(results: Results) -> str:
    """The text of README.md."""
    made = f"{recorded.measured_on(results.about)}; clamps on {results.about['windows']} windows."
    return PAGE.format(claim=claim_of(results), results=results_section(results), made=made)


def claim_of(results: Results) -> str:
    """The verdicts in a sentence, with what is lacking where there are none."""
    verdict, cause = VERDICTS[results.verdict], CAUSES[results.cause]
    if results.verdict == "none":
        verdict += f" ({fitted_of(results)}; {FEWEST_BASES} are needed at each)"
    lost = [(one, int(np.isnan(one.effects["critical"]).sum())) for one in results.lengths]
    seeds = [f"{count} of {len(one.seeds)} seeds at L = {one.trained}" for one, count in lost if count]
    if results.cause == "none" and seeds:
        cause += f" ({', '.join(seeds)} have no run that fitted and then broke)"
    return f"**Claim.** By the protocol, {verdict}; {cause}."


def fitted_of(results: Results) -> str:
    """How many bases fitted at each trained length."""
    return ", ".join(f"{int(one.fits.sum())} of {len(one.bases)} at L = {one.trained}" for one in results.lengths)


def runs_of(one: Length) -> str:
    """How many runs of the bases that fitted did so, and which seeds did under none of them."""
    kept = one.learned[:, one.fits]
    none = [str(seed) for seed, fits in zip(one.seeds, kept, strict=True) if not fits.any()]
    seeds = f", and none of seed{'s' * (len(none) > 1)} {' and '.join(none)}" if none else ""
    return f"at L = {one.trained} {kept.sum()} of the {kept.size} runs of these bases fitted{seeds}"


def results_section(results: Results) -> str:
    """Tables and figure."""
    names = {name: PARTIAL.get(name, name) for name in (*SIGNS, *PARTIAL)}
    header = ["", *(f"L = {one.trained}" for one in results.lengths)]
    rows = [[words, *(cell(one.rho["factor"][name]) for one in results.lengths)] for name, words in names.items()]
    both = [cell(one.rho["factor"]["novelty"] - one.rho["factor"]["base"]) for one in results.lengths]
    words = {"rise": "rise at 4L", "plain": "length factor of the loss"}
    others = [
        [f"{markdown(name)}, {words[outcome]}", *(cell(one.rho[outcome][name]) for one in results.lengths)]
        for outcome in words
        for name in ("base", "novelty")
    ]
    effects = [[name, *(cell(one.effects[name]) for one in results.lengths)] for name in (*GROUPS, "all")]
    p = ", ".join(f"than {name} pairs p = {probability(value)} (Holm)" for name, value in results.p.items())
    seeds = len(results.lengths[0].seeds)
    return RESULTS.format(
        fitted=fitted_of(results),
        runs="; ".join(map(runs_of, results.lengths)),
        correlations=markdown_table(header, [*rows, ["novelty minus base, difference of the two", *both]]),
        afterwards=afterwards(results) if results.verdict == "none" else "",
        others=markdown_table(header, others),
        rise=RISE,
        effects=markdown_table(["clamped", *header[1:]], effects),
        p=p or NONE,
        bases="\n".join(table_of(one) for one in results.lengths),
        seeds=seeds,
        kind=", in brackets its 95 % t interval" if seeds > 5 else ", with the range of them, which is no interval",
    )


def afterwards(results: Results) -> str:
    """What was seen in the figure, in numbers, where the protocol gives no verdict."""
    lowest, kept = [], []
    for one in results.lengths:
        onset, factor = one.predictors["onset"] / one.trained, one.factor.mean(0)
        worst = int(np.where(one.fits, factor, np.inf).argmin())
        lowest.append(f"{onset[worst]:.2f} L at L = {one.trained}")
        there = one.fits & (onset >= FROM) & np.isfinite(onset)
        kept.append(np.array([onset, one.bases, factor])[:, there])
    onsets, bases, factors = np.concatenate(kept, axis=1)
    return AFTERWARDS.format(
        lowest=" and ".join(lowest),
        count=len(factors),
        from_=FROM,
        onset=decimal(correlations(onsets, factors[None])[0], 2),
        base=decimal(correlations(bases, factors[None])[0], 2),
    )


def table_of(one: Length) -> str:
    """The bases of one trained length; in italics those that did not fit."""
    header = [
        f"base, L = {one.trained}",
        "runs that fitted",
        "wavelengths above L",
        "critical",
        "novelty",
        "length factor",
        f"rise at {FURTHEST}L",
    ]
    rows = []
    for x, base in enumerate(one.bases):
        turns = wavelengths(base, HEAD)
        slow = ", ".join(f"{turn:,.0f}" for turn in turns[turns > one.trained]) or NONE
        told = [f"{base:,.4g}" if base < 1e4 else f"{base:,.0f}"]
        told += [f"{one.learned[:, x].sum()} of {len(one.seeds)}", slow, f"{one.predictors['critical'][x]:.0f}"]
        told += [decimal(one.predictors["novelty"][x]), decimal(one.factor[:, x].mean(), 2), cell(one.rise[:, x])]
        rows.append(told if one.fits[x] else [f"*{text}*" for text in told])
    return markdown_table(header, rows)


def cell(values: Float[np.ndarray, " S"]) -> str:
    """The mean over seeds and its interval; a dash where a seed has none."""
    return interval(mean_of(values))
