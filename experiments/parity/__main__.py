"""Every architecture against transformers: outputs, loss, gradients, caches, generation, and the way there and back.

    python -m experiments.parity                              measures what is missing in experiments/parity/parity.jsonl
    python -m experiments.parity --out runs/parity            elsewhere
    python -m experiments.parity --render experiments/parity  the page from the record alone
    python -m experiments.parity models/gpt2 --tokens 128     a folder of config.json and weights, instead of all cases

Needs torch and transformers beside attnjax. Each case is in the record before the next is measured.

Of a folder, both sides read two random sequences; a quarter of the second is padding, and decoders also read them in two chunks
through caches. The difference of a gradient is relative to its largest number, or to a thousandth of the largest number of all
gradients if that is larger. The exit status is 1 if something differs, and 2 for a mistake of the user.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnjax.cli import argument_types as types
from experiments.parity import page

if TYPE_CHECKING:
    from experiments.parity.comparing import Difference

WORST = 10
"""Gradients that are listed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status: 1 if something differs, 2 for a mistake of the user."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("experiments/parity"), help="where to write")
    parser.add_argument("--render", type=pathlib.Path, help="measure nothing; write the page of this folder")
    parser.add_argument("--only", action="append", metavar="NAME", help="this case; may be given several times")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, metavar="FOLDER", help="compare this folder alone")
    parser.add_argument("--tokens", type=types.count, default=32, metavar="N", help="length of its sequence (32)")
    parser.add_argument("--seed", type=types.seed, default=0, metavar="S", help="seed of its random tokens (0)")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="type of numbers (float32)")
    text = "largest relative difference allowed (1e-3)"
    parser.add_argument("--tolerance", type=types.tolerance, default=1e-3, metavar="X", help=text)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.folder is not None:
            return compare(chosen)
        if chosen.render is None:
            measure(chosen.out, chosen.only)
        made = page.render(chosen.render or chosen.out)
        wrong = [what for one in page.read(made.parent)[1] for what in page.failures(one)]
    except (ValueError, OSError) as error:
        print(f"parity: error: {error}", file=sys.stderr)
        return 2
    print(made)
    return int(bool(wrong))


def compare(chosen: argparse.Namespace) -> int:
    """Print the differences of a folder; returns 0 if all are within the tolerance, 1 otherwise."""
    from experiments.parity import comparing

    found = comparing.compare(chosen.folder, tokens=chosen.tokens, seed=chosen.seed, dtype=chosen.dtype)
    lines, failed = told(found, chosen.tolerance)
    print("\n".join(lines))
    return int(failed > 0)


def told(differences: Sequence["Difference"], tolerance: float) -> tuple[list[str], int]:
    """A table with outputs, loss and the worst gradients; and how many differences exceed the tolerance. NaN does."""
    gradients = [one for one in differences if one.name.startswith("gradient of ")]
    first = [one for one in differences if one not in gradients]
    failed = [one.name for one in differences if not one.relative <= tolerance]
    worst = sorted(gradients, key=lambda one: -one.relative if one.relative == one.relative else -float("inf"))
    shown = [*first, *worst[:WORST]]
    width = max(len(one.name) for one in shown)
    lines = [f"{'largest difference':<{width}}  absolute  relative"]
    lines += [f"{one.name:<{width}}  {one.absolute:8.1e}  {one.relative:8.1e}" for one in shown]
    if len(gradients) > WORST:
        lines.append(f"and {len(gradients) - WORST} gradients with smaller differences")
    count = f"{len(failed)} of {len(differences)}" if failed else f"none of {len(differences)}"
    lines.append(f"{count} exceed the relative tolerance {tolerance:g}")
    return lines, len(failed)


def measure(out: pathlib.Path, only: Sequence[str] | None = None) -> None:
    """Add what is missing to the record, and put it in the order of the cases.

    Raises ValueError for an unknown case, and for a record that was made with other versions.
    """
    from experiments.parity import measuring

    names, about = measuring.names(), measuring.about()
    unknown = [name for name in only or () if name not in names]
    if unknown:
        raise ValueError(f"there is no case {unknown[0]!r}; there are {', '.join(names)}")
    out.mkdir(parents=True, exist_ok=True)
    before, found = page.read(out) if (out / page.RECORDS).exists() else (about, [])
    if differ := sorted(
        name for name in before.keys() | about.keys() if name != "date" and before.get(name) != about.get(name)
    ):
        told = ", ".join(f"{name} {before.get(name)}, here {about.get(name)}" for name in differ)
        raise ValueError(
            f"{out / page.RECORDS} was measured with {told}: remove it to measure all again, or choose --out"
        )
    records = {one["case"]: one for one in found}
    for name in only or names:
        if name not in records:
            records[name] = measuring.measure(name)
            print(f"{name}: {'; '.join(page.failures(records[name])) or 'equal'}", flush=True)
            lines = [before, *(records[one] for one in names if one in records)]
            (out / page.RECORDS).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
