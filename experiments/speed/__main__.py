"""Measure speed and memory beside other libraries, on this machine.

    python -m experiments.speed                                    all suites
    python -m experiments.speed attention memory --out results/attention
    python -m experiments.speed --smoke                            the smallest sizes: agreement, bytes, numbers of programs
    python -m experiments.speed --torch .venv-torch/bin/python
    python -m experiments.speed gpu --lengths 1024 4096 --torch python3
    python -m experiments.speed --render runs/bench                table and figure again, without measuring

Writes speed.jsonl, each row as soon as it is measured, then speed.md and, if matplotlib is installed, speed.png and speed.svg.
An earlier speed.jsonl is kept as speed.before.jsonl. Let nothing else run on the machine meanwhile. The exit status is 1 if a
suite failed, or with --smoke our numbers differ from those of another library, and 2 for a mistake of the user.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from attnjax.cli import argument_types as types
from experiments.speed.command import bench


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or render, as the arguments say; returns the exit status."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m experiments.speed", description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("suites", nargs="*", metavar="SUITE", help="what to measure, see --list; default: all")
    add("--list", action="store_true", help="list the suites and do nothing")
    add("--smoke", action="store_true", help="use the smallest sizes, at which times mean nothing")
    add("--out", type=pathlib.Path, metavar="DIR", help="folder of results; default: runs/bench")
    add("--torch", metavar="PYTHON", help="interpreter of an environment that has PyTorch")
    add("--lengths", nargs="+", type=types.count, metavar="T", help="measure at these lengths only")
    add("--rounds", type=types.count, metavar="N", help="largest number of rounds of a comparison; default: 15")
    add("--seconds", type=types.seconds, metavar="S", help="seconds after which no new round starts; default: 30")
    add("--render", type=pathlib.Path, metavar="DIR", help="write table and figure from the record in a folder")
    try:
        return bench(parser.parse_args(arguments))
    except (ValueError, OSError) as error:
        print(f"speed: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
