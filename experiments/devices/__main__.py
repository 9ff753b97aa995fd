"""What compiles for accelerators that are not here: gradients of attention under every encoding, for H100 and TPU v5e and v6e.

    pip install 'attnjax[compile]'
    python -m experiments.devices                                   compiles what has no record yet, into runs/devices
    python -m experiments.devices --encodings rope t5               some encodings only
    python -m experiments.devices --render experiments/devices      the page, from the records alone

Nothing runs. Every case is in records.jsonl before the next is compiled: the same command goes on where it was stopped.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from experiments import recorded
from experiments.devices import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile and render, or render only; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.devices", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = pathlib.Path
    parser.add_argument("--out", type=folder, default=folder("runs/devices"), help="where records and page go")
    parser.add_argument("--render", type=folder, help="compile nothing; write the page of the records in this folder")
    parser.add_argument("--encodings", nargs="+", metavar="NAME", help="these only; default: all")
    parser.add_argument("--targets", nargs="+", metavar="KIND:SIZES", help="topologies of eight devices; default: all")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.render is None:
            from experiments.devices.compiling import compile_all

            compile_all(chosen.out / recorded.RECORDS, chosen.encodings, chosen.targets)
        made = recorded.render(chosen.render or chosen.out, page.read, {"README.md": page.readme}, lambda *_: [])
    except ValueError as error:
        print(f"devices: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, made)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
