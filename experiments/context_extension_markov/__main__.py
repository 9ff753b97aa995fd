"""Does context pay past the trained length under methods without training, where more context always can?

    python -m experiments.context_extension_markov                                             trains, measures, renders
    python -m experiments.context_extension_markov --render experiments/context_extension_markov    page and figure alone

The first trains the ten runs of configs/context_extension.py, `markov`, where they are not there yet. Every method is in
records.jsonl before the next is measured: the same command goes on where it was stopped.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from attnjax.cli import main as attnjax
from experiments import command, recorded
from experiments.context_extension_markov import page

CONFIG = "context_extension:markov"
RUNS = pathlib.Path("runs/context_extension_markov")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, measure and render, or render only; returns the exit status."""
    parser = command.parser("context_extension_markov", __doc__, "runs/context_extension_markov_measured")
    parser.add_argument("--runs", type=pathlib.Path, help=f"runs of the sweep; default: train {RUNS}")
    return command.run(parser, measure, page.render, arguments)


def measure(chosen: argparse.Namespace) -> None:
    """Train where nothing was trained, and append the records that are missing.

    Raises ValueError for runs that are not done.
    """
    if chosen.runs is None and attnjax(["sweep", CONFIG, "--out", str(RUNS)]):
        raise ValueError(f"{RUNS} has runs that failed; attnjax list runs {RUNS} says why")
    # JAX is imported after training, whose workers set it up for themselves.
    from attnjax.cli.compilation_cache import keep_programs
    from attnjax.sweep import load
    from experiments.context_extension import subjects
    from experiments.context_extension_markov import measuring

    keep_programs()
    store = load(chosen.runs or RUNS)
    unfinished = [entry.run for entry in store.runs if store.status(entry.run).state != "done"]
    if unfinished:
        raise ValueError(
            f"{chosen.runs or RUNS} has {len(unfinished)} runs that are not done: the comparison is of all"
        )
    found = [subjects.of_run(store.directory(entry.run), "markov") for entry in store.runs]
    measuring.record([found[0].sibling(one) for one in found], chosen.out / recorded.RECORDS)


if __name__ == "__main__":
    sys.exit(main())
