"""Curves with bands: a score against length, and the training loss against steps."""

import numpy as np
from jaxtyping import Float

from attnjax.report import statistics
from attnjax.report.groups import Variant
from attnjax.report.summary import Curve

POINTS = 200
"""Most points of a learning curve."""


def curve(variant: Variant, x: Float[np.ndarray, " X"], scores: Float[np.ndarray, "R X"]) -> Curve:
    """IQM and interval at every x; NaN is a run without a value there, and points without any run are left out."""
    present = np.sum(~np.isnan(scores), axis=0)
    ranked = np.sort(scores, axis=0)
    ends = np.full((3, len(x)), np.nan)
    for runs in sorted({int(n) for n in present} - {0}):
        here = present == runs
        ends[:, here] = statistics.curve_iqm(ranked[:runs, here], statistics.resample([runs])[0])
    kept = present > 0
    value, low, high = ends[:, kept]
    return Curve(variant, x[kept], value, low, high, present[kept].astype(float))


def learning(variant: Variant) -> Curve:
    """Training loss against steps; failed runs count until they fail, and a loss that is not finite is infinite."""
    losses = [{step: loss if np.isfinite(loss) else np.inf for step, loss in run.losses} for run in variant.runs]
    steps = thinned(sorted({step for found in losses for step in found}))
    table = np.array([[found.get(step, np.nan) for step in steps] for found in losses])
    return curve(variant, np.array(steps, float), table.reshape(len(losses), len(steps)))


def thinned(steps: list[int]) -> list[int]:
    """At most `POINTS` of the steps, equally far apart in the list, the first and the last among them."""
    places = np.linspace(0, len(steps) - 1, min(len(steps), POINTS)).astype(int)
    return [steps[place] for place in dict.fromkeys(places.tolist())]
