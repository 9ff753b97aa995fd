"""Differences between runs in bfloat16 and the same runs in float32, with the verdicts of the protocol in configs/bfloat16.py.

    attnjax sweep bfloat16
    python scripts/keep_records.py runs/bfloat16 experiments/bfloat16
    python -m experiments.bfloat16 experiments/bfloat16        reads records/ there and writes differences.md beside it

The interval of the mean of R differences is the t interval of `attnjax.report.intervals.of_mean`, for 6 pairs or more.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnjax.report.formatting import markdown_table
from attnjax.report.intervals import FEWEST, of_mean
from attnjax.report.records import Run, read
from attnjax.typing import Float

METRIC, TRAINED, MARGIN = "loss_sliding", 64, 0.05
NAMES = {"rope": "RoPE", "alibi": "ALiBi", "sinusoidal": "Sinusoidal", "nope": "NoPE"}


class Difference(NamedTuple):
    """The mean difference of pairs of runs, and its interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the protocol calls it."""
        if self.low >= -MARGIN and self.high <= MARGIN:
            return "the same"
        return "undecided" if self.low <= 0 <= self.high else "changed"


def difference(pairs: Float[np.ndarray, " R"]) -> Difference:
    """Return the mean of differences and its t interval. Raises ValueError for fewer than 6, which have none."""
    if len(pairs) < FEWEST:
        raise ValueError(f"an interval needs {FEWEST} pairs of runs or more, got {len(pairs)}")
    found = of_mean(pairs)
    return Difference(found.value, found.low, found.high)


def losses(runs: Sequence[Run]) -> dict[tuple[str, str], Float[np.ndarray, "R X"]]:
    """Return the losses by encoding and policy, a row per seed in order and a column per length.

    Raises ValueError where a run did not end, so that none is left out, and where there is not one cell of each encoding
    under each policy.
    """
    names = [
        (run.config["model"]["encoding"]["name"], run.config["train"]["dtype_policy"], run.config["seed"])
        for run in runs
    ]
    if {policy for _, policy, _ in names} != {"float32", "bfloat16"} or len(set(names)) < len(names):
        raise ValueError("the runs must be of one cell of each encoding under each policy, float32 and bfloat16")
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in runs:
        if run.state != "done":
            raise ValueError(f"run {run.id} is {run.state}: the comparison is of all runs of the sweep")
        cell = run.config["model"]["encoding"]["name"], run.config["train"]["dtype_policy"]
        rows = sorted(
            (row.length, row.value) for row in run.final if row.metric == METRIC and row.split != "validation"
        )
        found.setdefault(cell, {})[run.config["seed"]] = [value for _, value in rows]
    if len({tuple(sorted(seeds)) for seeds in found.values()}) > 1 or len(found) < 2 * len({name for name, _ in found}):
        raise ValueError("the cells do not have the same seeds, so that runs cannot be paired")
    return {cell: np.array([seeds[seed] for seed in sorted(seeds)]) for cell, seeds in found.items()}


def page(runs: Sequence[Run]) -> str:
    """Return the two tables: what decides, and each length."""
    found, lengths = losses(runs), sorted({row.length for row in runs[0].final if row.metric == METRIC})
    past = np.array(lengths) > TRAINED
    summary, each = [], []
    for name in (name for name in NAMES if (name, "float32") in found):
        full, half = found[name, "float32"], found[name, "bfloat16"]
        of = difference((half - full)[:, past].mean(1))
        means = [f"{loss[:, past].mean():.3f}" for loss in (full, half)]
        spread = f"{full[:, past].mean(1).std(ddof=1):.3f}"
        summary.append([NAMES[name], *means, spread, _told(of), of.verdict])
        each.append([NAMES[name], *(_told(difference(column)) for column in (half - full).T)])
    header = ["encoding", "float32", "bfloat16", "std. over seeds", "bfloat16 - float32", "verdict"]
    by_length = markdown_table(["encoding", *(f"{n:,}" for n in lengths)], each)
    beyond = ", ".join(str(n) for n in np.array(lengths)[past])
    return (
        f"Loss past training ({beyond} bytes; trained on {TRAINED}), nats per byte, mean "
        f"of {len(full)} seeds, and the mean difference of pairs with its 95 % t interval.\n\n"
        f"{markdown_table(header, summary)}\nThe difference at each tested length.\n\n{by_length}"
    )


def _told(of: Difference) -> str:
    return f"{of.mean:+.4f} [{of.low:+.4f}, {of.high:+.4f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bfloat16", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", type=pathlib.Path, help="a folder with records/")
    folder = parser.parse_args(arguments).experiment
    try:
        runs = read(folder / "records").runs
        if not runs:
            raise ValueError(f"{folder / 'records'} has no runs")
        (folder / "differences.md").write_text(page(runs))
    except (ValueError, OSError) as error:
        print(f"bfloat16: error: {error}", file=sys.stderr)
        return 2
    print(folder / "differences.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
