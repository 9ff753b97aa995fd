"""Copies the records of a finished sweep, without checkpoints, to where they can be committed.

    python scripts/keep_records.py runs/rope_vs_sinusoidal experiments/rope_vs_sinusoidal

writes EXPERIMENT/records anew: the plan of the sweep, what was chosen for it, and of each run its config, manifest, status,
log, results and scores of examples. What is reported from them, `attnjax report EXPERIMENT/records --out EXPERIMENT/report`,
has the same bytes wherever it is made. Links are not followed, and nothing is copied where something in the sweep is damaged.
Earlier records stay until all of the new ones are there.

    python scripts/keep_records.py runs/policy_placebo experiments/policy_placebo --begun

writes EXPERIMENT/begun instead, with the runs that are done, of a sweep that takes longer than a machine is at hand:
`cp -r experiments/policy_placebo/begun runs/policy_placebo` and `attnjax sweep policy_placebo` go on from there.
"""

import argparse
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterable

from attnjax.records import examples, jsonl, status
from attnjax.records.runs import CONFIG, MANIFEST, TUNING, folder_of
from attnjax.safety import read, refuse_link
from attnjax.sweep import scan

FILES = (MANIFEST, status.FILE, *jsonl.FILES, examples.FILE, "traceback.txt")


def keep(runs: pathlib.Path, experiment: pathlib.Path, *, begun: bool = False) -> int:
    """Copy the records, where the sweep is `begun` those of runs that are done; returns how many runs that are."""
    target = experiment / ("begun" if begun else "records")
    if not (runs / "sweep.json").is_file():
        sys.exit(f"{runs} is no folder of a sweep: it has no sweep.json")
    found = scan(runs)
    if found.problems:
        sys.exit(f"{found.problems[0]}; nothing was copied")
    kept = [run for run in found.runs if run.status.state == "done" or not begun]
    if left := [run for run in kept if run.status.state not in status.FINAL]:
        sys.exit(f"{len(left)} of {len(found.runs)} runs have not ended: say --begun to copy those that are done")
    experiment.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=experiment, prefix=f".{target.name}.") as beside:
        new, old = pathlib.Path(beside, "new"), pathlib.Path(beside, "old")
        new.mkdir()
        copy_all(runs, [run.run for run in kept], new)
        if os.path.lexists(target):
            target.rename(old)
        try:
            new.rename(target)
        except OSError:
            if os.path.lexists(old):
                old.rename(target)
            raise
    return len(kept)


def copy_all(sweep: pathlib.Path, runs: Iterable[str], target: pathlib.Path) -> None:
    """Copy the files of a sweep, and those of these runs."""
    for name in ("sweep.json", TUNING):
        copy(sweep / name, target)
    for run in runs:
        refuse_link(sweep / run)
        folder = folder_of(sweep / run)
        (target / run).mkdir()
        for path in (sweep / run / CONFIG, *(folder / name for name in FILES)):
            copy(path, target / run)


def copy(path: pathlib.Path, target: pathlib.Path) -> None:
    """Copy one file, where there is one; it must be no link."""
    if os.path.lexists(path):
        (target / path.name).write_bytes(read(path, jsonl.LARGEST))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("experiment", type=pathlib.Path)
    parser.add_argument("--begun", action="store_true", help="copy only the runs that are done, into EXPERIMENT/begun")
    arguments = parser.parse_args()
    count = keep(arguments.runs, arguments.experiment, begun=arguments.begun)
    print(f"{count} runs in {arguments.experiment / ('begun' if arguments.begun else 'records')}")


if __name__ == "__main__":
    main()
