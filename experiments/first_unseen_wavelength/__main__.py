"""Does RoPE last as long as the first wavelength that training has not seen? Two families of bases with the same onsets.

attnjax sweep first_unseen_wavelength --workers 2 --population 28     trains 56 runs into runs/first_unseen_wavelength
python -m experiments.first_unseen_wavelength                         their losses, into runs/first_unseen_wavelength_measured
python -m experiments.first_unseen_wavelength --render experiments/first_unseen_wavelength    page and figure alone
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from attnjax.records import jsonl
from experiments import command, recorded
from experiments.first_unseen_wavelength import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep what the runs lost and render, or render only; returns the exit status."""
    parser = command.parser("first_unseen_wavelength", __doc__, "runs/first_unseen_wavelength_measured")
    runs = pathlib.Path("runs/first_unseen_wavelength")
    parser.add_argument("--runs", type=pathlib.Path, default=runs, help=f"the sweep ({runs})")
    return command.run(parser, measure, page.render, arguments)


def measure(chosen: argparse.Namespace) -> None:
    """Append what each run lost. Raises ValueError where runs are still to be trained, or of something else."""
    from attnjax.report import records as stored
    from experiments.unseen_phase.measuring import check, of_run

    sweep = stored.read(chosen.runs)
    for run in sweep.runs:
        check(run)
    if left := [run.id for run in sweep.runs if run.state != "done"]:
        raise ValueError(f"{len(left)} of {len(sweep.runs)} runs are still to be trained, such as {left[0]}")
    path = chosen.out / recorded.RECORDS
    tables = recorded.begin(path, {"kind": "protocol", "sweep": sweep.name})
    there = {table.get("run") for table in tables}
    jsonl.append(path, *(of_run(run) for run in sweep.runs if run.id not in there))


if __name__ == "__main__":
    sys.exit(main())
