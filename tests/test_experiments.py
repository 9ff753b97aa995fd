"""Packed runs of experiments: each config has the hash that names its run, and each run has all of its scores."""

import pathlib

import pytest

from attnjax.config import parse, run_id
from attnjax.records import stored

EXPERIMENTS = pathlib.Path(__file__).parents[1] / "experiments"
FOLDERS = sorted(path.parent for path in EXPERIMENTS.glob("**/runs.jsonl"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(EXPERIMENTS)))
def test_packed_runs_are_whole(folder):
    sweep = stored.read(folder)
    assert not sweep.skipped
    for run in sweep.runs:
        assert run.state == "done"
        assert {row.length for row in run.final} >= set(run.config["evaluate"]["lengths"])
    for run in sweep.runs[:: len(sweep.runs) // 4 + 1]:  # parsing takes a while
        assert run_id(parse(run.config)) == run.id
