"""The command that writes records for other programs: export."""

import argparse
import pathlib
import sys

from attnjax.config.files import SWEEP_FILE
from attnjax.sweep import find_run
from attnjax.sweep.export import export, library
from attnjax.sweep.scan import Run, read_run, scan


def export_(arguments: argparse.Namespace) -> int:
    """`attnjax export RUN --to tensorboard`: prints the files; 1 where a run is damaged and was left out."""
    library(arguments.to)
    damaged = 0
    for run in _runs(arguments.run):
        if run.config is None:
            print(f"left out: {'; '.join(run.problems)}", file=sys.stderr)
            damaged += 1
        else:
            print(export(run, arguments.to, arguments.out))
    return int(damaged > 0)


def _runs(address: str) -> list[Run]:
    """All runs of a sweep's folder, or the one that an address means."""
    if (pathlib.Path(address) / SWEEP_FILE).is_file():
        return scan(pathlib.Path(address)).runs
    return [read_run(find_run(address))]
