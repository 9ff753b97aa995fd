"""Length factors of two families of bases of RoPE, and the differences that the protocol names.

The protocol, with every threshold, is the docstring of configs/first_unseen_wavelength.py, written before the runs.
"""

from typing import Any

import numpy as np
import pandas as pd

from attnjax.report.metrics import metric
from attnjax.report.scores import RISE, length_factor
from attnjax.report.significance import holm, sign_flip_above
from experiments.study import Frame, baselines, curves, load, markdown, mean

NAME = "first_unseen_wavelength"
TRAINED, PAIRS = 64, 8
CONTRASTS = {
    "crossing": ((3, 2.8), (2, 1.4)),
    "pair 3": ((3, 2.8), (3, 1.4)),
    "pair 2": ((2, 2.8), (2, 1.4)),
    "dip": ((2, 1.05), (2, 1.4)),
}
"""What is less what, each a pair and its onset over the trained length; all are predicted to be above 0."""
LOOKS = {3: ("#074a8d", "o", -0.03), 2: ("#9a3104", "s", 0.03)}
"""Colour and marker of each family, and how far beside their onset its runs are drawn."""


def onset(theta: float) -> tuple[int, float]:
    """Returns the pair with the shortest wavelength above the trained length, and that wavelength over the length.

    Example:
      >>> onset(41353.476), onset(1195.845)
      ((2, 1.4), (3, 1.4))
    """
    turns = 2 * np.pi * theta ** (np.arange(PAIRS) / PAIRS) / TRAINED
    pair = int(np.argmax(turns > 1))
    return pair, round(float(turns[pair]), 3)


def factors() -> Frame:
    """Returns the length factor of the excess of each run: a row per seed, a column per (pair, onset, base).

    The excess is the loss above that of the best prediction. A run whose excess at the trained length is above 0.05 nats
    did not fit, and is NaN.
    """
    losses = curves(load(NAME), "model.encoding.options.theta", metric="loss_sliding")
    excess = losses - baselines(NAME).set_index("length").bigram
    found: Frame = length_factor(excess, TRAINED, metric("loss")).where(excess[TRAINED] <= RISE).unstack(0)
    found.columns = pd.MultiIndex.from_tuples([(*onset(theta), theta) for theta in found])
    return found.sort_index(axis=1)


def differences(factors: Frame) -> dict[str, np.ndarray]:
    """Returns the differences of each contrast, of the seeds of which both runs fitted."""
    found = factors.droplevel(2, axis=1)
    return {name: (found[one] - found[other]).dropna().to_numpy() for name, (one, other) in CONTRASTS.items()}


def tables() -> dict[str, str]:
    """Returns the tables of the page."""
    known: Frame = factors()
    bases = {(pair, r): f"{theta:,.0f} (pair {pair}, {r:g} L)" for pair, r, theta in known}
    found = differences(known)
    p = holm([sign_flip_above(values) for values in found.values()])
    contrasts = pd.DataFrame(
        [
            (f"{name}: base {bases[one]} less {bases[other]}", mean(found[name]), len(found[name]), adjusted)
            for (name, (one, other)), adjusted in zip(CONTRASTS.items(), p, strict=True)
        ],
        columns=["", "difference of length factors", "pairs of seeds", "p (Holm)"],
    )
    cells = pd.DataFrame(
        [
            (f"{theta:,.0f}", str(pair), f"{r:.2f}", f"{values.count()} of {len(values)}", mean(values.dropna()))
            for (pair, r, theta), values in known.items()
        ],
        columns=["base", "pair with the onset", "onset / L", "runs that fitted", "length factor"],
    )
    by_onset = known.droplevel(2, axis=1)
    families: Frame = sum(by_onset[2, r] - by_onset[3, r] for r in (1.4, 2.0, 2.8)) / 3
    ends = [" and ".join(f"{by_onset[pair, r].mean():.2f}" for pair in (3, 2)) for r in (1.4, 2.8)]
    return {
        "contrasts": markdown(contrasts),
        "cells": markdown(cells),
        "families": mean(families.dropna()),
        "ends": f"{ends[0]} at an onset of 1.4, {ends[1]} at 2.8",
    }


def figure() -> Any:
    """Returns one panel: a line for each family, and beside it a mark for each length factor, as large as it has runs."""
    from attnjax.report.drawing import new_figure

    known: Frame = factors()
    made, (axis,) = new_figure(6.0, 4.0)
    for pair, (color, marker, beside) in LOOKS.items():
        family = known[pair].droplevel(1, axis=1)
        for r, values in family.items():
            counts = values.value_counts()
            axis.scatter(
                np.full(len(counts), r + beside), counts.index, 12 * counts, color, marker=marker, alpha=0.4, lw=0
            )
        bases = known[pair].columns.get_level_values(1)
        axis.plot(family.columns, family.mean(), f"{marker}-", color=color, markeredgecolor="white")
        text = f"pair {pair}: bases\n{min(bases):,.0f} to {max(bases):,.0f}"
        axis.annotate(text, (2.8, family[2.8].mean()), (8, 0), textcoords="offset points", color=color, va="center")
    axis.set(xlim=(0.95, 3.5), xlabel="onset / L: first unseen wavelength over trained length", ylabel="length factor")
    return made
