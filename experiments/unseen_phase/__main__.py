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

from experiments import recorded
from experiments.unseen_phase import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.unseen_phase",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = pathlib.Path
    parser.add_argument("--runs", type=folder, default=folder("runs/unseen_phase"), help="the sweep, with checkpoints")
    parser.add_argument("--out", type=folder, default=folder("runs/unseen_phase_measured"), help="for records and page")
    parser.add_argument("--render", type=folder, help="measure nothing; write the page of the records in this folder")
    parser.add_argument("--windows", type=int, default=64, help="windows that clamps are tested on (64)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.render is None:
            from experiments.unseen_phase.measuring import measure_sweep

            measure_sweep(chosen.runs, chosen.out / recorded.RECORDS, chosen.windows)
        made = page.render(chosen.render or chosen.out)
    except ValueError as error:
        print(f"unseen_phase: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, made)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
