"""Which heads specialise, and does it depend on the encoding?

    python -m experiments.head_specialization                      trains configs/heads_lm.py, then measures
    python -m experiments.head_specialization --runs runs/mine     measures the runs of any sweep of text
    python -m experiments.head_specialization --render FOLDER      tables and figure from the rows in FOLDER alone

Trains what is missing in runs/heads_lm (a second call trains nothing), scores every head of every run on held-out files,
before and after training, and writes to --out: heads.jsonl and patterns.jsonl (every number), protocol.json, table.md,
claim.md, figure.png and figure.svg.
"""

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

from attnjax.cli import main as attnjax

CONFIG = "heads_lm"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, measure and write, or write from committed rows; returns the exit status: 2 for a mistake of the user."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.head_specialization",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=pathlib.Path, help=f"a folder of trained runs; default: train {CONFIG}")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("experiments/head_specialization/results"))
    parser.add_argument(
        "--render", type=pathlib.Path, help="measure nothing; tables and figure of the rows in this folder"
    )
    parser.add_argument("--files", type=int, help="most files to score heads on, of each held-out split")
    parser.add_argument("--per-file", type=int, default=8, help="windows of each file")
    chosen = parser.parse_args(arguments)
    runs = chosen.runs
    if runs is None and chosen.render is None:
        runs = pathlib.Path("runs") / CONFIG
        status = attnjax(["sweep", CONFIG, "--out", str(runs), "--workers", str(os.cpu_count() or 1)])
        if status:
            return status
    # JAX is imported after training, whose workers set it up for themselves.
    from experiments.head_specialization import measure, picture, summary

    out = chosen.render or chosen.out
    try:
        if chosen.render is None:
            results = measure.measure(runs, files=chosen.files, per_file=chosen.per_file)
            measure.write(results, out)
        else:
            results = measure.read(out)
        table = summary.table(results)
        (out / "table.md").write_text(table, encoding="utf-8")
        (out / "claim.md").write_text(summary.claim(results), encoding="utf-8")
        picture.write(results, out / "figure")
    except (ValueError, OSError) as error:
        print(f"head_specialization: error: {error}", file=sys.stderr)
        return 2
    print(f"{table}\nwritten to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
