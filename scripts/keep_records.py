"""Copies the records of a finished sweep, without checkpoints, to where they can be committed.

    python scripts/keep_records.py runs/rope_vs_sinusoidal experiments/rope_vs_sinusoidal

writes EXPERIMENT/records anew: the plan of the sweep, what was chosen for it, and of each run its config, manifest, status,
log, results and scores of examples. What is reported from them, `attnjax report EXPERIMENT/records --out EXPERIMENT/report`,
has the same bytes wherever it is made. Links are not followed, and nothing is copied where something in the sweep is damaged.
"""

import argparse
import pathlib
import shutil
import sys

from attnjax.folder import Folder, enter
from attnjax.records import examples, jsonl, status
from attnjax.records.lines import LARGEST
from attnjax.records.runs import CONFIG, MANIFEST, TUNING
from attnjax.sweep import scan

FILES = (CONFIG, MANIFEST, status.FILE, *jsonl.FILES, examples.FILE, "traceback.txt")


def keep(runs: pathlib.Path, experiment: pathlib.Path) -> int:
    """Copy the records; returns how many runs there are."""
    target = experiment / "records"
    if not (runs / "sweep.json").is_file():
        sys.exit(f"{runs} is no folder of a sweep: it has no sweep.json")
    found = scan(runs)
    if found.problems:
        sys.exit(f"{found.problems[0]}; nothing was copied")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with enter(runs, follow=True) as sweep:
        copy(sweep, "sweep.json", target)
        if sweep.kind(TUNING):
            copy(sweep, TUNING, target)
        for run in found.runs:
            with sweep.enter(run.run) as folder:
                (target / run.run).mkdir()
                for name in FILES:
                    if folder.kind(name):
                        copy(folder, name, target / run.run)
    return len(found.runs)


def copy(folder: Folder, name: str, target: pathlib.Path) -> None:
    """Copy one file, which must be no link."""
    (target / name).write_bytes(folder.read(name, LARGEST))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("experiment", type=pathlib.Path)
    arguments = parser.parse_args()
    print(f"{keep(arguments.runs, arguments.experiment)} runs in {arguments.experiment / 'records'}")


if __name__ == "__main__":
    main()
