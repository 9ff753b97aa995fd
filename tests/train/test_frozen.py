"""Folders of runs that earlier versions wrote: what was stopped then goes on now."""

import json
import pathlib
import shutil

import pytest

from attnjax.sweep import load, run_here, scan
from attnjax.train import train

FROZEN = pathlib.Path(__file__).parents[1] / "frozen"


@pytest.mark.slow
@pytest.mark.parametrize("version", [path.name for path in sorted(FROZEN.iterdir()) if path.is_dir()])
def test_a_run_that_an_earlier_version_began_is_finished(tmp_path, version):
    root = pathlib.Path(shutil.copytree(FROZEN / version, tmp_path / version))
    before = {run.run: run.status.state for run in scan(root).runs}
    assert sorted(before.values()) == ["done", "preempted"]
    (stopped,) = (run for run, state in before.items() if state == "preempted")
    logged = (root / stopped / "metrics.jsonl").read_text()
    summary = run_here(load(root), train)
    assert set(summary.states.values()) == {"done"}
    assert summary.skipped == tuple(run for run, state in before.items() if state == "done")
    manifest = json.loads((root / stopped / "result" / "manifest.json").read_text())
    assert (manifest["resumed_from"], manifest["steps"]) == (40, 60)
    assert (root / stopped / "result" / "metrics.jsonl").read_text().startswith(logged)
    measured = {run.run: {(one["metric"], one["length"]) for one in run.results().tables} for run in scan(root).runs}
    assert len(set(map(frozenset, measured.values()))) == 1, "both runs have the same measurements"
