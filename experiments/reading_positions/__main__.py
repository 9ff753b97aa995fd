"""What do trained models know of positions? Probes of hidden states, rotary frequencies in use, and biases, of a sweep of text.

    attnjax sweep heads_lm --workers 2                                         trains the models into runs/heads_lm
    python -m experiments.reading_positions --runs runs/heads_lm               measures them, into runs/reading_positions
    python -m experiments.reading_positions --render experiments/reading_positions    page and figure from the records alone

Every run is in records.jsonl before the next is measured: the same command goes on where it was stopped.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from experiments import command, recorded
from experiments.reading_positions import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status."""
    parser = command.parser("reading_positions", __doc__, "runs/reading_positions")
    parser.add_argument(
        "--runs", type=pathlib.Path, default=pathlib.Path("runs/heads_lm"), help="a sweep of trained runs"
    )
    parser.add_argument("--documents", type=int, default=128, help="windows of the test split (128)")
    return command.run(parser, measure, page.render, arguments)


def measure(chosen: argparse.Namespace) -> None:
    """Append the records that are missing."""
    from experiments.reading_positions.measuring import measure_sweep

    measure_sweep(chosen.runs, chosen.out / recorded.RECORDS, chosen.documents)


if __name__ == "__main__":
    sys.exit(main())
