"""Copies the records of a finished sweep, without checkpoints, to where they can be committed.

    python scripts/keep_records.py runs/rope_vs_sinusoidal experiments/rope_vs_sinusoidal

writes EXPERIMENT/records (config, manifest, status, log and results of each run, and the plan of the sweep) anew. What is
reported from them, `attnjax report EXPERIMENT/records --out EXPERIMENT/report`, has the same bytes wherever it is made.
"""

import argparse
import pathlib
import shutil
import sys

FILES = ("config.json", "manifest.json", "status.json", "metrics.jsonl", "results.jsonl", "traceback.txt")


def keep(runs: pathlib.Path, experiment: pathlib.Path) -> int:
    """Copy the records; returns how many runs there are."""
    target = experiment / "records"
    if not (runs / "sweep.json").is_file():
        sys.exit(f"{runs} is no folder of a sweep: it has no sweep.json")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copyfile(runs / "sweep.json", target / "sweep.json")
    configs = sorted(runs.glob("*/config.json"))
    for config in configs:
        folder = target / config.parent.name
        folder.mkdir()
        for name in FILES:
            if (config.parent / name).is_file():
                shutil.copyfile(config.parent / name, folder / name)
    return len(configs)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("experiment", type=pathlib.Path)
    arguments = parser.parse_args()
    print(f"{keep(arguments.runs, arguments.experiment)} runs in {arguments.experiment / 'records'}")


if __name__ == "__main__":
    main()
