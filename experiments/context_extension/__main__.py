"""How far does a model with RoPE read past its training length?

    python -m experiments.context_extension text       trains and measures six models of Python's source
    python -m experiments.context_extension markov     trains and measures ten models of Markov chains

Trains the runs of configs/context_extension.py, where they are not there yet, and appends to OUT/NAME.csv.xz what it does not
hold: the same command goes on where it was stopped.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from attnjax.cli import main as attnjax
from configs.context_extension import LENGTH, PATH


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains and measures; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.context_extension", description=__doc__)
    parser.add_argument("name", choices=("text", "markov"))
    parser.add_argument("--runs", type=pathlib.Path, help="runs of the sweep; default: train them")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/context_extension_measured"))
    chosen = parser.parse_args(arguments)
    runs = chosen.runs
    if runs is None:
        from experiments.context_extension import planting

        runs = pathlib.Path("runs/context_extension" if chosen.name == "text" else "runs/context_extension_markov")
        if chosen.name == "text":
            planting.write(pathlib.Path(PATH), LENGTH)
        if status := attnjax(["run", f"context_extension:{chosen.name}", "--out", str(runs)]):
            return status
    # JAX is imported after training, whose workers set it up for themselves.
    from experiments.context_extension import markov, text
    from experiments.context_extension.reading import runs_of

    path = chosen.out / f"{chosen.name}.csv.xz"
    text.measure(runs_of(runs), path) if chosen.name == "text" else markov.measure(runs_of(runs), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
