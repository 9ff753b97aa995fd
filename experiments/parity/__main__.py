"""Every architecture against transformers: outputs, loss, gradients, caches, generation, and the way there and back.

    python -m experiments.parity                              measures what is missing in experiments/parity/parity.jsonl
    python -m experiments.parity --out runs/parity            elsewhere
    python -m experiments.parity --render experiments/parity  the page from the record alone

Needs torch and transformers beside attnjax. Each case is in the record before the next is measured.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

from experiments.parity import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status: 1 if something differs, 2 for a mistake of the user."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("experiments/parity"), help="where to write")
    parser.add_argument("--render", type=pathlib.Path, help="measure nothing; write the page of this folder")
    parser.add_argument("--only", action="append", metavar="NAME", help="this case; may be given several times")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.render is None:
            measure(chosen.out, chosen.only)
        made = page.render(chosen.render or chosen.out)
        wrong = [what for one in page.read(made.parent)[1] for what in page.failures(one)]
    except (ValueError, OSError) as error:
        print(f"parity: error: {error}", file=sys.stderr)
        return 2
    print(made)
    return int(bool(wrong))


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
