"""What compiles for accelerators that are not here: attention, training, evaluation and all configs, for H100s and TPUs.

    pip install 'attnjax[compile]'
    python -m experiments.devices                                   compiles what has no record yet, into runs/devices
    python -m experiments.devices --out experiments/devices --again     the committed records, where sources changed since
    python -m experiments.devices --kinds data ring --names rope t5    some cases only
    python -m experiments.devices --selection --check               what CI compiles, beside the committed records
    python -m experiments.devices --render experiments/devices      the page, from the records alone

Nothing runs. Every case is in records.jsonl before the next is compiled: the same command goes on where it was stopped. The
exit status is 1 where a program is refused or takes more memory than its budget, or with --check is worse than its record.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from experiments import recorded

HERE = pathlib.Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile and render, or render only; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.devices", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = pathlib.Path
    parser.add_argument("--out", type=folder, default=folder("runs/devices"), help="where records and page go")
    parser.add_argument("--render", type=folder, help="compile nothing; write the page of the records in this folder")
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help="data, ring, train, evaluate, config; default: all")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="encodings, families, configs; default: all")
    parser.add_argument("--targets", nargs="+", metavar="KIND:SIZES", help="topologies of eight devices; default: all")
    parser.add_argument("--selection", action="store_true", help="the cases that CI compiles, instead of all")
    parser.add_argument("--again", action="store_true", help="compile also what has a record of other sources")
    parser.add_argument("--check", action="store_true", help="record nothing; compare with the committed records")
    chosen = parser.parse_args(arguments)
    wrong: list[str] = []
    try:
        if chosen.render is None:
            wrong = _compile(chosen)
        if not chosen.check:
            from experiments.devices import page

            pages = {"README.md": page.readme}
            made = recorded.render(chosen.render or chosen.out, page.read, pages, lambda *_: [])
            print("\n".join(map(str, made)))
    except (ValueError, OSError) as error:
        print(f"devices: error: {error}", file=sys.stderr)
        return 2
    if chosen.render is None:
        print("\n".join(["", *wrong]) if wrong else "nothing is wrong")
    return 1 if wrong else 0


def _compile(chosen: argparse.Namespace) -> list[str]:
    """Compile what the options say; what is wrong, a line each."""
    import jax

    # Compilers are found beside the platform that computes, and plugins of absent devices are not asked to start.
    jax.config.update("jax_platforms", "cpu")
    from experiments.devices import cases, checking, compiling

    wanted = cases.chosen(chosen.kinds, chosen.names, chosen.targets)
    if chosen.selection:
        selection = set(cases.selection())
        wanted = [one for one in wanted if one in selection]
    if chosen.check:
        return checking.check_all(HERE / recorded.RECORDS, wanted)
    return compiling.compile_all(chosen.out / recorded.RECORDS, wanted, again=chosen.again)


if __name__ == "__main__":
    sys.exit(main())
