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

from experiments import recorded
from experiments.reading_positions import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reading_positions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = pathlib.Path
    parser.add_argument("--runs", type=folder, default=folder("runs/heads_lm"), help="a sweep of trained runs")
    parser.add_argument("--out", type=folder, default=folder("runs/reading_positions"), help="for records and page")
    parser.add_argument("--render", type=folder, help="measure nothing; write the page of the records in this folder")
    parser.add_argument("--documents", type=int, default=128, help="windows of the test split (128)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.render is None:
            from experiments.reading_positions.measuring import measure_sweep

            measure_sweep(chosen.runs, chosen.out / recorded.RECORDS, chosen.documents)
        made = page.render(chosen.render or chosen.out)
    except ValueError as error:
        print(f"reading_positions: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, made)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
