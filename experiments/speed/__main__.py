"""Measure speed beside other libraries on this machine.

    python -m experiments.speed attention          `attend` beside jax.nn and Flax, the price of encodings, memory
    python -m experiments.speed training           training steps beside a plain loop
    python -m experiments.speed start              from a command to its first step, and the whole main job
    python -m experiments.speed gpu --lengths 4096 attention in bfloat16 beside the kernels of jax.nn
    python -m experiments.speed attention --smoke  the smallest sizes: whether results agree; times mean nothing

Appends to records.csv and runs.csv of a folder. Let nothing else run on the machine meanwhile. The exit status is 1 where
a peer's results differ from ours, and 2 for a mistake of the user. `python -m experiments.study speed` makes the page.
"""

import argparse
import importlib
import pathlib
import sys
from collections.abc import Sequence

from attnjax.cli import argument_types as types
from experiments.speed.timing import Table

SUITES = ("attention", "training", "start", "gpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures one suite and returns the exit status."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m experiments.speed", description=__doc__, formatter_class=raw)
    parser.add_argument("suite", choices=SUITES, help="what to measure")
    parser.add_argument("--smoke", action="store_true", help="use the smallest sizes")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/speed"), help="folder (runs/speed)")
    parser.add_argument("--lengths", nargs="+", type=types.count, metavar="T", help="measure at these lengths only")
    parser.add_argument("--rounds", type=types.count, metavar="N", help="largest number of rounds of a comparison (15)")
    parser.add_argument("--seconds", type=types.seconds, metavar="S", help="begin no round after this time (30)")
    chosen = parser.parse_args(arguments)
    rounds, seconds = (3, 1.0) if chosen.smoke else (15, 30.0)
    options = {"rounds": chosen.rounds or rounds, "seconds": chosen.seconds or seconds, "smoke": chosen.smoke}
    try:
        lengths = [f"--lengths {' '.join(map(str, chosen.lengths))}"] if chosen.lengths else []
        given = [f"--{name}" for name in ("smoke",) if chosen.smoke]
        given += [f"--{name} {value:g}" for name in ("rounds", "seconds") if (value := getattr(chosen, name))]
        table = Table.begin(chosen.out, " ".join([chosen.suite, *lengths, *given]), **options)
        wrong = importlib.import_module(f"experiments.speed.{chosen.suite}").measure(table, chosen.lengths)
    except (ValueError, OSError) as error:
        print(f"speed: error: {error}", file=sys.stderr)
        return 2
    print(f"{wrong} peers disagree" if wrong else table.folder / "records.csv")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
