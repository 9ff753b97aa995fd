"""Does RoPE break where a pair first shows an unseen phase? Correlations over bases, and clamps of pairs of trained models.

    attnjax sweep unseen_phase --workers 2 --population 24                  trains 288 runs into runs/unseen_phase
    python -m experiments.unseen_phase --runs runs/unseen_phase             measures them, into runs/unseen_phase_measured
    python -m experiments.unseen_phase --render experiments/unseen_phase    page and figure from the records alone

Every run is in records.jsonl before the next is measured: the same command goes on where it was stopped.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from experiments import command, recorded
from experiments.unseen_phase import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status."""
    parser = command.parser("unseen_phase", __doc__, "runs/unseen_phase_measured")
    runs = pathlib.Path("runs/unseen_phase")
    parser.add_argument("--runs", type=pathlib.Path, default=runs, help="the sweep, with checkpoints")
    parser.add_argument("--windows", type=int, default=64, help="windows that clamps are tested on (64)")
    return command.run(parser, measure, page.render, arguments)


def measure(chosen: argparse.Namespace) -> None:
    """Append the records that are missing."""
    from experiments.unseen_phase.measuring import measure_sweep

    measure_sweep(chosen.runs, chosen.out / recorded.RECORDS, chosen.windows)


if __name__ == "__main__":
    sys.exit(main())
