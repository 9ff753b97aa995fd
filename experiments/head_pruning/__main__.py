"""What does a trained language model lose with its heads? They are removed, and the loss measured on held-out text.

    attnjax sweep heads_lm --workers 2                                    trains the models into runs/heads_lm
    python -m experiments.head_pruning --runs runs/heads_lm               measures them and writes runs/head_pruning
    python -m experiments.head_pruning --render experiments/head_pruning  page, tables and figures from the records alone

Every run is in records.jsonl before the next is measured: the same command goes on where it was stopped.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from experiments import command
from experiments.head_pruning import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status."""
    parser = command.parser("head_pruning", __doc__, "runs/head_pruning")
    parser.add_argument(
        "--runs", type=pathlib.Path, default=pathlib.Path("runs/heads_lm"), help="a sweep of trained runs"
    )
    parser.add_argument("--documents", type=int, default=64, help="windows of each split (64)")
    parser.add_argument("--orders", type=int, default=8, help="random orders, the control (8)")
    return command.run(parser, measure, page.render, arguments)


def measure(chosen: argparse.Namespace) -> None:
    """Append the records that are missing."""
    from experiments.head_pruning.measuring import measure_sweep

    measure_sweep(chosen.runs, chosen.out / page.RECORDS, documents=chosen.documents, orders=chosen.orders)


if __name__ == "__main__":
    sys.exit(main())
