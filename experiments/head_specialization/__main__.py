"""Which heads specialise, and does it depend on the encoding?

    python -m experiments.head_specialization                      trains configs/heads_lm.py, then measures
    python -m experiments.head_specialization --runs runs/mine     measures the runs of any sweep of text

Trains what is missing in runs/heads_lm (a second call trains nothing), scores every head of every run on held-out files,
before and after training, and writes to --out: heads.jsonl and patterns.jsonl (every number), protocol.json, table.md,
claim.md, figure.png and figure.svg.
"""

import argparse
import os
import pathlib
import sys

from attnjax.cli import main as attnjax

CONFIG = "heads_lm"


def main() -> int:
    """Read the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=pathlib.Path, help=f"a folder of trained runs; default: train {CONFIG}")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("experiments/head_specialization/results"))
    parser.add_argument("--files", type=int, help="most files to score heads on, of each held-out split")
    parser.add_argument("--per-file", type=int, default=8, help="windows of each file")
    arguments = parser.parse_args()
    runs = arguments.runs
    if runs is None:
        runs = pathlib.Path("runs") / CONFIG
        status = attnjax(["sweep", CONFIG, "--out", str(runs), "--workers", str(os.cpu_count() or 1)])
        if status:
            return status
    # JAX is imported after training, whose workers set it up for themselves.
    from experiments.head_specialization import measure, picture, summary

    try:
        results = measure.measure(runs, files=arguments.files, per_file=arguments.per_file)
        measure.write(results, arguments.out)
        table = summary.table(results)
        (arguments.out / "table.md").write_text(table, encoding="utf-8")
        (arguments.out / "claim.md").write_text(summary.claim(results), encoding="utf-8")
        picture.write(results, arguments.out / "figure")
    except ValueError as error:
        print(f"head_specialization: error: {error}", file=sys.stderr)
        return 2
    print(f"{table}\nwritten to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
