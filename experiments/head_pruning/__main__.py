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

from experiments.head_pruning import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.head_pruning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = pathlib.Path
    parser.add_argument("--runs", type=folder, default=folder("runs/heads_lm"), help="a sweep of trained runs")
    parser.add_argument("--out", type=folder, default=folder("runs/head_pruning"), help="where records and page go")
    parser.add_argument("--render", type=folder, help="measure nothing; write the page of the records in this folder")
    parser.add_argument("--documents", type=int, default=64, help="windows of each split (64)")
    parser.add_argument("--orders", type=int, default=8, help="random orders, the control (8)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.render is None:
            from experiments.head_pruning.measuring import measure_sweep

            measure_sweep(chosen.runs, chosen.out / page.RECORDS, documents=chosen.documents, orders=chosen.orders)
        made = page.render(chosen.render or chosen.out)
    except ValueError as error:
        print(f"head_pruning: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, made)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
