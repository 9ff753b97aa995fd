"""Make rliable.npz: intervals by the authors' library of the statistics that a report prints.

    python -m venv rliable && rliable/bin/pip install rliable==1.2.0 "pandas<3"
    rliable/bin/python tests/golden/make_rliable.py

The library draws from NumPy's legacy generator, whose stream is frozen. Each result was made right after
`numpy.random.seed(SEED)`, so whoever draws the same indices in the same order must get the same numbers: per resample one
array of run indices in the shape of the scores, and for a pair first that of x, then that of y.

Arrays: `x` [7 runs, 3 tasks], `y` [5, 3] with ties between the two; `{x,y}_{iqm,mean}` are (value, low, high) with 50,000
resamples, `x_first_iqm` the same of the first task alone, and `improvement` that of P(x > y) with 2,000.
"""

from pathlib import Path

import numpy as np
from rliable import library, metrics

SEED = 20210813


def interval(scores, statistic, reps):
    """(value, low, high) of one statistic."""
    np.random.seed(SEED)  # noqa: NPY002 (the library draws from it)
    function = lambda *arrays: np.array([statistic(*arrays)])
    points, ends = library.get_interval_estimates({"a": scores}, function, reps=reps)
    return np.array([points["a"][0], *ends["a"][:, 0]])


def main() -> None:
    """Write the file beside this script."""
    generator = np.random.default_rng(3)
    x = np.round(generator.beta(4, 2, size=(7, 3)), 2)
    y = np.round(generator.beta(3, 3, size=(5, 3)), 2)
    y[0] = x[0]
    arrays = {"seed": np.array(SEED), "x": x, "y": y}
    for name, scores in (("x", x), ("y", y)):
        arrays[f"{name}_iqm"] = interval(scores, metrics.aggregate_iqm, 50_000)
        arrays[f"{name}_mean"] = interval(scores, metrics.aggregate_mean, 50_000)
    arrays["x_first_iqm"] = interval(x[:, :1], metrics.aggregate_iqm, 50_000)
    arrays["improvement"] = interval([x, y], metrics.probability_of_improvement, 2_000)
    np.savez(Path(__file__).with_name("rliable.npz"), **arrays)


if __name__ == "__main__":
    main()
